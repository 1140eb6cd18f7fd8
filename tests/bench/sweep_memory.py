"""What a sweep's samples take in the controller's memory: all of 64 nodes with 8 rails.

    python -m tests.bench.sweep_memory

plays every agent of such a sweep, in a process of its own, and says what its words took to keep.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from preflight.fabric.agent_events import PairAccount, Ready, decode_event
from preflight.fabric.collect import SweepAccounts
from preflight.fabric.roster import build_roster
from preflight.fabric.samples import Timing
from preflight.fabric.schedule import circle_rounds
from preflight.fabric.sweep_plan import GLOO, GLOO_SOAK, SweepPlan
from tests.bench.outside import cost
from tests.bench.ratio import Row, extremes
from tests.bench.synthetic import LATENCY_US, SPEED_GBS, names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.fabric.samples import Phase, Rung

_NODES, _RAILS, _ROUNDS = 64, 8, 9
_RUNS = 3
_DRAWN = 100_000
"""Times of one size, of which each account takes some."""

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Held(Struct, frozen=True):
    """One sweep's samples, all of them kept."""

    accounts: int
    times: int
    """Of operations, and of gaps between them."""
    mib: float
    take_s: float
    """Processor time for decoding and taking them."""
    tidy_s: float
    """And, while nobody says anything, for making them small."""


def measure() -> Iterator[Row]:
    """The whole sweep in a fresh process each time."""
    runs = []
    with tempfile.TemporaryDirectory(prefix="preflight-bench-") as name:
        for _ in range(_RUNS):
            cost([sys.executable, "-m", "tests.bench.sweep_memory"], Path(name), exits=0)
            runs.append(msgspec.json.decode((Path(name) / "output.txt").read_bytes(), type=Held))
    what = f"all samples of {_NODES} nodes, {_RAILS} rails, {_ROUNDS} rounds over gloo"
    millions = runs[0].times / 1e6
    yield Row(
        id="sweep_memory.mib",
        what=f"{what} ({millions:.1f} million times): memory of the controller",
        unit="MiB",
        value=extremes([one.mib for one in runs]),
        value_unit="MiB",
        runs=len(runs),
    )
    for key, words, read in (
        ("take", "to decode and take them", [one.take_s for one in runs]),
        ("tidy", "to make them small in idle moments", [one.tidy_s for one in runs]),
    ):
        yield Row(
            id=f"sweep_memory.{key}",
            what=f"the same: processor time {words}",
            unit="s",
            value=extremes(read),
            value_unit="s",
            runs=len(runs),
        )


def held() -> Held:
    """Every account of every rail of every pair, from both ends; RuntimeError if one is refused."""
    nodes = names(_NODES)
    plan = SweepPlan(nodes=tuple(nodes), rounds=circle_rounds(nodes)[:_ROUNDS])
    ready = Ready("2.13.0+cpu", cuda=False, gpus=0, rails=_RAILS)
    who = build_roster(plan, dict.fromkeys(nodes, ready))
    drawn = _Drawn()
    collected = SweepAccounts(who)
    accounts, times, tidy_s = 0, 0, 0.0
    before_mib, take_s = _resident_mib(), 0.0
    for number, around in enumerate(who.rounds):
        for a, b in around:
            for rail in range(who.rails):
                for name in (a, b):
                    document = drawn.account(number, a, b, rail)
                    began = time.process_time()
                    seen = decode_event(document)
                    if not isinstance(seen, PairAccount) or not collected.add(name, seen):
                        raise RuntimeError(f"an account of {name} in round {number} was refused")
                    take_s += time.process_time() - began
                    accounts += 1
                    times += sum(len(one.times_us) + len(one.gaps_us) for one in seen.timings)
        began = time.process_time()
        while collected.compact_one():  # between two rounds there is time
            pass
        tidy_s += time.process_time() - began
    pairs = collected.pairs()
    if len(pairs) != accounts // 2:
        raise RuntimeError(f"{len(pairs)} pairs were kept of {accounts} accounts")
    return Held(accounts, times, _resident_mib() - before_mib, take_s, tidy_s)


class _Drawn:
    """Healthy agents' words, each with times of its own; the same in every run."""

    def __init__(self) -> None:
        self._dice = random.Random(1)  # noqa: S311  made-up samples
        self._times = {rung: self._of(rung) for rung in (*GLOO, GLOO_SOAK)}
        self._gaps = [round(self._dice.uniform(1, 9), 2) for _ in range(_DRAWN)]

    def account(self, number: int, a: str, b: str, rail: int) -> bytes:
        """What one rail of one end says of a pair."""
        ladder = [self._timing(rung, "ladder") for rung in GLOO]
        return msgspec.json.encode(
            PairAccount(
                round=number,
                a=a,
                b=b,
                rail=rail,
                backend="gloo",
                state="measured",
                error="",
                started_s=1.0,
                setup_ms=4.0,
                timings=(*ladder, self._timing(GLOO_SOAK, "soak")),
            )
        )

    def _of(self, rung: Rung) -> list[float]:
        typical_us = LATENCY_US + rung.size_bytes / SPEED_GBS / 1e3
        return [round(typical_us * self._dice.lognormvariate(0, 0.2), 1) for _ in range(_DRAWN)]

    def _timing(self, rung: Rung, phase: Phase) -> Timing:
        times = tuple(self._dice.choices(self._times[rung], k=rung.iterations))
        gaps = tuple(self._dice.choices(self._gaps, k=rung.iterations))
        return Timing(rung.size_bytes, times, gaps, phase)


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * _PAGE / (1 << 20)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(msgspec.to_builtins(held())) + "\n")
