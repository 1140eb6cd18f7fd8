"""The way to a node as the inventory and the user's own `ssh` describe it together."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.fleet.files import read_regular

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preflight.fleet.model import Host
    from preflight.transport.sshask import Effective

PORT = 22
KNOWN_HOSTS = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
IDENTITIES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_LARGEST_KEY = 64 << 10


class Route(Struct, frozen=True, kw_only=True):
    """Where to connect, as whom, with which keys, and who vouches for the host."""

    hostname: str
    port: int
    user: str
    identity_files: tuple[str, ...]
    use_agent: bool
    known_hosts: tuple[str, ...]
    alias: str | None = None
    typed: str = ""
    """What a person gives to `ssh`: a host that its configuration may know by another name."""
    ssh_config: str | None = None
    via: str = ""
    """The jump host on the way, if there is one."""

    @property
    def known_names(self) -> tuple[str, ...]:
        """The host's names in known_hosts files, the exact one first.

        Like OpenSSH, a key without a port vouches for the host on every port.
        """
        if self.alias:
            return (self.alias,)
        if self.port == PORT:
            return (self.hostname,)
        return (f"[{self.hostname}]:{self.port}", self.hostname)

    @property
    def where(self) -> str:
        """Where somebody should listen, as sentences say it."""
        return f"{self.hostname} port {self.port}" + (f" behind {self.via}" if self.via else "")

    @property
    def whom(self) -> str:
        """Who logs in where, as sentences say it."""
        return f"{self.user}@{self.hostname}"


def route_to(host: Host, config: Effective) -> Route:
    """What the inventory says of the way in, and `ssh -G` where it says nothing."""
    return Route(
        hostname=config.one("hostname") or host.address,
        port=host.port or int(config.one("port") or PORT),
        user=host.user or config.one("user") or getpass.getuser(),
        identity_files=identity_files(host, config),
        use_agent=not host.identity_file and config.one("identityagent") != "none",
        known_hosts=known_hosts_files(host, config),
        alias=config.one("hostkeyalias") or None,
        typed=host.address,
        ssh_config=host.ssh_config,
    )


def identity_files(host: Host, config: Effective) -> tuple[str, ...]:
    """The inventory's key whether or not it is there; else those of ssh that are."""
    if host.identity_file:
        return _expanded([host.identity_file])
    identities = config.every("identityfile") or IDENTITIES
    return tuple(file for file in _expanded(identities) if Path(file).is_file())


def read_key(file: str) -> bytes:
    """Read a key or its public half, which anybody may have put there; OSError in words."""
    return read_regular(Path(file), _LARGEST_KEY)


def known_hosts_files(host: Host, config: Effective) -> tuple[str, ...]:
    """Where host keys are looked up."""
    files = config.one("userknownhostsfile") + " " + config.one("globalknownhostsfile")
    known_hosts = [host.known_hosts] if host.known_hosts else files.split() or KNOWN_HOSTS
    return tuple(file for file in _expanded(known_hosts) if file != "none")


def _expanded(files: Iterable[str]) -> tuple[str, ...]:
    return tuple(str(Path(file).expanduser()) for file in files)
