"""One run of preflight over eight real hosts with a drawn fault, and what it came to."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import msgspec
from msgspec import Struct

from tests.lab.named import Named, named
from tests.lab.planted import Fault, Kind, planted

if TYPE_CHECKING:
    from tests.lab.cluster import Lab

HOSTS, RUNS = 8, 20
HEALTHY = "healthy"
_BUDGET_S, _LONGEST_S = 240, 400


class Case(Struct, frozen=True):
    """One run: what is planted, and the seed of its rounds."""

    kind: Kind | None
    """None: everything is healthy."""
    turn: int
    seed: int
    """The first of the draw, and part of the name."""

    @property
    def what(self) -> str:
        """Its kind in the table."""
        return self.kind or HEALTHY

    @property
    def id(self) -> str:
        """Words as in "lossy link:3:0"."""
        return f"{self.what}:{self.turn}:{self.seed}"

    def faults(self) -> tuple[Fault, ...]:
        """What is planted, drawn by seed and turn."""
        if self.kind is None:
            return ()
        draw = random.Random(self.id)  # noqa: S311  # a draw, not a secret
        numbers = sorted(draw.sample(range(1, HOSTS + 1), 2 if self.kind == "firewall" else 1))
        return (
            Fault(
                self.kind,
                tuple(f"h{number}" for number in numbers),
                way=draw.choice(("in", "out")),
                delay_s=round(draw.uniform(0.0, 0.3), 3),
            ),
        )


class Line(Struct, frozen=True, kw_only=True):
    """What one run came to."""

    code: str
    case: str
    what: str
    planted: tuple[str, ...]
    named: Named | None
    """None: there is no report."""
    right: bool
    wrong: tuple[str, ...]
    """Healthy parts that were named."""
    trouble: str = ""
    """Why there is nothing to hold against what was planted; it is not right, then."""
    seconds: float
    load: float


def cases(first_seed: int) -> list[Case]:
    """All runs, in turns: stopped early, each kind has had about as many."""
    kinds: tuple[Kind | None, ...] = (None, *get_args(Kind))
    return [Case(kind, turn, first_seed) for turn in range(RUNS) for kind in kinds]


def run(lab: Lab, case: Case, code: str, kept: Path) -> Line:
    """Plant, run, judge; what did not name exactly the culprit is copied into the folder `kept`."""
    began, load = time.monotonic(), os.getloadavg()[0]
    faults, trouble, found = case.faults(), "", None
    with tempfile.TemporaryDirectory(prefix="preflight-bench-") as working:
        report = Path(working) / "report"
        try:
            with planted(lab, *faults):
                _preflight(lab.inventory(), report, case)
            found = named(report)
        except (RuntimeError, OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
            trouble = f"{type(error).__name__}: {error}"
        right = not trouble and found is not None and found.right(faults)
        if not right and report.exists():
            name = f"{code}-{case.id}".replace(" ", "-").replace(":", "-")
            shutil.copytree(report, kept / name, dirs_exist_ok=True)
    return Line(
        code=code,
        case=case.id,
        what=case.what,
        planted=tuple(fault.component for fault in faults),
        named=found,
        right=right,
        wrong=() if found is None else found.wrong(faults),
        trouble=trouble,
        seconds=round(time.monotonic() - began, 1),
        load=round(load, 1),
    )


def _preflight(inventory: Path, report: Path, case: Case) -> None:
    """As a person would, but from an environment that looks like nobody's allocation."""
    foreign = ("SLURM_", "PREFLIGHT_", "PYTEST_", "CUDA_", "MASTER_", "TORCH")
    seed = random.Random(f"rounds {case.id}").randrange(1 << 32)  # noqa: S311  # as above
    subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--preflight"),
            *(f"--preflight-inventory={inventory}", f"--preflight-report={report}"),
            *(f"--preflight-seed={seed}", f"--preflight-budget={_BUDGET_S}"),
            "--preflight-fail-fast=never",
        ],
        cwd=report.parent,
        env={name: value for name, value in os.environ.items() if not name.startswith(foreign)},
        capture_output=True,
        timeout=_LONGEST_S,
        check=False,
    )
