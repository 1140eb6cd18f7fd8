"""From a name to an open port: a name, a cable, a firewall or a stopped sshd may be in the way."""

from __future__ import annotations

import errno
import socket
import time
from typing import TYPE_CHECKING, TypeAlias

from preflight.transport.protocol import ReachError
from preflight.transport.sshwords import no_answer, no_name, refuses, unreachable

if TYPE_CHECKING:
    from preflight.transport.sshconfig import Route

STALL_MS = 20_000
"""After which the kernel gives up a connection whose other end takes no bytes."""

_Address: TypeAlias = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]


def connected(route: Route, ends: float) -> socket.socket:
    """A TCP connection to the first of its addresses that answers."""
    found = _addresses(route)
    began = time.monotonic()
    trouble = ReachError("route", "its name has no address", "give the node an `address`")
    for tried, (family, address) in enumerate(found):
        share_s = (ends - time.monotonic()) / (len(found) - tried)
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(max(0.1, share_s))
            sock.connect(address)
            _tune(sock)
        except OSError as error:
            sock.close()
            where = f"{address[0]!s} port {route.port}"
            trouble = _no_route(where, error, time.monotonic() - began)
        else:
            return sock
    raise trouble


def _tune(sock: socket.socket) -> None:
    # Without this, small packets wait for the other end's delayed ACK: 40 ms a time.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALL_MS)


def _addresses(route: Route) -> list[tuple[int, _Address]]:
    try:
        found = socket.getaddrinfo(route.hostname, route.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a host name"
        raise no_name(route.hostname, reason) from error
    return [(family, address) for family, _, _, _, address in found]


def _no_route(where: str, error: OSError, seconds: float) -> ReachError:
    if isinstance(error, ConnectionRefusedError):
        return refuses(where)
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return no_answer(where, seconds)
    return unreachable(where, error.strerror or str(error))
