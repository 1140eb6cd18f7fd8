"""Inside a Slurm allocation nobody needs keys: Slurm's own launcher is the way to the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from preflight.errors import UsageError
from preflight.fleet.nodeset import expand
from preflight.transport.slurm.job import offers_srun, refuse_many

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preflight.fleet.any_inventory import AnyInventory
    from preflight.fleet.model import Host
    from preflight.fleet.sources import Wish


def by_slurm(
    hosts: tuple[Host, ...], inventory: AnyInventory | None, wish: Wish
) -> tuple[Host, ...]:
    """Let srun reach the allocation's nodes, where neither an option nor the inventory says how.

    UsageError outside of an allocation, and if we are one of several tasks of a step.
    """
    asked = [host.name for host in hosts if host.transport == "srun"]
    if asked and not wish.environ.get("SLURM_JOB_ID"):
        raise UsageError(
            "the transport srun works inside a Slurm allocation only: "
            "start with sbatch or salloc, or leave --preflight-transport out"
        )
    ours = _allocated(wish.environ)
    inside = ours.issuperset(host.name for host in hosts)
    if asked or inside:
        refuse_many(wish.environ)
    if wish.transport is not None or not inside or not offers_srun(wish.environ):
        return hosts
    return tuple(
        host
        if host.transport in ("local", "torchrun") or (inventory and inventory.names_way(host.name))
        else msgspec.structs.replace(host, transport="srun")
        for host in hosts
    )


def _allocated(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the nodes of the allocation that we run in; none outside of one."""
    nodes = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not nodes or not environ.get("SLURM_JOB_ID"):
        return frozenset()
    try:
        return frozenset(expand(nodes))
    except UsageError:  # it is refused where it names the fleet
        return frozenset()
