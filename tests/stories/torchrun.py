"""Starts real torchruns, one per node, and keeps what each said; whatever a test does, all end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.lab.inside import until
from tests.stories.conftest import LONGEST_S, Told, clean_environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from tests.lab.host import Host

LOGIN = {"reach.name", "reach.route", "reach.hostkey", "reach.login"}
"""Not needed in this way: `not_run` here, judged over SSH."""

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))


@dataclass
class Agent:
    """One torchrun: its exit code and output once it has ended."""

    process: subprocess.Popen[str]
    exit: int | None = None
    out: str = ""
    err: str = ""
    _reader: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        self.out, self.err = self.process.communicate()
        self.exit = self.process.returncode

    def wait(self) -> Agent:
        """Wait for its end; LONGEST_S only so that a hang ends the test."""
        self._reader.join(LONGEST_S)
        assert self.exit is not None, "this torchrun did not end"
        return self

    def stop(self) -> None:
        """End it and its ranks, if it still runs."""
        if self.exit is None:
            self.process.send_signal(signal.SIGTERM)
            self._reader.join(40)
            with suppress(ProcessLookupError):
                self.process.kill()


class Agents:
    """All torchruns of one job: `with Agents(tmp_path) as job: job.start([...]); job.told()`."""

    def __init__(self, folder: Path) -> None:
        self.report = folder / "report"
        self.working = folder / "empty"
        self.working.mkdir(exist_ok=True)
        self.every: list[Agent] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for agent in self.every:
            agent.stop()

    def start(
        self,
        options: Sequence[str],
        *arguments: str,
        inside: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> Agent:
        """Start one torchrun with its options and pytest's arguments, also `inside` a lab host."""
        pytest = ["-m", "pytest", "-p", "no:cacheprovider", "--preflight"]
        command = [TORCHRUN, *options, *pytest, f"--preflight-report={self.report}", *arguments]
        process = subprocess.Popen(
            [*inside, *command],
            cwd=self.working,
            env={**clean_environment(), "OMP_NUM_THREADS": "1", **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self.every.append(Agent(process))
        return self.every[-1]

    def told(self) -> Told:
        """Wait for all, and return the one report with what rank 0's torchrun showed."""
        for agent in self.every:
            agent.wait()
        speaking = [agent for agent in self.every if agent.out.strip()]
        assert len(speaking) == 1, [agent.out for agent in self.every]
        only = speaking[0]
        return Told(only.exit or 0, only.out, only.err, self.report)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_two_nodes(
    job: Agents, port: int, *arguments: str, env: Mapping[str, str] | None = None
) -> None:
    """Start two torchruns on this machine, the second once the first hosts the job's store.

    Whoever comes to the port first hosts it, and with it ends the job: let it not be by chance.
    """
    job.start(two_nodes(port), *arguments, env=env)
    until(lambda: _listens(port), "the first torchrun to host the store", 60)
    job.start(two_nodes(port), *arguments, env=env)


def _listens(port: int) -> bool:
    """As the kernel says: to connect would be a client of the store."""
    rows = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
    ]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


def start_on(job: Agents, hosts: Sequence[Host], *arguments: str) -> None:
    """Start one torchrun of one rank on each of these lab hosts; the first is the master."""
    for number, host in enumerate(hosts):
        options = [
            f"--nnodes={len(hosts)}",
            "--nproc-per-node=1",
            f"--node-rank={number}",
            f"--master-addr={hosts[0].address}",
            "--master-port=29500",
        ]
        env = {"GLOO_SOCKET_IFNAME": "eth0"}
        job.start(options, *arguments, inside=host.command([]), env=env)


def two_nodes(port: int) -> list[str]:
    """Options of each of two torchruns on this machine, two ranks each."""
    return [
        "--nnodes=2",
        "--nproc-per-node=2",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{port}",
        f"--rdzv-id=job-{os.getpid()}-{port}",
        "--rdzv-conf=join_timeout=60",
    ]


def without_logins(outcomes: set[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
    """Without the exceptions of docs/how-to/torchrun.md: logins, and the job's environment."""
    return {one for one in outcomes if one[0] not in LOGIN and not one[0].startswith("env.")}
