"""The interface that was named for the sweep: one setting for all, refused where it cannot be.

Loopback leads from no node to another: every pair would fail, and healthy nodes would be blamed.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING

from preflight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fleet.model import Host

OPTION = "--preflight-interface"

_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@-]{0,14}")
"""IFNAMSIZ leaves 15 characters; a dash in front is refused with the rest."""

_LOOPBACK = "lo"


def sweep_interface(name: str | None, hosts: Sequence[Host], origin: str) -> str | None:
    """Return the name if it can be one; UsageError (exit 4) says what to type instead.

    `origin`: who named it, as the operator would find it.
    """
    if name is None:
        return None
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name[:40]!a} is not a network interface: give a name such as eth0")
    if name == _LOOPBACK and machines(hosts) > 1:
        raise UsageError(
            f"{origin} = {_LOOPBACK}: no node reaches another by loopback; leave it away (each "
            f"node then takes its way to the others), or name the network's, as in {OPTION}=eth0"
        )
    return name


def machines(hosts: Sequence[Host]) -> int:
    """How many there are behind these names; all that are local are this one."""
    here = [host.transport == "local" or _is_here(host.address) for host in hosts]
    away = {host.address for host, local in zip(hosts, here, strict=True) if not local}
    return len(away) + any(here)


def _is_here(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
