"""A real Slurm is asked: which nodes share a leaf switch, and which of them nobody uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.inside import until
from tests.stories.conftest import LONGEST_S, clean_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.lab.slurm import Slurm
    from tests.stories.conftest import Told

    Done = subprocess.CompletedProcess[str]

pytestmark = pytest.mark.lab

PREFLIGHT = str(Path(sys.executable).with_name("preflight"))
RESERVATION = Path(__file__).parents[2] / "contrib" / "nightly" / "reservation.sh"


def _environ(slurm: Slurm) -> dict[str, str]:
    path = {"PATH": f"{slurm.environ['PATH']}:{os.environ['PATH']}"}
    return {**clean_environment(), **slurm.environ, **path}


def test_the_allocations_leaves_are_known(slurm: Slurm, preflight: Callable[..., Told]) -> None:
    """Nothing is said on the command line: scontrol is asked, and the header says so."""
    path = {"PATH": f"{slurm.environ['PATH']}:{os.environ['PATH']}"}
    job = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "h[1-4]"}
    words = ("--co", "--preflight-sweep=1", "--preflight-seed=4")
    told = preflight(*words, env={**slurm.environ, **path, **job})
    assert told.exit == 0, told.out + told.err
    assert "seed 4; 2 leaves by scontrol show topology" in " ".join(told.out.split())


@pytest.fixture
def sweep(slurm: Slurm, tmp_path: Path) -> Iterator[Callable[..., Done]]:
    """Sweep the lab's hosts; reservations go with the test."""
    inventory = slurm.lab.inventory("night.toml")
    yield lambda *words: subprocess.run(
        [PREFLIGHT, "nightly", f"--preflight-inventory={inventory}", "--wave=2", *words],
        cwd=tmp_path, env=_environ(slurm), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=LONGEST_S, check=False,
    )  # fmt: skip
    for name in ("preflight", "now"):
        slurm.run(["scontrol", "delete", f"reservation={name}"], check=False)


def test_a_sweep_looks_at_idle_nodes_only(
    slurm: Slurm, sweep: Callable[..., Done], tmp_path: Path
) -> None:
    """A node with a job and one that is drained are left out and named; so are others' nodes."""
    slurm.run(["sbatch", "-w", "h2", "-o", "/dev/null", "--wrap", "sleep 300"])
    slurm.run(["scontrol", "update", "nodename=h3", "state=drain", "reason=cable, see ticket 7"])
    until(lambda: slurm.states()["h2"] in ("allocated", "mixed"), "the job to start", 60)
    done = sweep("--idle", "-m", "preflight_reach")
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("preflight-nightly/2*/report.json")
    told: dict[str, Any] = json.loads(path.read_text())
    assert told["fleet"]["ready"] == ["h1", "h4"]
    assert told["fleet"]["left_out"] == {
        "h2": f"in use ({slurm.states()['h2']})",
        "h3": "drained: cable, see ticket 7",
    }
    made = slurm.run(["sh", RESERVATION, "h[1-4]"], check=False)
    assert made.returncode == 0, made.stderr
    early = sweep("--reservation=preflight", "--plan")
    assert "is not active: start the nightly run at" in early.stderr
    assert early.returncode == 4
    slurm.run(["scontrol", "delete", "reservation=preflight"])  # at night it would overlap the next
    now = ["StartTime=now", "Duration=10", "Users=root", "Flags=IGNORE_JOBS", "Nodes=h[1-3]"]
    slurm.run(["scontrol", "create", "reservation", "ReservationName=now", *now])
    until(lambda: slurm.states()["h1"] == "reserved", "the reservation to begin", 60)
    planned = sweep("--reservation=now", "--plan")
    assert planned.returncode == 0, planned.stdout + planned.stderr
    assert "wave 1/1   h1  1\n" in planned.stdout
    assert "left out   h4  1: not in the reservation\n" in planned.stdout
    assert ", until " in " ".join(planned.stdout.split())
    others = sweep("--idle", "--plan")
    assert "wave 1/1   h4  1\n" in others.stdout, others.stdout + others.stderr
    assert "left out   h1  1: reserved for others (reserved)\n" in others.stdout
