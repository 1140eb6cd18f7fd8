"""What a rank tells of itself: where it runs, how others reach it, and the job's environment."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING

from preflight.fleet.jobenv import public
from preflight.torchrun.notes import Present

if TYPE_CHECKING:
    from preflight.torchrun.place import Place

_DISCARD = 9  # any port will do: nothing is sent there
_MOST = 512
_LONGEST = 32768


def present(place: Place, nonce: str, version: str) -> Present:
    """Describe this rank."""
    environ = {
        name: value for name, value in sorted(public(os.environ).items()) if len(value) <= _LONGEST
    }
    return Present(
        nonce=nonce,
        version=version,
        rank=place.rank,
        local_rank=place.local_rank,
        group=place.group,
        per_node=place.per_node,
        hostname=socket.gethostname()[:255],
        address=address_towards(place.master),
        pid=os.getpid(),
        python=sys.executable[:4096],
        environ=dict(list(environ.items())[:_MOST]),
    )


def address_towards(other: str) -> str:
    """Our own address on the way to another host; "" where there is no way or no such host."""
    try:
        family, kind, protocol, _, there = socket.getaddrinfo(
            other, _DISCARD, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(there)  # a datagram socket: finds the route, sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return ""
