"""A real Slurm over the lab's hosts: munge and slurmctld beside them, slurmd on each of them.

slurmd runs inside all of its host's namespaces, so jobs see that host's GPUs, /sys and processes,
and end with it. Everything lies in the lab's folder and listens on the lab's own addresses only,
so that several labs, each with its Slurm, live on one machine.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.lab import slurm_conf
from tests.lab.host import PATH
from tests.lab.inside import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from tests.lab.cluster import Lab
    from tests.lab.host import Host
    from tests.lab.slurm_conf import Settings

_PROGRAMS = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
}
"""Programs, and the Debian packages that hold them."""

# Process 1 of the daemons' own namespace: when its owner dies its input ends, and they all die.
_KEEPER = """
set -e
hostname controller
mount --bind "$2" /etc/hosts
munged --foreground --force --socket="$1/munge.socket" --key-file="$1/munge.key" \
    --pid-file="$1/munge.pid" --log-file="$1/munge.log" --seed-file="$1/munge.seed" </dev/null &
slurmctld -D -f "$1/slurm.conf" </dev/null >"$1/slurmctld.out" 2>&1 &
cat >/dev/null
"""
_STARTS_S = 60.0


def why_not() -> str | None:
    """Say why no Slurm can be had here (a lab can), or None if one can."""
    missing = {package for tool, package in _PROGRAMS.items() if not shutil.which(tool, path=PATH)}
    return f"no Slurm here: apt-get install {' '.join(sorted(missing))}" if missing else None


@dataclass
class Slurm:
    """One cluster: `with Slurm(lab) as slurm: slurm.run(["srun", "-N3", "hostname"])`.

    `settings` adds lines to slurm.conf, to its nodes, or a prolog (`tests.lab.slurm_conf`).
    """

    lab: Lab
    settings: Settings = field(default_factory=slurm_conf.Settings)
    _keeper: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)
    _slurmds: dict[str, subprocess.Popen[bytes]] = field(
        default_factory=dict, init=False, repr=False
    )

    @property
    def folder(self) -> Path:
        """Where its configuration, keys, state and logs lie."""
        return self.lab.folder / "slurm"

    @property
    def environ(self) -> dict[str, str]:
        """What a person's shell on any machine of the cluster has."""
        return {"PATH": PATH, "SLURM_CONF": str(self.folder / "slurm.conf"), "LANG": "C.UTF-8"}

    def __enter__(self) -> Self:
        try:
            slurm_conf.write(self.folder, self.lab, self.settings)
            key = self.folder / "munge.key"
            key.write_bytes(secrets.token_bytes(128))
            key.chmod(0o400)
            self._start_controller()
            self.heal()
        except TimeoutError as error:
            said = self._last_words()
            self.close()
            raise RuntimeError(f"{error}; {said}") from error
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End its jobs and daemons, and leave nothing behind."""
        if self._keeper is not None and self._keeper.poll() is None:
            self._cancel_all()
            with suppress(TimeoutError):
                until(lambda: not self.jobs(), "its jobs to end")
        for name in list(self._slurmds):
            self.stop_slurmd(name)
        if self._keeper is not None:
            assert self._keeper.stdin is not None
            self._keeper.stdin.close()
            self._keeper.wait(timeout=10)
            self._keeper = None
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- using it

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout_s: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the controller's side, as on a login node, and return what it said."""
        return subprocess.run(
            list(map(str, argv)),
            env={**self.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=check,
            timeout=timeout_s,
        )

    @contextmanager
    def allocation(self) -> Iterator[dict[str, str]]:
        """Hold all nodes, as salloc does for a person; what his shell then knows of it."""
        number = len(self.lab.hosts)
        said = self.run(["salloc", "--no-shell", f"-N{number}"]).stderr
        job = next(word for word in reversed(said.split()) if word.isdecimal())
        names = ",".join(self.lab.hosts)
        try:
            yield {**self.environ, "SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": names}
        finally:
            self.run(["scancel", job])

    def states(self) -> dict[str, str]:
        """Slurm's word for each node's state: `{"h1": "idle", ...}`."""
        told = self.run(["sinfo", "-hN", "-o", "%N %T"], check=False).stdout
        return dict(line.split() for line in told.splitlines())

    def jobs(self) -> list[str]:
        """Every job that waits, runs or ends now."""
        return self.run(["squeue", "-h", "-o", "%i"], check=False).stdout.split()

    def steps(self) -> list[str]:
        """Every step that runs now: `["3.0", "3.batch"]`."""
        return self.run(["squeue", "-hs", "-o", "%i"]).stdout.split()

    def heal(self) -> None:
        """Make it healthy again: no jobs, a slurmd on every host, every node idle."""
        self._cancel_all()
        for host in self.lab.hosts.values():
            running = self._slurmds.get(host.name)
            if running is None or running.poll() is not None:
                self.start_slurmd(host)
        until(self._idle, "the nodes to be idle", _STARTS_S)

    def start_slurmd(self, host: Host) -> None:
        """Start slurmd on a host, inside all of its namespaces."""
        with (self.folder / f"{host.name}.out").open("ab") as out:
            self._slurmds[host.name] = subprocess.Popen(
                host.command(["slurmd", "-D", "-N", host.name, "-f", self.folder / "slurm.conf"]),
                env={**self.environ, "HOME": str(host.folder / "home")},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def stop_slurmd(self, name: str) -> None:
        """Kill a host's slurmd, as a crash would; the steps it started go on without it."""
        # Its nsenter stays outside as the parent: the pid to end is that of its child.
        process = self._slurmds.pop(name)
        for pid in _children(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.send_signal(signal.SIGCONT)  # it stopped itself when a test froze its host
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    # -- parts

    def _start_controller(self) -> None:
        own = ["unshare", "--uts", "--pid", "--mount-proc", "--fork", "--kill-child"]
        with (self.folder / "keeper.out").open("ab") as out:
            self._keeper = subprocess.Popen(
                [*own, "sh", "-c", _KEEPER, "sh", self.folder, self.lab.folder / "hosts"],
                env=self.environ,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
            )
        until(self._answers, "slurmctld to answer", _STARTS_S)

    def _answers(self) -> bool:
        return self.run(["scontrol", "ping"], check=False).returncode == 0

    def _last_words(self) -> str:
        """What the daemons wrote last: the folder goes with the cluster."""
        files = [*self.folder.glob("*.out"), *self.folder.glob("*.log")]
        ends = {file.name: file.read_text(errors="replace").splitlines()[-3:] for file in files}
        return "; ".join(f"{name}: {' | '.join(lines)}" for name, lines in ends.items())

    def _cancel_all(self) -> None:
        self.run(["scancel", "--quiet", "--full", "--user=root", "--signal=KILL"], check=False)
        self.run(["scancel", "--quiet", "--user=root"], check=False)

    def _idle(self) -> bool:
        states = self.states()
        stuck = [n for n, state in states.items() if not state.startswith(("idle", "unknown"))]
        for name in stuck:
            self.run(["scontrol", "update", f"nodename={name}", "state=resume"], check=False)
        return set(states) == set(self.lab.hosts) and set(states.values()) == {"idle"}


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
