"""Which node hosts the sweep's store: one that the others reach, or they cannot take part.

A firewall between two nodes costs their pair; were one of the two the host, it would cost the other
node all of its pairs.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    Links = Collection[tuple[str, str]]
    """(from, to) of connections that are known not to come about."""


def host_first(names: Sequence[str], cut: Links) -> tuple[str, ...]:
    """The nodes with the store's host first and the rest as they were.

    It is the first with the fewest links cut, in either direction, among those who take part.
    """
    if not names:
        return ()
    there = set(names)
    links = {frozenset(link) for link in cut if there.issuperset(link)}
    cuts = Counter(name for link in links for name in link)
    host = min(names, key=lambda name: cuts[name])
    return (host, *(name for name in names if name != host))


def cut_off(host: str, names: Sequence[str], cut: Links) -> frozenset[str]:
    """Who cannot connect to the store's host: they would only wait for it, and be blamed."""
    return frozenset(name for name in names if (name, host) in cut)
