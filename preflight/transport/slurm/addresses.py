"""Under which addresses the nodes can call us."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

ASKED = 8
"""Nodes whose route is looked at: they all share a network, and a name may take seconds."""

_DISCARD = 9  # any port will do: nothing is sent there


def own_addresses(nodes: Iterable[str]) -> list[str]:
    """Return our addresses on the ways to some nodes, the most frequent first."""
    found: dict[str, int] = {}
    for node in list(nodes)[:ASKED]:
        for address in _towards(node):
            found[address] = found.get(address, 0) + 1
    return sorted(found, key=lambda address: (_is_loopback(address), -found[address]))


def _towards(node: str) -> Iterable[str]:
    with suppress(OSError, UnicodeError):
        for family, kind, protocol, _, there in socket.getaddrinfo(
            node, _DISCARD, type=socket.SOCK_DGRAM
        ):
            with suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(there)  # a datagram socket: finds the route, sends nothing
                yield str(probe.getsockname()[0])


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"
