"""Commands run apart from us, and what each took: time, and its own peak of memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")
"""As most people have it: hypothesis' plugin imports all of hypothesis at the end of every run."""

_CLOCK = Path(__file__).with_name("clock.py")
_ROOT = Path(__file__).parents[2]


class Cost(Struct, frozen=True):
    """What one command took."""

    exit: int
    seconds: float
    cpu_s: float
    """Processor time: what other work on the machine changes least."""
    peak_mib: float


def environment() -> dict[str, str]:
    """Ours, without what would make it look like an allocation, a job, or a configured pytest."""
    foreign = ("SLURM_", "PREFLIGHT_", "PYTEST_", "CUDA_", "MASTER_", "TORCH")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    return kept | {"COLUMNS": "80"}


def cost(argv: Sequence[str], folder: Path, *, exits: int) -> Cost:
    """Run it in that folder, its output in `output.txt`; RuntimeError if it exits otherwise."""
    output = folder / "output.txt"
    told = subprocess.run(
        [sys.executable, "-I", str(_CLOCK), str(output), *argv],
        cwd=folder,
        env=environment() | {"PYTHONPATH": str(_ROOT)},
        stdout=subprocess.PIPE,
        check=True,
    )
    one = msgspec.convert(json.loads(told.stdout), Cost)
    if one.exit != exits:
        raise RuntimeError(f"{list(argv)} ended with {one.exit}: {output.read_text()[-2000:]}")
    return one
