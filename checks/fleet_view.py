"""The whole fleet as a check sees it: for faults that no single node or pair shows."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from preflight.core.thresholds import SHIPPED, Thresholds
from preflight.facts.node import Group

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preflight.fabric.pair_summary import Pair
    from preflight.facts.node import Node


@dataclass(frozen=True, slots=True)
class FleetView:
    """The nodes that can be checked, the nodes that cannot and why, and what the sweep measured."""

    nodes: Mapping[str, Node]
    """In fleet order: the nodes that gave facts and passed the required checks."""
    left_out: Mapping[str, str]
    """The other nodes, and why: `{"h2": "reach.route of h2: no answer at h2:22"}`."""
    groups: Mapping[str, Group]
    """The inventory groups of `nodes`, with the facts of those nodes alone; for `majority`."""
    pairs: Mapping[tuple[str, str], Pair]
    """By both names, the earlier of the fleet first; empty unless the check's stage is fabric."""
    limit: Thresholds = SHIPPED
    """The limits that apply to all nodes."""


def whole_fleet(
    nodes: Mapping[str, Node],
    left_out: Mapping[str, str],
    pairs: Mapping[tuple[str, str], Pair],
) -> FleetView:
    """Build the view from read-only mappings: no check can change what the next one sees."""
    members: dict[str, dict[str, Node]] = {}
    for node in nodes.values():
        members.setdefault(node.group.name, {})[node.name] = node
    groups = {
        name: Group(name, MappingProxyType({n: node.facts for n, node in peers.items()}))
        for name, peers in members.items()
    }
    return FleetView(
        nodes=MappingProxyType(dict(nodes)),
        left_out=MappingProxyType(dict(left_out)),
        groups=MappingProxyType(groups),
        pairs=MappingProxyType(dict(pairs)),
    )
