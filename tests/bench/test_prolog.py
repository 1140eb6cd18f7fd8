"""What counts as a false drain, and that damage is done where it is meant to be."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.bench.hook_faults import FAULTS, Rig, sicken
from tests.bench.prolog import Run, false_drains, one_run
from tests.lab.nvml.build import build

if TYPE_CHECKING:
    from pathlib import Path

_FINE = Run(1, "module", "x", 0, drained=False, seconds=1.0)


def test_a_drain_and_a_job_kept_away_both_count() -> None:
    """One that told Slurm, one that only failed: two of three, and the row says which."""
    told = msgspec.structs.replace(_FINE, seed=2, drained=True)
    failed = msgspec.structs.replace(_FINE, seed=3, exit=1)
    row = false_drains([_FINE, told, failed])
    assert (row.value.median, row.met, row.runs) == (2, False, 3)
    assert "seed 2" in row.note
    assert "seed 3" in row.note
    assert false_drains([_FINE]).met


def test_a_blind_rig_proves_nothing() -> None:
    """Where a sick node was not drained either, silence is no result."""
    with pytest.raises(RuntimeError, match="the rig sees nothing"):
        false_drains([msgspec.structs.replace(_FINE, sees=False)])


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to build the NVML emulator")
def test_the_rig_sees_a_drain_and_survives_its_faults(tmp_path: Path) -> None:
    """A sick node is drained by it; after a damaged module everything is whole again."""
    folder = tmp_path / "bench"
    folder.mkdir(mode=0o755)
    rig = Rig(folder / "rig", build(tmp_path / "nvml").parent)
    before = {path: path.read_text() for path in rig.modules()}
    rig.heal()
    seen = rig.start()
    assert (seen.exit, seen.drained, seen.log) == (0, False, ())
    sicken(rig)
    seen = rig.start()
    assert (seen.exit, seen.drained) == (1, True), seen.log
    assert "gpu.ecc" in rig.slurm.seen[1]
    assert not one_run(rig, 7).false
    dice = random.Random(1)  # noqa: S311  no secret
    for fault in FAULTS[:2]:
        fault.plant(rig, dice)[2]()
    assert {path: path.read_text() for path in rig.modules()} == before
