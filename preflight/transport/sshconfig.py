"""The way to a node as the user's own `ssh` would take it: asked of OpenSSH, never parsed by us."""

from __future__ import annotations

import getpass
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.transport.legible import legible
from preflight.transport.protocol import ReachError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from preflight.fleet.model import Host

PORT = 22
KNOWN_HOSTS = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
IDENTITIES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")


class Route(Struct, frozen=True, kw_only=True):
    """Where to connect, as whom, with which keys, and who vouches for the host."""

    hostname: str
    port: int
    user: str
    identity_files: tuple[str, ...]
    use_agent: bool
    known_hosts: tuple[str, ...]
    alias: str | None = None

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


def route_to(host: Host, timeout_s: float) -> Route:
    """What the inventory says of the way in, and `ssh -G` where it says nothing."""
    config = _effective(host, timeout_s)
    _refuse_jump_hosts(config)
    files = _one(config, "userknownhostsfile") + " " + _one(config, "globalknownhostsfile")
    known_hosts = [host.known_hosts] if host.known_hosts else files.split() or KNOWN_HOSTS
    identities = config.get("identityfile", IDENTITIES)
    return Route(
        hostname=_one(config, "hostname") or host.address,
        port=host.port or int(_one(config, "port") or PORT),
        user=host.user or _one(config, "user") or getpass.getuser(),
        identity_files=_expanded([host.identity_file])
        if host.identity_file
        else tuple(file for file in _expanded(identities) if Path(file).is_file()),
        use_agent=not host.identity_file and _one(config, "identityagent") != "none",
        known_hosts=tuple(file for file in _expanded(known_hosts) if file != "none"),
        alias=_one(config, "hostkeyalias") or None,
    )


def _effective(host: Host, timeout_s: float) -> dict[str, list[str]]:
    """Keys of `ssh -G` in lower case, each with all its values; empty where there is no ssh."""
    ssh = shutil.which("ssh")
    if ssh is None:
        return {}
    port = ["-p", str(host.port)] if host.port else []
    user = ["-l", host.user] if host.user else []
    argv = [ssh, "-G", *port, *user, "--", host.address]
    try:
        asked = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=True
        )
    except subprocess.TimeoutExpired as error:
        raise _unreadable(host, f"no answer in {timeout_s:g} s") from error
    except subprocess.CalledProcessError as error:
        raise _unreadable(host, legible(error.stderr) or f"exit {error.returncode}") from error
    config: dict[str, list[str]] = {}
    for line in asked.stdout.decode("utf-8", "replace").splitlines():
        key, _, value = line.partition(" ")
        config.setdefault(key.lower(), []).append(value)
    return config


def _unreadable(host: Host, reason: str) -> ReachError:
    return ReachError(
        "route",
        f"ssh's configuration for it cannot be read: {reason}",
        f"correct ~/.ssh/config until `ssh -G -- {shlex.quote(host.address)}` works",
    )


def _refuse_jump_hosts(config: Mapping[str, Sequence[str]]) -> None:
    for way in ("proxyjump", "proxycommand"):
        through = _one(config, way)
        if through not in ("", "none"):
            raise ReachError(
                "route",
                f"ssh's configuration reaches it by {way} {legible(through, 80)}: "
                "a jump host is not supported yet",
                "run preflight where the node is reached directly, on the jump host for example",
            )


def _one(config: Mapping[str, Sequence[str]], key: str) -> str:
    return next(iter(config.get(key, ())), "")


def _expanded(files: Iterable[str]) -> tuple[str, ...]:
    return tuple(str(Path(file).expanduser()) for file in files)
