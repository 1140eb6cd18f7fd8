"""The lab's Slurm is a real one, sees what its hosts see, and goes with them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.lab.cluster import Lab
from tests.lab.inside import until
from tests.lab.slurm import Slurm
from tests.lab.slurm_conf import Settings
from tests.lab.test_leftovers import processes_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.lab


def test_a_job_runs_on_its_hosts(slurm: Slurm) -> None:
    """Tasks start inside the hosts, by their names, and all nodes are idle before and after."""
    assert slurm.states() == dict.fromkeys(("h1", "h2", "h3", "h4"), "idle")
    assert sorted(slurm.run(["srun", "-N3", "hostname"]).stdout.split()) == ["h1", "h2", "h3"]
    until(lambda: slurm.states() == dict.fromkeys(slurm.lab.hosts, "idle"), "the nodes to be idle")
    assert slurm.jobs() == []


def test_a_task_sees_what_its_host_has(slurm: Slurm) -> None:
    """A slurmd lives in all namespaces of its host: emulated GPUs, NICs, processes are there.

    Also from within a batch script, which can start steps on the others.
    """
    sleeper = slurm.lab.hosts["h2"].spawn(["sleep", "54321"])
    look = "nvidia-smi -L | wc -l; ls /sys/class/infiniband | wc -l; pgrep -fc '^sleep 54321'"
    told = slurm.run(["srun", "-w", "h2", "sh", "-c", look]).stdout.split()
    assert told == ["8", "8", "1"]
    sleeper.kill()
    script = slurm.folder / "script"
    script.write_text("#!/bin/sh\nhostname\nsrun --overlap -N2 --ntasks-per-node=1 hostname\n")
    out = slurm.folder / "script.out"
    slurm.run(["sbatch", "-N2", "-w", "h[1-2]", "-o", out, script])
    until(lambda: not slurm.jobs(), "the batch job to end")
    first, *others = out.read_text().split()
    assert (first, sorted(others)) == ("h1", ["h1", "h2"])


def test_it_is_made_whole_again(slurm: Slurm) -> None:
    """A killed slurmd, a host that was down, a drained node and a job left over are all undone."""
    slurm.run(["sbatch", "-N1", "-w", "h1", "--wrap", "sleep 54321"])
    slurm.stop_slurmd("h2")
    slurm.run(["scontrol", "update", "nodename=h3", "state=drain", "reason=test"])
    slurm.lab.hosts["h4"].stop()
    slurm.lab.heal()
    slurm.heal()
    assert set(slurm.run(["srun", "-N4", "hostname"]).stdout.split()) == set(slurm.lab.hosts)


def test_settings_are_heard_and_nothing_is_left(slurm: Slurm, tmp_path: Path) -> None:
    """A prolog that fails drains its node; with the lab go all daemons, jobs and files.

    A second cluster of the same port lives beside the first all the while.
    """
    prolog = tmp_path / "prolog"
    prolog.write_text(f"#!{sys.executable}\nraise SystemExit(1)\n")
    prolog.chmod(0o755)
    settings = Settings(lines=("GresTypes=gpu",), node="Weight=7", prolog=prolog)
    with Lab(hosts=1) as lab, Slurm(lab, settings) as other:
        other.run(["sbatch", "-N1", "--wrap", "sleep 54321"])
        until(lambda: other.states()["h1"].startswith("drain"), "the prolog to drain its node")
        told = other.run(["scontrol", "show", "node", "h1"]).stdout
        assert "Weight=7" in told
        assert "Prolog error" in told
        assert "GresTypes               = gpu" in other.run(["scontrol", "show", "config"]).stdout
        assert processes_of(other.folder)
    assert not other.folder.exists()
    assert not processes_of(lab.folder)
    assert slurm.run(["srun", "-w", "h1", "hostname"]).stdout == "h1\n"
