"""Where names lead on this node: one wrong line in /etc/hosts and a job waits for itself."""

from __future__ import annotations

import os
import socket
import time

from . import guard
from .text import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Asked = list[tuple[str, guard.Child]]

PATIENCE_S = 4.0
"""A name server that is down keeps the resolver for 5 s and more; so it would every rank."""

MOST = 4
_DISCARD = 9  # any port will do: nothing is sent there
_ADDRESSES = 16


def start(wanted: Sequence[str]) -> Asked:
    """Look up the host's own name and each wanted one, all at once, each in a child of its own."""
    if not wanted:
        return []
    names = [os.uname().nodename, *list(wanted)[:MOST]]
    return [(name, guard.spawn(_look_up, name)) for name in names]


def finish(asked: Asked, began: float, until: float) -> list[dict[str, Any]]:
    """Return a `Resolved` document for each name, the host's own first."""
    until = min(until, began + PATIENCE_S)
    return [_resolved(name, child, began, until) for name, child in asked]


def source_address(other: str) -> str:
    """Our own address on the way to another node; OSError where there is no way."""
    found = socket.getaddrinfo(other, _DISCARD, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, there = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(there)  # a datagram socket: finds the route, sends nothing
        return str(probe.getsockname()[0])


def start_source(other: str) -> guard.Child | None:
    """Begin to find our own address on the way to another node; None where there is no other."""
    return guard.spawn(_source_address, other) if other else None


def finish_source(asked: guard.Child | None, began: float, until: float) -> str:
    """Return that address; "" where none was found in time."""
    if asked is None:
        return ""
    until = min(until, began + PATIENCE_S)
    return clean(guard.answer_of("source address", asked, until, lambda _: None) or "")


def _source_address(other: str) -> str:
    try:
        return source_address(other)
    except OSError:  # a name of the inventory that this node does not know, or no route
        return ""


def _look_up(name: str) -> list[Any]:
    began = time.monotonic()
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    its = dict.fromkeys(str(each[4][0]) for each in found)
    return [list(its)[:_ADDRESSES], round(time.monotonic() - began, 3)]


def _resolved(name: str, child: guard.Child, began: float, until: float) -> dict[str, Any]:
    answered = child.listen(until)
    child.dismiss(kill=not answered)
    told: dict[str, Any] = {"name": clean(name), "addresses": [], "error": "", "seconds": 0.0}
    if not answered:
        waited_s = guard.clock.now() - began
        return {**told, "error": f"no answer in {waited_s:.0f} s", "seconds": round(waited_s, 3)}
    try:
        its, seconds = child.value()
    except guard.BrokenError as error:
        return {**told, "error": clean(str(error))}
    return {**told, "addresses": [clean(one) for one in its], "seconds": seconds}
