"""The door of a lab host: a real sshd with its own keys, and the login it leads to."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.inside import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.host import Host

PORT = 22
_CONFIG = """
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {lab}/controller.pub
PidFile {folder}/sshd.pid
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
PrintLastLog no
"""


def prepare(host: Host) -> None:
    """Write its key and configuration, and a passwd file where root has a home of its own."""
    keygen(host.folder / "host_key", host.name)
    words = {"address": host.address, "folder": host.folder, "lab": host.lab}
    (host.folder / "sshd_config").write_text(_CONFIG.format(**words))
    users = Path("/etc/passwd").read_text()
    home = rf"\g<1>:{host.folder / 'home'}:\g<2>"
    at_home = re.sub(r"^(root:.*):[^:]*:([^:]*)$", home, users, flags=re.MULTILINE)
    (host.folder / "passwd").write_text(at_home)


def argv(host: Host, path: str) -> list[str]:
    """The command that serves the host."""
    program = shutil.which("sshd", path=path) or "/usr/sbin/sshd"
    files = ["-f", str(host.folder / "sshd_config"), "-E", str(host.folder / "sshd.log")]
    return [program, "-D", *files]


def answers(host: Host) -> bool:
    """Whether somebody greets at its port."""
    try:
        with socket.create_connection((host.address, PORT), timeout=5) as door:
            return bool(door.recv(1))
    except OSError:
        return False


@contextmanager
def changed_key(host: Host) -> Iterator[None]:
    """Serve with another host key for a while."""
    key, old = host.folder / "host_key", host.folder / "host_key.old"
    key.rename(old)
    keygen(key, host.name)
    _reload(host)
    try:
        yield
    finally:
        old.rename(key)
        _reload(host)


def keygen(key: Path, comment: str) -> None:
    """Make an ed25519 key pair beside each other."""
    key.with_name(f"{key.name}.pub").unlink(missing_ok=True)
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f"]
    subprocess.run([*argv, key], check=True)


def _reload(host: Host) -> None:
    pid_file = host.folder / "sshd.pid"
    pid = pid_file.read_text().strip()
    pid_file.unlink()
    host.run(["sh", "-c", f"kill -HUP {pid}"])
    until(lambda: pid_file.exists() and answers(host), f"sshd of {host.name}")
