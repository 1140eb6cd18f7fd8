"""How nodes are reached. Importing this is cheap: each way loads its library on use."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from preflight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fleet.model import Host
    from preflight.transport.protocol import Transport
    from preflight.transport.sshask import Asked

TRANSPORTS = ("ssh", "paramiko", "openssh", "srun", "local")
"""Every way there is, as inventories name them; for "ssh" see `Ways`."""


def transport_for(name: str, hosts: Sequence[Host] = (), asked: Asked | None = None) -> Transport:
    """Return the transport of that name; UsageError names the nearest if there is none.

    `hosts`: all the nodes that it will serve, for a way that is opened to all of them at once.
    """
    if name == "local":
        from preflight.transport.local import LocalTransport

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
