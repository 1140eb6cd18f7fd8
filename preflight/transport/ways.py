"""The ways into one fleet: each transport is made once, for all the nodes that it serves."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from preflight.transport import transport_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preflight.fleet.model import Host
    from preflight.transport.protocol import Connection, Transport


class Ways:
    """Connects to the nodes of one run. Cheap to make; nothing is contacted before `connect`."""

    def __init__(self, hosts: Iterable[Host]) -> None:
        self._hosts: dict[str, list[Host]] = {}
        for host in hosts:
            self._hosts.setdefault(host.transport, []).append(host)
        self._made: dict[str, Transport] = {}
        self._making = threading.Lock()

    def way(self, host: Host) -> str:
        """Name the transport that serves a node."""
        return host.transport

    def connect(self, host: Host, timeout_s: float) -> Connection:
        """Log in to a node; raises ReachError that says which step failed."""
        return self._transport(self.way(host)).connect(host, timeout_s)

    def close(self) -> None:
        """Leave everything that was set up for the fleet as a whole. Never raises."""
        with self._making:
            while self._made:
                self._made.popitem()[1].close()

    def _transport(self, name: str) -> Transport:
        with self._making:
            if name not in self._made:
                self._made[name] = transport_for(name, self._hosts[name])
            return self._made[name]
