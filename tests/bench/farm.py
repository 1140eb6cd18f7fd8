"""Hundreds of sshd's on loopback, each with its own address: a fleet as wide as memory."""

from __future__ import annotations

import getpass
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

PORT = 22022
"""Of every one of them: they differ by address, as hosts do."""

_LISTENS_S = 60.0

_APART = ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child"]
"""A node sees its own processes only: else each probe would read those of all others."""


class Farm:
    """`with Farm(512) as farm: farm.inventory` names nodes n001 to n512, one sshd each."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._folder = Path(tempfile.mkdtemp(prefix="preflight-farm-"))
        self._running: list[subprocess.Popen[bytes]] = []
        self.inventory = self._folder / "fleet.toml"

    def __enter__(self) -> Self:
        try:
            self._write()
            for number in range(self._nodes):
                self._start(number)
            self._await_all()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    @property
    def pids(self) -> tuple[int, ...]:
        """The listening processes."""
        return tuple(process.pid for process in self._running)

    def _write(self) -> None:
        """One key pair for all hosts and one for the controller: making keys is not measured."""
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for name in ("host", "controller"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{self._folder}/{name}"]
            subprocess.run(words, check=True)
        kind, blob = (self._folder / "host.pub").read_text().split()[:2]
        addresses = [_address(number) for number in range(self._nodes)]
        known = (f"[{address}]:{PORT} {kind} {blob}\n" for address in addresses)
        (self._folder / "known_hosts").write_text("".join(known))
        width = len(str(self._nodes))
        nodes = (
            f'[node.n{number:0{width}}]\naddress = "{address}"\n'
            for number, address in enumerate(addresses, 1)
        )
        self.inventory.write_text(
            f'[defaults]\nuser = "{getpass.getuser()}"\nport = {PORT}\ntransport = "paramiko"\n'
            f'python = "{sys.executable}"\nidentity_file = "{self._folder}/controller"\n'
            f'known_hosts = "{self._folder}/known_hosts"\n' + "".join(nodes)
        )

    def _start(self, number: int) -> None:
        folder = self._folder
        options = (
            f"ListenAddress={_address(number)}:{PORT}",
            f"HostKey={folder}/host",
            f"AuthorizedKeysFile={folder}/controller.pub",
            "StrictModes=no",
            "UsePAM=no",
            "PidFile=none",
            "LogLevel=ERROR",
        )
        sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin") or "sshd"
        words = [*_APART, sshd, "-D", "-e", "-f", "/dev/null"]
        for option in options:
            words += ["-o", option]
        with (folder / "sshd.log").open("a") as log:
            self._running.append(
                subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=log, cwd="/")
            )

    def _await_all(self) -> None:
        """Listening sockets are read from the kernel: connecting would cost a handshake each."""
        ends = time.monotonic() + _LISTENS_S
        while (there := _listening()) < self._nodes:
            if time.monotonic() > ends:
                said = (self._folder / "sshd.log").read_text()[-500:]
                raise RuntimeError(f"{there} of {self._nodes} sshd's listen: {said}")
            time.sleep(0.1)

    def _end(self) -> None:
        for process in self._running:
            process.kill()  # unshare waits for its child whatever SIGTERM says; all below it dies
        for process in self._running:
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _address(number: int) -> str:
    """127.77.0.0/16 is loopback like all of 127/8, and nobody else's."""
    return f"127.77.{number // 250}.{number % 250 + 1}"


def _listening() -> int:
    rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
    at = (row.split() for row in rows)
    return sum(
        local.endswith(f"4D7F:{PORT:04X}") and state == "0A" for _, local, _, state, *_ in at
    )
