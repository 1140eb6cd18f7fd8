"""A real Slurm whose nodes run the hook from contrib/slurm, edited as an operator would edit it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preflight.hook.tokens import MARK
from tests.lab.inside import until
from tests.lab.slurm_conf import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.lab.cluster import Lab
    from tests.lab.slurm import Slurm

CONTRIB = Path(__file__).parents[2] / "contrib" / "slurm"
PREFLIGHT = Path(sys.executable).with_name("preflight")
NO_HOLD = "SchedulerParameters=nohold_on_prolog_fail"
LONGEST_S = 90
"""Only so that a hang ends the test; nothing is asserted about time."""

HOOK = """
inventory = "{folder}/fleet.toml"
enforce = {enforce}
state_dir = "{folder}/state-{node}"
log = "stderr"
undrain_after_s = 0
budget_s = {budget_s}
# A slurmd of the lab may lock little memory, as its machine is configured.
skip = ["host.memlock", "host.load", "host.memory", "host.disk"]
[breaker]
{breaker}
"""


@dataclass
class Hook:
    """The hook's files of one cluster, beside the lab's."""

    lab: Lab
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.lab.folder / "hook"
        (self.folder / "prolog.d").mkdir(parents=True)
        self._install()
        (self.folder / "breaker").mkdir()
        self.reset()

    @property
    def settings(self) -> Settings:
        """Slurm with GPUs, this prolog, and a health check that is due every two seconds."""
        check = self.folder / "due"
        check.write_text(
            f'#!/bin/sh\n[ -e "{self.folder}/due.$SLURMD_NODENAME" ] || exit 0\n'
            f"export SLURM_CONF={self.lab.folder}/slurm/slurm.conf\n"
            f"exec {self.folder}/healthcheck\n"
        )
        check.chmod(0o755)
        patient = ("BatchStartTimeout=70", "MessageTimeout=70")
        return Settings(
            lines=("GresTypes=gpu", *patient, *self._snippet(check)),
            node="Gres=gpu:8",
            gres="Name=gpu File=/dev/nvidia[0-7]\n",
        )

    def _snippet(self, check: Path) -> list[str]:
        """The lines that an operator adds to slurm.conf, in places and times of a test."""
        text = (CONTRIB / "slurm.conf.snippet").read_text()
        for wrong, right in (
            ("/etc/slurm/prolog.d/*", f"{self.folder}/prolog.d/*"),
            ("/etc/slurm/preflight-healthcheck", str(check)),
            ("Interval=300", "Interval=2"),
            ("Timeout=30", "Timeout=70"),
        ):
            assert wrong in text
            text = text.replace(wrong, right)
        return [line for line in text.splitlines() if line and not line.startswith("#")]

    def reset(self) -> None:
        """Healthy configuration, nothing remembered, no token taken, no health check due."""
        shutil.copy(self.lab.inventory(), self.folder / "fleet.toml")
        for left in self.folder.glob("state-*"):
            shutil.rmtree(left)
        for token in (self.folder / "breaker").iterdir():
            token.unlink()
        (self.folder / "breaker" / MARK).touch()
        self.configure(f'directory = "{self.folder}/breaker"')

    def configure(self, breaker: str, budget_s: int = 40, enforce: str = "true") -> None:
        """Write each node's hook.toml: the hosts of a lab share what real nodes have each."""
        for node in self.lab.hosts:
            words = {"node": node, "budget_s": budget_s, "enforce": enforce, "breaker": breaker}
            text = HOOK.format(folder=self.folder, **words)
            (self.folder / f"{node}.toml").write_text(text)

    def last(self, node: str) -> dict[str, Any]:
        """What the hook wrote of a node; nothing where all was well."""
        file = self.folder / f"state-{node}" / "last.json"
        said: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return said

    def action(self, node: str) -> str:
        """What it did there last."""
        return str((self.last(node).get("decision") or {}).get("action", ""))

    def due(self, node: str) -> None:
        """Let Slurm's health check look at this node from now on."""
        (self.folder / f"due.{node}").touch()

    def quiet(self) -> None:
        """No health check is due any more, and none runs: a host must not change under its eyes."""
        for due in self.folder.glob("due.*"):
            due.unlink()
        until(lambda: not self._checking(), "the health checks to end", LONGEST_S)

    def _checking(self) -> list[str]:
        words = ["pgrep", "-f", f"{self.folder}/(due|healthcheck|.*toml)"]
        hosts = self.lab.hosts.values()
        return [host.name for host in hosts if host.run(words, check=False).returncode == 0]

    def _install(self) -> None:
        """Install as an operator does; then let the hosts of a lab have a hook.toml each."""
        image = self.folder / "image"
        words = (str(PREFLIGHT), "install-hook", f"--prefix={image}")
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        changes = {"/etc/preflight/hook.toml": f"{self.folder}/$SLURMD_NODENAME.toml"}
        changes["\nLIMIT_S="] = "\nLIMIT_S=6"  # the tests' machine may be busy with other tests
        for name, installed in (
            ("prolog.d/50-preflight", "prolog.d/50-preflight"),
            ("healthcheck", "preflight-healthcheck"),
        ):
            edit(image / "etc/slurm" / installed, self.folder / name, changes)


def edit(source: Path, target: Path, changes: Mapping[str, str]) -> None:
    """Change what an operator changes in one of our scripts."""
    text = source.read_text()
    for wrong, right in changes.items():
        assert wrong in text
        text = text.replace(wrong, right)
    target.write_text(text)
    target.chmod(0o755)


def reasons(slurm: Slurm) -> dict[str, str]:
    """The reason of every node that carries one."""
    told = slurm.run(["sinfo", "-hN", "-o", "%N|%E"]).stdout
    rows = (line.split("|", 1) for line in told.splitlines() if "|" in line)
    return {node: reason for node, reason in rows if reason != "none"}


def submitted(slurm: Slurm, *words: str) -> tuple[str, Path]:
    """A batch job that writes where it ran; its number, and the file."""
    out = slurm.folder / "job-%j.out"
    told = slurm.run(["sbatch", "--parsable", "-o", out, *words, "--wrap", "srun hostname"]).stdout
    return told.strip(), Path(str(out).replace("%j", told.strip()))


def ran_on(slurm: Slurm, job: tuple[str, Path]) -> list[str]:
    """Wait for a job to end; the nodes that it ran on."""
    until(lambda: job[0] not in slurm.jobs(), f"job {job[0]} to end", LONGEST_S)
    return sorted(job[1].read_text().split())
