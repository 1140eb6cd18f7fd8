"""The allocation that we run in, and how its launcher is called."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cached_property
from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.fleet.nodeset import fold

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ASK_S = 10.0
"""For Slurm's commands that only ask."""

KNOWS_OVERLAP = (20, 11)
_KEPT = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_WORKING_CLUSTER")
_VERSION = re.compile(r"slurm\S{0,40}\s+(\d+)\.(\d+)")


def offers_srun(environ: Mapping[str, str]) -> bool:
    """Whether we run inside an allocation whose launcher is at hand."""
    return bool(environ.get("SLURM_JOB_ID")) and shutil.which("srun") is not None


def refuse_many(environ: Mapping[str, str]) -> None:
    """Refuse to be one of several tasks: each would judge, and load, the whole fleet.

    Ranks of torchrun are another matter: those know of each other.
    """
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if "TORCHELASTIC_RUN_ID" not in environ and tasks.isdecimal() and int(tasks) > 1:
        raise UsageError(
            f"this is one of {tasks} tasks of a Slurm step, and each would judge the whole fleet: "
            "run pytest --preflight once, in the batch script or after salloc, without srun"
        )


def clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for Slurm's commands: our allocation, without its wishes for steps.

    SLURM_NTASKS, SLURM_MEM_PER_CPU and their like are input to srun, and would bend our one step.
    """
    foreign = ("SLURM_", "SRUN_", "SLURMD_")
    kept = {name: environ[name] for name in _KEPT if name in environ}
    return {k: v for k, v in environ.items() if not k.startswith(foreign)} | kept


class Launcher:
    """Starts commands through srun inside one allocation."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = clean(environ)

    def command(self, nodes: Sequence[str]) -> list[str]:
        """Return the one srun for these nodes, which wants the task's own words behind it.

        Its options hold against those that slurm.conf, the site's defaults and the job would have.
        """
        words = ["srun", "--job-name=preflight", f"--nodes={len(nodes)}"]
        words += [f"--nodelist={fold(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1"]
        words += ["--mpi=none", "--export=ALL", "--chdir=/", "--input=all", "--quit-on-interrupt"]
        # The job's own steps may hold everything; we take nothing away from them.
        words += [*self._sharing, "--mem=0", "--cpu-bind=none"]
        # One node's trouble must end neither the others nor the job.
        return [*words, "--no-kill", "--kill-on-bad-exit=0", "--wait=0"]

    def states(self, nodes: Sequence[str]) -> str:
        """Return a line NAME|STATE|REASON for each of these nodes, more than one if need be."""
        listing = ["sinfo", "--all", "--noheader", "--Node", f"--nodes={fold(nodes)}"]
        return ask([*listing, "--format=%N|%T|%E"], self.environ)

    @cached_property
    def ports(self) -> range | None:
        """The ports that a firewall between Slurm's nodes lets through, where Slurm names some."""
        told = ask(["scontrol", "show", "config"], self.environ)
        found = re.search(r"^SrunPortRange\s*=\s*(\d+)-(\d+)", told, re.MULTILINE)
        span = range(int(found[1]), int(found[2]) + 1) if found else range(0)
        return span if span and span[0] > 0 else None

    @cached_property
    def _sharing(self) -> tuple[str, ...]:
        """Steps share what the job has by themselves before 20.11, and when asked to since."""
        found = _VERSION.search(ask(["srun", "--version"], self.environ))
        old = found is not None and (int(found[1]), int(found[2])) < KNOWS_OVERLAP
        return () if old else ("--overlap",)


def ask(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return what one of Slurm's commands says; nothing if it says nothing in time."""
    try:
        done = subprocess.run(
            argv,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")
