"""Which GPU of a node is which rail, where a node has fewer GPUs than the others of its group.

Rail i is the GPU in place i of a whole node's list of PCI addresses. CUDA numbers what is left
without a gap, so by CUDA's index every GPU above a lost one would be measured as another rail.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.fabric.events import Ready
    from preflight.fleet.model import Host


class Rails(Struct, frozen=True, kw_only=True):
    """The rails of one launch."""

    count: int = 1
    """The most that a node has."""
    missing: dict[str, tuple[int, ...]] = {}
    """Node name → rails below `count` that it does not have."""
    short: dict[str, str] = {}
    """Node name → which of its group's rails it lacks, in words."""
    unknown: dict[str, str] = {}
    """Node name → why nobody can say which of its GPUs is which rail."""


def match(
    ready: Mapping[str, Ready], names: Sequence[str], hosts: Mapping[str, Host], *, nccl: bool
) -> Rails:
    """Give each GPU of these nodes its rail.

    A node has fewer GPUs than it should if the inventory says so, else if more than half of its
    group (at least two nodes) have more. Without such a number, nodes whose PCI addresses do not
    match are machines of another kind: they have the first rails.
    """
    if not nccl or any(ready[name].rails for name in names):
        least = min((ready[name].rails or 1 for name in names), default=1)
        return Rails(count=least)
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(hosts[name].group if name in hosts else "", []).append(name)
    own: dict[str, tuple[int, ...]] = {}
    short: dict[str, str] = {}
    unknown: dict[str, str] = {}
    for members in groups.values():
        most, whose = _expected(ready, members, hosts)
        full = most or max(ready[name].gpus for name in members)
        whole = Counter(ready[name].bus_ids for name in members if ready[name].gpus >= full)
        for name in members:
            gpus, bus_ids = ready[name].gpus, ready[name].bus_ids
            places = _places(bus_ids, whole)
            another_kind = not most and bool(bus_ids) and () not in whole
            if places is None and (gpus >= full or another_kind):
                own[name] = tuple(range(gpus))
            elif places is None:
                unknown[name] = (
                    f"its torch sees {gpus} GPUs, {whose or f'others of its group {full}'}, and "
                    "their PCI addresses do not tell which rails these are"
                )
            else:
                own[name] = places
                if whose and gpus < full:
                    lacks = [rail for rail in range(full) if rail not in places]
                    rails = f"rail{'s' * (len(lacks) > 1)} {', '.join(map(str, lacks))}"
                    short[name] = f"{rails} (its torch sees {gpus} GPUs, {whose})"
    count = max((rails[-1] + 1 for rails in own.values() if rails), default=1)
    lacking = {
        name: tuple(rail for rail in range(count) if rail not in rails)
        for name, rails in own.items()
    }
    return Rails(
        count=count,
        missing={name: rails for name, rails in lacking.items() if rails},
        short=short,
        unknown=unknown,
    )


def _expected(
    ready: Mapping[str, Ready], members: Sequence[str], hosts: Mapping[str, Host]
) -> tuple[int, str]:
    """How many GPUs each node of a group should have, and who says so; 0 where nobody does."""
    promised = hosts[members[0]].promised.gpus if members[0] in hosts else None
    counts = Counter(ready[name].gpus for name in members)
    unlike = len({ready[name].bus_ids for name in members}) > 1
    # Where nobody has all of them, addresses that differ may be holes in different places.
    if promised is not None and (promised in counts or (unlike and promised > max(counts))):
        return promised, f"{promised} promised"
    usual, votes = counts.most_common(1)[0]
    if votes > 1 and votes * 2 > len(members):
        return usual, f"{usual} on {votes} of {len(members)} nodes of its group"
    return 0, ""


def _places(bus_ids: tuple[str, ...], whole: Counter[tuple[str, ...]]) -> tuple[int, ...] | None:
    """Where these stand in the longest list of a whole node that holds them all, in that order."""
    for every, _ in sorted(whole.items(), key=lambda each: (-len(each[0]), -each[1])):
        if bus_ids and set(bus_ids) <= set(every):
            places = tuple(every.index(each) for each in bus_ids)
            if list(places) == sorted(places):
                return places
    return None
