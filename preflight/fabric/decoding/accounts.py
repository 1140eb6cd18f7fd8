"""Which faults are symptoms of another: nobody is sent to two places for one cause, nor to none."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fabric.culprit import Component, Found

EVENTS = ("spikes", "late")
_BY_EVENTS = ("slow", "latency", "hung", "broken")
"""What so many events can make of a pair; it takes more to keep it from connecting."""

_MOST = 0.5


def known(fresh: Found, found: Sequence[Found]) -> bool:
    """Whether parts that are named account for it, whatever their symptoms.

    A part accounts for what goes through it, never for what is wider and shows with others too: a
    path for neither end, a node for no leaf. But a rail accounts for its node, which one repairs
    at the same place; most of a leaf's nodes for the leaf; and one of a set for the set's wider.
    """
    named = [one.named for one in found if one.named is not None]
    return all(
        _mostly(part, named) or any(_accounts(other, part, fresh.among) for other in named)
        for part in fresh.among
    )


def due_to(fresh: Found, one: Found) -> bool:
    """Whether a path was slow, or hung, for a wider part that loses or holds up what it sends."""
    path, part = one.named, fresh.named
    if path is None or path.kind != "path" or part is None or part.kind == "path":
        return False
    return one.symptom in _BY_EVENTS and fresh.symptom in EVENTS and within(path, part)


def within(part: Component, other: Component) -> bool:
    """Whether all that goes through `part` goes through `other`."""
    rails = other.rail is None or part.rail == other.rail
    if other.kind == "path":
        return rails and part.kind == "path" and set(part.nodes) == set(other.nodes)
    if part.kind == "path":
        return rails and bool(set(part.nodes) & set(other.nodes))
    return rails and set(part.nodes) <= set(other.nodes)


def _accounts(other: Component, part: Component, among: Sequence[Component]) -> bool:
    """Whether `other`, which is named, accounts for a part of those `among` which a fault lies."""
    if within(part, other):
        return True
    return within(other, part) and any(_same_place(other, one) for one in among)


def _same_place(part: Component, whole: Component) -> bool:
    """Whether it is that part, or a rail of it."""
    return within(part, whole) and set(part.nodes) == set(whole.nodes)


def _mostly(part: Component, named: Sequence[Component]) -> bool:
    """Whether most nodes under a leaf are named on that rail."""
    if part.kind != "leaf_rail":
        return False
    own = (
        one for one in named if one.kind in ("node", "endpoint") and one.rail in (None, part.rail)
    )
    bad = {name for one in own for name in one.nodes}
    return len(bad.intersection(part.nodes)) > _MOST * len(part.nodes)
