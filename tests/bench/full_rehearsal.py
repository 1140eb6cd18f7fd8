"""`make bench-full`: each situation of the rehearsal, repeated, over real SSH hosts with fake CUDA.

    python -m tests.bench.full_rehearsal [--fleet 4x2 2x8 8x2] [--minutes M] [--only spikes ...]
                                         [--unseen] [--show]

Each run is a line of bench-results/rehearsal.jsonl, with the code that made it: lines of other
code are kept in the file and counted no more. Ctrl-C costs nothing but the run under way. The
report of a run that was not right is kept under bench-results/rehearsal-runs. `--unseen`: the noise
comes from the generators that nobody looks at while limits are chosen.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from tests.bench.lab_shares import Share
from tests.bench.machine import machine
from tests.bench.proportion import clopper_pearson
from tests.bench.resumed import append, lines
from tests.lab.cluster import Lab, why_not
from tests.lab.named import named
from tests.lab.rehearsal.scenario import NOISES, UNSEEN_NOISES, Machine, rehearsed
from tests.lab.rehearsal.situations import SITUATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.lab.rehearsal.scenario import Rehearsal

_ROOT = Path(__file__).parents[2]
_TURNS = {"4x2": (100, 20), "2x8": (20, 5), "8x2": (0, 5)}
"""Runs where all is healthy, and runs of each fault, by fleet (nodes x GPUs)."""

_LONGEST_S = 400


class Case(Struct, frozen=True):
    """One run."""

    fleet: str
    what: str
    turn: int
    unseen: bool

    @property
    def id(self) -> str:
        """Words as in "4x2:spikes:3:seen"."""
        return f"{self.fleet}:{self.what}:{self.turn}:{'unseen' if self.unseen else 'seen'}"


class Line(Struct, frozen=True, kw_only=True):
    """What one run came to."""

    code: str
    case: str
    fleet: str
    what: str
    host: str
    slot: int
    noise: str
    off: str
    """What was not right; empty: all was."""
    wrong: tuple[str, ...]
    """Healthy hosts that were named."""
    said: tuple[str, ...]
    seconds: float
    load: float


def main() -> int:
    """Go on with what is left; show and write what is there."""
    options = _options()
    if not options.show and (reason := why_not()):
        sys.stderr.write(f"{reason}\n")
        return 1
    code, ends = fingerprint(), time.monotonic() + 60 * options.minutes
    options.results.parent.mkdir(parents=True, exist_ok=True)
    done = {one.case: one for one in lines(options.results, code, Line)}
    wanted = [one for fleet in options.fleet for one in cases(fleet, unseen=options.unseen)]
    wanted = [one for one in wanted if one.what in options.only]
    left = [one for one in wanted if one.id not in done and not options.show]
    try:
        for line in _runs(left, code, ends, options.results.with_name("rehearsal-runs")):
            append(options.results, line)
            done[line.case] = line
            where = f"{line.host} slot {line.slot}, {line.noise}"
            sys.stderr.write(f"{len(done)} {line.case} {where}: {line.off or 'right'} ")
            sys.stderr.write(f"({line.seconds:.0f} s, load {line.load:.1f})\n")
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped; run it again to go on\n")
    found = [done[one.id] for one in wanted if one.id in done]
    target = options.results.with_name("rehearsal-full.json")
    document = {"code": code, "machine": machine(), "runs": found}
    target.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    sys.stdout.write(f"{table(found)}\n")
    sys.stdout.write(f"\n{len(found)} of {len(wanted)} runs; written to {target}\n")
    return 0


def cases(fleet: str, *, unseen: bool) -> list[Case]:
    """All runs of a fleet, in turns: stopped early, each situation has had about as many."""
    healthy, faulty = _TURNS[fleet]
    return [
        Case(fleet, one.name, turn, unseen)
        for turn in range(max(healthy, faulty))
        for one in SITUATIONS
        if turn < (healthy if one.name == "healthy" else faulty)
    ]


def fingerprint() -> str:
    """Of everything that decides an outcome: preflight, its checks, the rehearsal."""
    sources = [*_ROOT.glob("preflight/**/*.py"), *_ROOT.glob("preflight/**/*.toml")]
    sources += [*_ROOT.glob("checks/**/*.py"), *_ROOT.glob("tests/lab/rehearsal/**/*.py")]
    digest = hashlib.sha256()
    for file in sorted(sources):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def table(found: Sequence[Line]) -> str:
    """By fleet and situation, and all faults of a fleet together."""
    lines = [f"{'fleet':6} {'planted':16} {'right':>28} {'healthy part named':>28}"]
    for fleet in dict.fromkeys(one.fleet for one in found):
        own = [one for one in found if one.fleet == fleet]
        groups = {
            what: [one for one in own if one.what == what]
            for what in dict.fromkeys(one.what for one in own)
        }
        groups["all but healthy"] = [one for one in own if one.what != "healthy"]
        for what, some in groups.items():
            if some:
                right = _share([not one.off for one in some])
                wrong = _share([bool(one.wrong) for one in some])
                lines.append(f"{fleet:6} {what:16} {right!s:>28} {wrong!s:>28}")
    return "\n".join(lines)


def _share(some: Sequence[bool]) -> Share:
    return Share(sum(some), len(some), clopper_pearson(sum(some), len(some)))


def _runs(todo: Sequence[Case], code: str, ends: float, kept: Path) -> Iterator[Line]:
    for fleet in dict.fromkeys(one.fleet for one in todo):
        nodes, gpus = map(int, fleet.split("x"))
        with Lab(hosts=nodes) as lab:
            for one in (each for each in todo if each.fleet == fleet):
                if time.monotonic() >= ends:
                    return
                with rehearsed(lab, Machine(gpus=gpus)) as rehearsal:
                    yield run(rehearsal, one, code, kept)
                lab.heal()


def run(rehearsal: Rehearsal, case: Case, code: str, kept: Path) -> Line:
    """Plant, run, judge; the report of what was not right is copied into the folder `kept`."""
    began, load = time.monotonic(), os.getloadavg()[0]
    nodes, gpus = map(int, case.fleet.split("x"))
    draw = random.Random(case.id)  # noqa: S311  # a draw, not a secret
    host, slot = f"h{draw.randint(1, nodes)}", draw.randrange(gpus)
    noise = draw.choice(UNSEEN_NOISES if case.unseen else NOISES)
    situation = next(one for one in SITUATIONS if one.name == case.what)
    for name in rehearsal.machines:
        costs = {"enqueue_us": draw.uniform(5, 45), "init_s": draw.uniform(0.2, 3.0)}
        rehearsal.change(name, noise=noise, seed=draw.randrange(1 << 30), **costs)
    situation.plant(rehearsal, host, slot)
    with tempfile.TemporaryDirectory(prefix="preflight-bench-") as working:
        report = Path(working) / "report"
        said: tuple[str, ...] = ()
        wrong: tuple[str, ...] = ()
        try:
            _preflight(rehearsal, report, draw.randrange(1 << 32))
            found = named(report)
        except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
            off = f"{type(error).__name__}: {error}"
        else:
            said = (*found.components, *found.open)
            off = situation.off(found, host, pairs_only=nodes == 2)
            wrong = situation.wrong(found, host, pairs_only=nodes == 2)
        if off and report.exists():
            shutil.copytree(report, kept / f"{code}-{case.id}".replace(" ", "-").replace(":", "-"),
                            dirs_exist_ok=True)  # fmt: skip
    return Line(
        code=code,
        case=case.id,
        fleet=case.fleet,
        what=case.what,
        host=host,
        slot=slot,
        noise=noise,
        off=off,
        wrong=wrong,
        said=said,
        seconds=round(time.monotonic() - began, 1),
        load=round(load, 1),
    )


def _preflight(rehearsal: Rehearsal, report: Path, seed: int) -> None:
    """As a person would, but from an environment that looks like nobody's allocation.

    Plugins that only development has take longer to load than preflight runs.
    """
    foreign = ("SLURM_", "PREFLIGHT_", "PYTEST_", "CUDA_", "MASTER_", "TORCH", "NCCL_")
    subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--preflight"),
            *("-p", "no:hypothesispytest", "-p", "no:pytest11.testinfra"),
            *(f"--preflight-inventory={rehearsal.inventory()}", f"--preflight-report={report}"),
            *(f"--preflight-seed={seed}", "--preflight-fail-fast=never"),
            "--preflight-budget=240",
        ],
        cwd=report.parent,
        env={name: value for name, value in os.environ.items() if not name.startswith(foreign)},
        capture_output=True,
        timeout=_LONGEST_S,
        check=False,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.full_rehearsal")
    parser.add_argument("--fleet", nargs="+", choices=_TURNS, default=list(_TURNS))
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after these")
    names = [one.name for one in SITUATIONS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="WHAT",
                        help=f"of {', '.join(names)}")  # fmt: skip
    parser.add_argument("--unseen", action="store_true", help="noise of the unseen generators")
    parser.add_argument("--show", action="store_true", help="run nothing, show what is there")
    parser.add_argument("--results", type=Path, default=Path("bench-results/rehearsal.jsonl"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
