"""The ways into one fleet: each transport is made once, for all the nodes that it serves."""

from __future__ import annotations

import shutil
import threading
from difflib import get_close_matches
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.core.remote_command import LocalConnection, ReachError
from preflight.errors import UsageError
from preflight.fleet.model import TRANSPORTS
from preflight.transport.fanout import fan_out
from preflight.transport.ssh_config import Asked, why_openssh

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from preflight.fleet.model import Host
    from preflight.transport.protocol import Connection, Transport


def transport_for(name: str, hosts: Sequence[Host] = (), asked: Asked | None = None) -> Transport:
    """Return the transport of that name; UsageError names the nearest if there is none.

    `hosts`: all the nodes that it will serve, for a way that is opened to all of them at once.
    """
    if name == "local":
        return LocalTransport()
    if name == "paramiko":
        from preflight.transport.paramiko_ssh import ParamikoTransport

        return ParamikoTransport(asked)
    if name == "openssh":
        from preflight.transport.openssh import OpenSSHTransport

        return OpenSSHTransport(asked)
    if name == "srun":
        from preflight.transport.srun import SrunTransport

        return SrunTransport(hosts)
    near = get_close_matches(name, TRANSPORTS, n=1)
    meant = f'did you mean "{near[0]}"?' if near else f"write one of: {', '.join(TRANSPORTS)}"
    raise UsageError(f"unknown transport {name[:40]!a}: {meant}")


ASK_S = 10.0
"""For `ssh -G` of one node; a `Match exec` of the user's configuration may take its time."""

ASKED_AT_ONCE = 16


class Way(Struct, frozen=True):
    """How a node is reached, and what decided it where nobody said so."""

    transport: str
    why: str = ""


class Ways:
    """Connects to the nodes of one run. Cheap to make; nothing is contacted before `connect`."""

    def __init__(self, hosts: Iterable[Host]) -> None:
        self._hosts: dict[str, list[Host]] = {}
        for host in hosts:
            self._hosts.setdefault(host.transport, []).append(host)
        self._asked = Asked()
        self._chosen: dict[str, Way] = {}
        self._made: dict[str, Transport] = {}
        self._making = threading.Lock()

    def use(self, transport: Transport) -> None:
        """Take a way that is open already, for the nodes that name it."""
        with self._making:
            self._made[transport.name] = transport

    def way(self, host: Host) -> str:
        """Name the transport that serves a node."""
        return self.choose(host).transport

    def choose(self, host: Host, timeout_s: float = ASK_S) -> Way:
        """Decide between paramiko and OpenSSH where the inventory leaves it open; contacts nobody.

        Where `ssh -G` fails, paramiko: `connect` then says why, as a finding.
        """
        if host.transport != "ssh":
            return Way(host.transport)
        if host.name not in self._chosen:
            try:
                why = why_openssh(host, self._asked.of(host, timeout_s))
            except ReachError:
                why = ""
            usable = why and shutil.which("ssh")
            self._chosen[host.name] = Way("openssh", why) if usable else Way("paramiko")
        return self._chosen[host.name]

    def known(self, deadline_s: float) -> dict[str, Way]:
        """The way to every node by its name; those that take longer to find out are left out."""
        hosts = [host for some in self._hosts.values() for host in some]
        open_ones = [host for host in hosts if host.transport == "ssh"]
        fan_out(
            open_ones,
            self.choose,
            deadline_s=deadline_s,
            at_most=ASKED_AT_ONCE,
        )
        said = {host.name: Way(host.transport) for host in hosts if host.transport != "ssh"}
        return {
            host.name: way
            for host in hosts
            if (way := said.get(host.name) or self._chosen.get(host.name))
        }

    def connect(self, host: Host, timeout_s: float) -> Connection:
        """Log in to a node; raises ReachError that says which step failed."""
        return self._transport(self.choose(host, timeout_s).transport).connect(host, timeout_s)

    def close(self) -> None:
        """Leave everything that was set up for the fleet as a whole. Never raises."""
        with self._making:
            while self._made:
                self._made.popitem()[1].close()

    def _transport(self, name: str) -> Transport:
        with self._making:
            if name not in self._made:
                self._made[name] = transport_for(name, self._hosts.get(name, ()), self._asked)
            return self._made[name]


class LocalTransport:
    """Runs commands as processes of ours: no shell, no network, a session of their own."""

    name = "local"

    def connect(self, host: Host, timeout_s: float) -> LocalConnection:
        """Nothing to connect to: always succeeds."""
        del host, timeout_s
        return LocalConnection()

    def close(self) -> None:
        """Nothing to leave."""
