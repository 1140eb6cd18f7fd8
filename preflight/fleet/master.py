"""Which nodes are the job's: the one that hosts the rendezvous, and those with ranks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from preflight.core.text import did_you_mean
from preflight.errors import UsageError
from preflight.fleet.model import Host
from preflight.fleet.nodeset import is_address

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from preflight.fleet.inventory import AnyInventory
    from preflight.fleet.model import Fleet


_LOCAL = ("localhost", "127.0.0.1", "::1")
_A_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}")


def choose_master(
    hosts: Sequence[Host],
    *,
    launch: str | None,
    environ: str | None,
    table: str | None,
    elsewhere: Collection[str] = (),
) -> tuple[str | None, str]:
    """Return the node (None: the first) and a remark where an address had to be taken for one.

    The launch line wins over the environment, and both over the inventory, as for the port.
    `elsewhere`: nodes that the file knows and this run leaves out.
    """
    names = {host.name for host in hosts}
    rest = _node_of(environ, hosts) if environ else None
    rest = rest or (table if table in names else None)
    if not launch:
        return rest, ""
    named = _node_of(launch, hosts)
    if named:
        return named, ""
    taken = rest or hosts[0].name
    if launch in elsewhere:
        return rest, f", tried on {taken}: the master {launch} is not in this run"
    if launch in _LOCAL and len(hosts) == 1:
        return hosts[0].name, ""
    if launch not in _LOCAL and is_address(launch):
        return rest, f", tried on {taken}: {launch} is the address of no node known here"
    raise UsageError(_no_node(launch, hosts))


def master_names(fleet: Fleet) -> tuple[str, ...]:
    """The names under which the nodes look for the master: the job's own word, else our address.

    None in a fleet of one, where nobody looks. What a shell has yet to expand is no name.
    """
    if len(fleet.hosts) < len((fleet.master, "another")):
        return ()
    given = {environ.get("MASTER_ADDR", "") for environ in (fleet.job.environ or {}).values()}
    names = sorted(name for name in given if _A_NAME.fullmatch(name))
    return tuple(names[:3]) or (fleet.master.address,)


def _no_node(address: str, hosts: Sequence[Host]) -> str:
    said = f"--preflight-launch: the master address {address[:60]!a}"
    if "$" in address:
        return f"{said} is not expanded here: give the name of the node itself"
    if address in _LOCAL:
        return f"{said} is another machine on each of {len(hosts)} nodes: give one node's name"
    hint = did_you_mean(address, [host.name for host in hosts])
    return f"{said} names no node of this fleet{hint or '; give the name of one of its nodes'}"


def _node_of(address: str, hosts: Sequence[Host]) -> str | None:
    """The node of that name or address; of that short name if only one has it."""
    exact = next((host.name for host in hosts if address in (host.name, host.address)), None)
    if exact or is_address(address):
        return exact
    short = address.partition(".")[0]
    near = [host.name for host in hosts if _is_short_for(host.name, address, short)]
    return near[0] if len(near) == 1 else None


def _is_short_for(name: str, address: str, short: str) -> bool:
    """One of both is the bare name of the other: h1 and h1.cluster.example."""
    return name.partition(".")[0] == short and short in (name, address)


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
