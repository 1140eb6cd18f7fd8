"""A year of a large fleet in a history: written by what writes nights, then asked as people ask."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.history import reading
from preflight.history.place import Place, parse_place
from preflight.history.run_record import (
    Cost,
    Machine,
    Night,
    NightFinding,
    Numbers,
    PairCoverage,
    RoundRecord,
    Slot,
)
from preflight.session.stored_run import prepare_place
from tests.bench.outside import cost
from tests.bench.ratio import Bound, Row, extremes, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from preflight.history.run_record import Past, State

_NODES, _NIGHTS, _RUNS = 1000, 365, 5
_AT_ONCE = 25
"""Nights in one transaction here; a run adds its one."""

_BOUND = Bound("at most", 1)
_MIB = 1 << 20
_NIGHT_S = 86400.0
_GPUS, _NOISE = 8, 4096
_UNDER = "cuda, torch 2.9.0, driver 580.65.06"
_OF_GPUS = {
    "gemm_tflops": 740.0,
    "sustained_tflops": 700.0,
    "memory_gbs": 2900.0,
    "launch_us": 8.0,
    "h2d_gbs": 55.0,
    "d2h_gbs": 54.0,
}
_OF_NICS = {"nic_gbits": 390.0}
_OF_RAILS = {"allreduce_gbs": 46.0, "allreduce_p50_us": 21.0, "allreduce_p99_us": 29.0}
_OF_HOST = {"host_copy_gbs": 200.0, "host_gflops": 3000.0}
_CHECKS = tuple(f"made.up{number}" for number in range(90))
_ROUNDS = 9


class Year(Struct, frozen=True, kw_only=True):
    """What was written, and how long it took."""

    place: Place
    nights: int
    names: tuple[str, ...]
    seconds: float

    @property
    def mib(self) -> float:
        """The file, and whatever of it is still in its log."""
        file = self.place.file
        there = [file, file.with_name(f"{file.name}-wal")] if file is not None else []
        return sum(one.stat().st_size for one in there if one.exists()) / _MIB


def measure() -> Iterator[Row]:
    """365 nights of 1,000 nodes of 8 GPUs."""
    with tempfile.TemporaryDirectory(prefix="preflight-bench-") as name:
        yield from rows(written(Path(name), _NODES, _NIGHTS))


def written(folder: Path, nodes: int, nights: int) -> Year:
    """Write a year down."""
    from preflight.history.writing import writing

    place = parse_place(str(folder), folder)
    prepare_place(place)
    fleet = _Fleet(nodes)
    began = time.perf_counter()
    for first in range(0, nights, _AT_ONCE):
        with writing(place) as writer:
            for number in range(first, min(first + _AT_ONCE, nights)):
                writer.add(fleet.night(number), fleet.swept)
        sys.stderr.write(f"  night {first} of {nights}\n")
    return Year(place=place, nights=nights, names=fleet.names, seconds=time.perf_counter() - began)


def rows(year: Year, runs: int = _RUNS) -> Iterator[Row]:
    """Ask it, and say how large it is."""
    what = f"{year.nights} nights of {len(year.names)} nodes of {_GPUS} GPUs"
    node = year.names[len(year.names) // 2]
    few = list(year.names[:2])
    asked: dict[str, tuple[str, Callable[[], object]]] = {
        "node": ("one node's past", lambda: _ask(year, lambda told: told.node(node))),
        "worst": ("the worst of all", lambda: _ask(year, lambda told: told.worst())),
        "changes": (
            "what the last night changed",
            lambda: _ask(year, lambda told: told.changes(told.last_run())),
        ),
        "planner": (
            "what a planner wants to know",
            lambda: _ask(year, lambda told: (told.past(year.names, {}), told.units(few, "deep"))),
        ),
    }
    for key, (words, ask) in asked.items():
        yield Row(
            id=f"history.{key}",
            what=f"{what}: {words}",
            unit="s",
            value=extremes([seconds(ask)() for _ in range(runs)]),
            value_unit="s",
            runs=runs,
            bound=_BOUND,
            note="in a process that has loaded the library; each opens the file again",
        )
    argv = [sys.executable, "-m", "preflight", "history", node, "--history"]
    folder = Path(str(year.place.file)).parent
    whole = [cost([*argv, str(folder)], folder, exits=0).seconds for _ in range(runs)]
    yield Row(
        id="history.command",
        what=f"{what}: preflight history NODE, as typed",
        unit="s",
        value=extremes(whole),
        value_unit="s",
        runs=runs,
        note="with the start of Python and the loading of SQLAlchemy",
    )
    yield Row(
        id="history.size",
        what=f"{what}: the file",
        unit="MiB",
        value=extremes([year.mib]),
        value_unit="MiB",
        runs=1,
        note=f"written in {year.seconds:.0f} s, {year.seconds / year.nights:.2f} s a night",
    )


def _ask(year: Year, question: Callable[..., object]) -> object:
    with reading(year.place) as history:
        return question(history)


class _Fleet:
    """Nodes whose numbers scatter by one per cent; one in fifty nodes is not well."""

    def __init__(self, nodes: int) -> None:
        wide = len(str(nodes))
        self.names = tuple(f"gpu{number:0{wide}}" for number in range(1, nodes + 1))
        self._dice = random.Random(1)  # noqa: S311  noise that a seed repeats
        self._noise = [self._dice.lognormvariate(0, 0.01) for _ in range(_NOISE)]
        self._gpus = tuple(
            tuple(Slot(slot=slot, uuid=f"GPU-{name}-{slot}", model="H100") for slot in range(_GPUS))
            for name in self.names
        )
        self._rounds = nodes - 1

    def night(self, number: int) -> Night:
        """One night of all of them."""
        sick = {name for place, name in enumerate(self.names) if place % 50 == number % 7}
        bad = {name for name in sick if self._dice.random() < 0.3}
        machines = [
            Machine(name=name, state=self._state(name, bad), serial=f"SN{name}", gpus=gpus)
            for name, gpus in zip(self.names, self._gpus, strict=True)
        ]
        found = [
            NightFinding(
                check=_CHECKS[place % 7],
                about=name,
                outcome="fail",
                sentence=f"GPU {place % _GPUS} reaches {600 + place % 40} TFLOPS, 651 expected",
                nodes=(name,),
            )
            for place, name in enumerate(sorted(bad))
        ]
        well = frozenset(self.names) - bad
        return Night(
            run=f"{number:032x}",
            started_s=1_700_000_000 + number * _NIGHT_S,
            seconds=3000.0,
            tier="deep",
            machines=tuple(machines),
            findings=tuple(found),
            fine=dict.fromkeys(_CHECKS, well),
            numbers=tuple(self._numbers()),
            folded=f"gpu[1-{len(self.names)}]",
        )

    def swept(self, past: Past) -> tuple[Past, PairCoverage]:
        """Nine more rounds, the next ones in turn."""
        run = past.runs + 1
        half = len(self.names) // 2
        turn = range(past.runs * _ROUNDS, run * _ROUNDS)
        done = {**past.done, **{one % self._rounds: RoundRecord(run, half) for one in turn}}
        new = replace(past, runs=run, done=done, costs={"deep": Cost(2.0, 60.0)})
        pairs = half * self._rounds
        known = min(pairs, len(done) * half)
        return new, PairCoverage(pairs=pairs, pairs_run=_ROUNDS * half, pairs_known=known)

    def _state(self, name: str, bad: set[str]) -> State:
        return "ready" if name not in bad else "flaky" if name.endswith("1") else "not_ready"

    def _numbers(self) -> Iterator[Numbers]:
        gpus = tuple(f"GPU {slot}" for slot in range(_GPUS))
        near = tuple(f"GPU {slot} with NUMA node {slot // 4}" for slot in range(_GPUS))
        rails = tuple(f"rail {slot}" for slot in range(_GPUS))
        nics = tuple(f"mlx5_{slot}" for slot in range(_GPUS))
        sides = ("NUMA node 0", "NUMA node 1")
        groups = (
            (_OF_GPUS, gpus, _UNDER),
            (_OF_NICS, nics, _UNDER),
            (_OF_RAILS, rails, "nccl, 256 MiB"),
            (_OF_HOST, sides, _UNDER),
        )
        for name in self.names:
            for usual, units, under in groups:
                for measure, value in usual.items():
                    named = near if measure in ("h2d_gbs", "d2h_gbs") else units
                    yield Numbers(
                        node=name,
                        measure=measure,
                        under=under,
                        units=named,
                        values=self._near(value, len(named)),
                    )

    def _near(self, value: float, number: int) -> tuple[float, ...]:
        first = self._dice.randrange(_NOISE - number)
        return tuple(value * one for one in self._noise[first : first + number])
