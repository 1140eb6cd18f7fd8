"""All rounds that a fleet could be given, numbered: what planner, coverage and history speak of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from preflight.fabric.schedule.circle import Circle, rounds_among
from preflight.fabric.schedule.leaves import LeafAware

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.fabric.schedule.circle import Pairing

DETOUR = 1.5
"""Times the rounds of a circle that rounds by leaf may take to all pairs; three equal ones: 4/3."""

_TWO = 2


class Frame(Protocol):
    """Disjoint rounds that together hold every pair of a fleet exactly once."""

    @property
    def numbers(self) -> Sequence[int]:
        """The number of every round, ascending."""

    @property
    def in_leaf(self) -> int:
        """So many rounds, the first by number, join no two leaves; 0 where none are known."""

    def pairs(self, number: int) -> tuple[Pairing, ...]:
        """Lay out one round."""

    def holding(self, a: str, b: str) -> int:
        """Return the number of the one round that holds this pair; KeyError for a stranger."""

    def span(self, number: int) -> int:
        """Tell which leaves a round joins: rounds of one span join the same leaves."""


def frame_of(nodes: Sequence[str], leaves: Mapping[str, str]) -> Frame:
    """Number the rounds of a fleet: by leaf where at least two are known, else on one circle.

    Nodes of which no leaf is known fill up the smallest ones. Where the leaves are so unequal that
    most nodes would wait for the largest, rounds do not follow them.
    """
    members: dict[str, list[str]] = {}
    for name in nodes:
        if name in leaves:
            members.setdefault(leaves[name], []).append(name)
    if len(members) < _TWO:
        return Circle(nodes)
    for name in nodes:
        if name not in leaves:
            min(members.values(), key=len).append(name)
    if len(members) == len(nodes):
        return Circle(nodes)
    frame = LeafAware(list(members.values()), {name: at for at, name in enumerate(nodes)})
    return frame if len(frame.numbers) <= DETOUR * rounds_among(len(nodes)) else Circle(nodes)
