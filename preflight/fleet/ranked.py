"""The nodes on which torchrun has started ranks: they are the fleet, whatever a file lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from preflight.fleet.model import Host

if TYPE_CHECKING:
    from preflight.fleet.any_inventory import AnyInventory

ORIGIN = "torchrun"
ENVIRONMENT = "torchrun rank"


class RankedNode(Struct, frozen=True, kw_only=True):
    """One node of the job; `environ` is None if none of its ranks was heard of."""

    group: int
    """Its GROUP_RANK, which orders the fleet."""
    label: str
    hostname: str = ""
    address: str
    python: tuple[str, ...] = ("python3",)
    environ: dict[str, str] | None = None
    uneven: dict[str, tuple[str | None, ...]] = {}
    """Variables that its ranks do not share: their values in the order of the local ranks."""


class Ranked(Struct, frozen=True, kw_only=True):
    """The whole job as torchrun started it."""

    nodes: tuple[RankedNode, ...]
    ranks: int
    per_node: int
    restarts: int
    """torchrun's --max-restarts."""

    def hosts(self, inventory: AnyInventory | None) -> list[Host]:
        """The fleet, with what the inventory promises of each node that it knows."""
        return [_host(node, inventory) for node in self.nodes]

    def environs(self, hosts: list[Host]) -> dict[str, dict[str, str]]:
        """The job's environment by node name; "" for those who were not heard of."""
        told = {
            host.name: node.environ
            for host, node in zip(hosts, self.nodes, strict=True)
            if node.environ is not None
        }
        common = next(iter(told.values()), {})
        names = ("MASTER_ADDR", "MASTER_PORT")
        shared = {name: value for name, value in common.items() if name in names}
        return {"": shared, **told}


def _host(node: RankedNode, inventory: AnyInventory | None) -> Host:
    name = _known(node, inventory) if inventory else node.label
    host = inventory.host(name) if inventory else Host(name=name, address=name)
    return msgspec.structs.replace(
        host,
        address=node.address,
        transport="torchrun",
        python=node.python,
        group_rank=node.group,
    )


def _known(node: RankedNode, inventory: AnyInventory) -> str:
    """The inventory's own name for a node: its host name, long or short, or its address."""
    short = node.hostname.partition(".")[0]
    for name in (node.hostname, short, node.label):
        if name in inventory.names:
            return name
    for name in inventory.names:
        if inventory.host(name).address == node.address and not node.address.startswith("127."):
            return name
    longer = [name for name in inventory.names if short and name.partition(".")[0] == short]
    return longer[0] if len(longer) == 1 else node.label
