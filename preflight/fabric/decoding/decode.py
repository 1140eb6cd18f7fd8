"""Whose fault it is: a node is bad if even its best pair is, a path if both its ends are fine.

Pure logic over which pairs were good and which bad; what "bad" means is decided elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from msgspec import Struct

from preflight.fabric.schedule import Pairing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

_TWO = 2


class Tested(Protocol):
    """One pair's result, as far as blame is concerned."""

    @property
    def a(self) -> str:
        """One end."""

    @property
    def b(self) -> str:
        """The other end."""

    @property
    def rail(self) -> int:
        """On which of its nodes' rails it was measured."""

    @property
    def bad(self) -> bool:
        """Somebody is to blame for it."""

    @property
    def good(self) -> bool:
        """It clears both ends."""

    @property
    def suspect(self) -> str:
        """The end that was seen to fail by itself; nothing if neither was."""


T = TypeVar("T", bound=Tested)


class Culprit(Struct, frozen=True):
    """A component, or the set among which it lies, and the bad pairs that it explains."""

    kind: Literal["node", "path", "unresolved"]
    among: tuple[str, ...]
    """One node; both ends of a path; or every node that may be the one."""
    pairs: tuple[Pairing, ...]
    cleared_partners: int = 0
    """Of a node: how many partners are known to be fine by another pair."""


def decode(tested: Iterable[Tested], silent: Collection[str] = ()) -> tuple[Culprit, ...]:
    """Find the fewest components that explain the bad pairs without guessing.

    A node is condemned if all its pairs are bad, it was tried with at least two partners, and at
    least one of those is cleared by a good pair of its own. A path is condemned if it is bad and
    both its ends have a good pair. The rest is said as the set among which the culprit lies.
    A good pair clears a node only on the rails it was measured on.
    `silent` are nodes that fell silent during the measurement: their bad pairs need no guessing.
    """
    tested = tuple(tested)
    bad = list(dict.fromkeys((one.a, one.b) for one in tested if one.bad))
    cleared = _cleared(tested, bad)
    partners: dict[str, set[str]] = {}
    for a, b in bad:
        partners.setdefault(a, set()).add(b)
        partners.setdefault(b, set()).add(a)
    nodes = {
        name: len(others & cleared)
        for name, others in partners.items()
        if name in silent or _condemned(name, others - set(silent), cleared)
    }
    culprits = [
        Culprit("node", (name,), tuple(pair for pair in bad if name in pair), count)
        for name, count in nodes.items()
    ]
    unexplained = [pair for pair in bad if not nodes.keys() & set(pair)]
    suspects: dict[str, list[Pairing]] = {}
    for one in tested:
        if one.bad and one.suspect and (one.a, one.b) in unexplained:
            suspects.setdefault(one.suspect, []).append((one.a, one.b))
            unexplained.remove((one.a, one.b))
    culprits += [Culprit("node", (name,), tuple(pairs)) for name, pairs in suspects.items()]
    return tuple(culprits + _rest(unexplained, cleared))


def _condemned(name: str, partners: set[str], cleared: set[str]) -> bool:
    """Whether a node is bad with every partner that did not fall silent, and one is cleared."""
    return name not in cleared and len(partners) >= _TWO and bool(partners & cleared)


def _cleared(tested: Sequence[Tested], bad: Collection[Pairing]) -> set[str]:
    """The nodes that have a good pair on every rail on which they have a bad one.

    A pair with one bad rail is a bad pair. A partner that lacks a rail says nothing about it.
    """
    good = [one for one in tested if one.good and (one.a, one.b) not in bad]
    fine = {(name, one.rail) for one in good for name in (one.a, one.b)}
    ill = {(name, one.rail) for one in tested if one.bad for name in (one.a, one.b)}
    doubtful = {name for name, _ in ill - fine}
    return {name for name, _ in fine} - doubtful


def _rest(unexplained: Sequence[Pairing], cleared: set[str]) -> list[Culprit]:
    paths = [pair for pair in unexplained if cleared.issuperset(pair)]
    found = [Culprit("path", pair, (pair,)) for pair in paths]
    for group in _connected([pair for pair in unexplained if pair not in paths], cleared):
        names = dict.fromkeys(name for pair in group for name in pair)
        among = tuple(name for name in names if name not in cleared)
        found.append(Culprit("unresolved", among, tuple(group)))
    return found


def _connected(pairs: Sequence[Pairing], cleared: set[str]) -> list[list[Pairing]]:
    """Gather pairs that share a suspect: one culprit may explain them together."""
    groups: list[tuple[set[str], list[Pairing]]] = []
    for pair in pairs:
        suspects = set(pair) - cleared
        joined = [group for group in groups if group[0] & suspects]
        groups = [group for group in groups if group not in joined]
        names = suspects.union(*(group[0] for group in joined))
        groups.append((names, [each for group in joined for each in group[1]] + [pair]))
    return [group for _, group in groups]
