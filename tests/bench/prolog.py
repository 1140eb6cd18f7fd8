"""What a prolog costs a job on a healthy node of eight GPUs, and that it never costs the node."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from tests.bench.hook_faults import FAULTS, HUNG, Attempt, Rig, any_sickness, sicken
from tests.bench.hook_strangers import STRANGERS, beside
from tests.bench.outside import PYTEST, Cost, cost
from tests.bench.ratio import Bound, Row, Spread, extremes, in_turns, times
from tests.lab.nvml.build import build
from tests.stories.hooked import NODE, PREFLIGHT

if TYPE_CHECKING:
    from collections.abc import Iterator

_RUNS = 15
_FAULTS, _SICK = 24, 6
OCCASIONS = ("prolog", "healthcheck")


def measure() -> Iterator[Row]:
    """The prolog in turns with a bare start of pytest; then random faults of ours."""
    with tempfile.TemporaryDirectory(prefix="preflight-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        rig = Rig(folder / "rig", build(folder / "nvml").parent)
        rig.heal()
        yield from _costs(rig)
        yield false_drains([one_run(rig, seed) for seed in range(_FAULTS)])
        yield missed_drains([sick_run(rig, seed) for seed in range(_SICK)])


def _costs(rig: Rig) -> Iterator[Row]:
    environ = {
        "LD_LIBRARY_PATH": rig.node.library,
        "PREFLIGHT_NVML_SCENARIO": rig.node.folder / "scenario",
        "SLURMD_NODENAME": NODE,
        "SLURM_JOB_ID": "4711",
    }
    words = ["env", *(f"{name}={value}" for name, value in environ.items())]
    words += [PREFLIGHT, "prolog", f"--config={rig.node.config}"]
    folder = rig.node.folder

    def ours() -> Cost:
        return cost(words, folder, exits=0)

    def theirs() -> Cost:
        return cost([*PYTEST, "--version"], folder, exits=0)

    in_turns(1, ours, theirs)  # reads what is compiled once
    mine, bare = in_turns(_RUNS, ours, theirs)
    yield Row(
        id="prolog.time",
        what="preflight prolog on a healthy node of 8 GPUs / pytest --version",
        ours=extremes([one.seconds for one in mine]),
        theirs=extremes([one.seconds for one in bare]),
        unit="s",
        value=times([one.seconds for one in mine], [one.seconds for one in bare]),
        runs=_RUNS,
        bound=Bound("at most", 8),
        note="silent, exit 0; the emulated driver answers at once",
    )
    yield Row(
        id="prolog.memory",
        what="the same: peak memory of the largest of its processes",
        ours=extremes([one.peak_mib for one in mine]),
        theirs=extremes([one.peak_mib for one in bare]),
        unit="MiB",
        value=times([one.peak_mib for one in mine], [one.peak_mib for one in bare]),
        runs=_RUNS,
        bound=Bound("at most", 4),
    )


class Run(Struct, frozen=True):
    """One start of the hook beside one fault of ours."""

    seed: int
    kind: str
    fault: str
    exit: int
    drained: bool
    seconds: float
    sees: bool = True
    """Whether a sick node was drained by the same rig: else its silence would prove nothing."""

    @property
    def false(self) -> bool:
        """The healthy node was drained, or the job kept away."""
        return self.drained or self.exit != 0


def one_run(rig: Rig, seed: int) -> Run:
    """Plant the fault of that seed, start the hook, take the fault out again."""
    dice = random.Random(seed)  # noqa: S311  no secret
    every = FAULTS + STRANGERS
    fault = every[seed % len(every)]
    rig.heal()
    sees = True
    if seed % 50 == 0:
        sicken(rig)
        sees = rig.start().drained
        rig.heal()
    what, attempt, undo = fault.plant(rig, dice)
    try:
        seen = rig.start(attempt)
    finally:
        undo()
    return Run(seed, fault.kind, what, seen.exit, seen.drained, seen.seconds, sees)


def sick_run(rig: Rig, seed: int) -> Run:
    """Plant a fault of the node's own beside what users may name and set.

    A hung driver is seen by the health check, and drains at its second look.
    """
    dice = random.Random(seed)  # noqa: S311  no secret
    rig.heal()
    what = any_sickness(rig, dice)
    attempt = Attempt(occasion="healthcheck" if what == HUNG else dice.choice(OCCASIONS))
    noise = beside(rig, dice, attempt)
    seen = rig.start(attempt)
    if what == HUNG and not seen.drained:
        rig.node.later()
        seen = rig.start(attempt)
    said = f"{attempt.occasion}: {what}; {noise}"
    return Run(seed, "sick", said, seen.exit, seen.drained, seen.seconds, sees=seen.drained)


def missed_drains(runs: list[Run]) -> Row:
    """How many sick nodes were left in service; there may be none."""
    return _none_may(
        "prolog.missed_drains",
        "sick node, beside what users may name and set: left in service",
        runs,
        [run for run in runs if not run.sees],
        "a driver that hangs: at the second look; make bench-full: 100",
    )


def false_drains(runs: list[Run]) -> Row:
    """How many of them cost a node; there may be none."""
    if blind := [run.seed for run in runs if not run.sees]:
        raise RuntimeError(f"a sick node was not drained at seed {blind[0]}: the rig sees nothing")
    return _none_may(
        "prolog.false_drains",
        "healthy node, random faults of ours and of others: drained, or the job kept away",
        runs,
        [run for run in runs if run.false],
        "left: how long a start took; right: the budget; make bench-full: 1,000",
    )


def _none_may(row_id: str, what: str, runs: list[Run], wrong: list[Run], note: str) -> Row:
    return Row(
        id=row_id,
        what=what,
        ours=extremes([run.seconds for run in runs]),
        theirs=Spread(8, 8, 8),
        unit="s",
        value=Spread(len(wrong), len(wrong), len(wrong)),
        value_unit=f"of {len(runs)}",
        runs=len(runs),
        bound=Bound("at most", 0),
        note="; ".join(f"seed {run.seed}: {run.fault}" for run in wrong) or note,
    )
