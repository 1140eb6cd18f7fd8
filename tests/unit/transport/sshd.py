"""A real sshd on loopback under a test's own control, and the process table it leaves behind."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.fleet.model import Host

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 20.0
"""No test should hang; none should depend on how long anything takes."""


class Sshd:
    """One sshd with its own host key and authorized key, all in one folder."""

    def __init__(self, folder: Path, extra: str = "") -> None:
        self.folder = folder
        self.port = free_port()
        self.host_key = new_key(folder / "host_key")
        self.identity = new_key(folder / "identity")
        shutil.copy(f"{self.identity}.pub", folder / "authorized_keys")
        self.known_hosts = folder / "known_hosts"
        self.vouch(self.host_key)
        (folder / "sshd_config").write_text(
            f"{extra}\nPort {self.port}\nListenAddress 127.0.0.1\nHostKey {self.host_key}\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\n"
            f"PidFile none\nLogLevel VERBOSE\nMaxStartups 100\n"
        )
        self._log = folder / "log"
        program = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin") or "sshd"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [program, "-D", "-e", "-f", str(folder / "sshd_config")],
                stdin=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        wait_until(lambda: "Server listening" in self._log.read_text(), "sshd listens")

    def vouch(self, key: Path) -> None:
        """Write a known_hosts by which this host has that key."""
        kind, blob = Path(f"{key}.pub").read_text().split()[:2]
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {kind} {blob}\n")

    def host(self, **changes: object) -> Host:
        """Describe it as an inventory would."""
        fields: dict[str, object] = {
            "name": "h1",
            "address": "127.0.0.1",
            "port": self.port,
            "user": getpass.getuser(),
            "identity_file": str(self.identity),
            "known_hosts": str(self.known_hosts),
            "python": (sys.executable,),
        }
        return Host(**(fields | changes))  # type: ignore[arg-type]

    def ssh_config(self, alias: str, *lines: str) -> str:
        """Describe it as a user's ssh configuration would."""
        words = (
            f"Host {alias}",
            "HostName 127.0.0.1",
            f"Port {self.port}",
            f"IdentityFile {self.identity}",
            "IdentitiesOnly yes",
            f"UserKnownHostsFile {self.known_hosts}",
            "GlobalKnownHostsFile /dev/null",
            *lines,
        )
        return "\n  ".join(words) + "\n"

    def log(self) -> str:
        """What it has written to its log so far."""
        return self._log.read_text()

    def reload(self, *lines: str) -> None:
        """Go on with more lines in its configuration, which count only where it had none."""
        before = self.log().count("Server listening")
        with (self.folder / "sshd_config").open("a") as config:
            config.writelines(f"{line}\n" for line in lines)
        os.kill(self.process.pid, signal.SIGHUP)
        wait_until(lambda: self.log().count("Server listening") > before, "sshd restarted")

    def sessions(self) -> list[int]:
        """Pids of everything that descends from it."""
        return descendants(self.process.pid)

    def stop(self) -> None:
        """End it and every session of it, by pid."""
        signal_all([*self.sessions(), self.process.pid], signal.SIGKILL)
        self.process.wait()


def why_no_sshd() -> str:
    """Say why no sshd can run here; empty if one can."""
    if shutil.which("sshd", path="/usr/sbin:/usr/local/sbin") is None:
        return "no sshd on this machine"
    try:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    except OSError as error:
        return f"sshd needs /run/sshd: {error}"
    return ""


def signal_all(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to processes, some of which may have ended by now."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def new_key(path: Path) -> Path:
    """Make an ed25519 key pair."""
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)]
    subprocess.run(argv, check=True)
    return path


def free_port() -> int:
    """Return a port on which no process listens right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def descendants(pid: int) -> list[int]:
    """Pids of all children and their children."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        new = children.get(todo.pop(), [])
        found += new
        todo += new
    return found


def processes_with(token: str) -> list[int]:
    """Pids whose command line holds a token that only one test uses."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):  # a pattern for the file itself asks of ended ones
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            if token.encode() in command and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


def wait_until(true: Callable[[], object], what: str) -> None:
    """Wait for a condition that must come, however slow the machine."""
    ends = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > ends:
            raise AssertionError(f"not within {PATIENCE_S} s: {what}")
        time.sleep(0.02)
