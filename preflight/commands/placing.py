"""Where each node of stored samples stands: its leaf switch and its promises, from a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.errors import UsageError
from preflight.fleet.inventory import read_inventory
from preflight.fleet.model import Host
from preflight.fleet.nodeset import fold, natural
from preflight.fleet.switches import read_switches

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.fabric.stored import Stored

_INVENTORIES = (".toml", ".yaml", ".yml")


def hosts_of(stored: Stored, topology: Path | None) -> list[Host]:
    """Every node of the samples, with its leaf and what an inventory promises.

    `topology`: a Slurm topology.conf, or an inventory by its suffix. Without one the leaves are
    those that were stored. UsageError for a file that is no use, or knows none of these nodes.
    """
    left_out = stored.sweep.left_out if stored.sweep else {}
    names = sorted({*stored.observed.nodes, *left_out}, key=natural)
    if topology is None:
        known = stored.observed.leaves
        return [Host(name=name, address=name, leaf=known.get(name, "")) for name in names]
    hosts = _in_file(topology, names)
    if names and not any(host.leaf for host in hosts):
        raise UsageError(
            f"{topology} knows no leaf of {fold(names)}: give the topology of this fleet"
        )
    return hosts


def _in_file(path: Path, names: list[str]) -> list[Host]:
    if path.suffix.lower() in _INVENTORIES:
        inventory = read_inventory(path)
        return [inventory.host(name) for name in names]
    leaves = read_switches(path)
    return [Host(name=name, address=name, leaf=_leaf(name, leaves)) for name in names]


def _leaf(name: str, leaves: dict[str, str]) -> str:
    """Slurm knows nodes by their short names; samples may not."""
    return leaves.get(name, leaves.get(name.partition(".")[0], ""))


def placed(stored: Stored, hosts: list[Host]) -> Stored:
    """The same samples with these leaves."""
    leaves = {host.name: host.leaf for host in hosts if host.leaf}
    sweep = replace(stored.sweep, leaves=leaves) if stored.sweep else None
    return replace(stored, sweep=sweep, observed=replace(stored.observed, leaves=leaves))
