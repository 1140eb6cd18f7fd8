"""Two names for one machine would prove a fleet that is one node short."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preflight.fleet.model import Host

BY_ADDRESS = ("ssh", "paramiko", "openssh")
"""Transports that log in to the address: processes here and Slurm's nodes go by name."""


def refuse_twins(hosts: Iterable[Host]) -> None:
    """UsageError when two nodes are logged in to at one address and port."""
    known: dict[tuple[str, int | None, str | None], str] = {}
    for host in hosts:
        if host.transport not in BY_ADDRESS:
            continue
        # One private address may be another machine in each cluster's own ssh_config.
        first = known.setdefault((host.address.lower(), host.port, host.ssh_config), host.name)
        if first != host.name:
            raise UsageError(
                f"{first} and {host.name} have the same address {host.address}: one machine would "
                "count as two; correct the address of one, or leave one out"
            )
