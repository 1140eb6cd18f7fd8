"""A decoder's findings against what was planted: named, vague, missed, or a healthy part blamed.

Strict where it matters: to condemn a part that is not faulty is wrong however close it lies, and a
set is no error only where the samples leave one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from preflight.fabric.decoding.culprit import Component, Culprit
from tests.simulate.faults import SYMPTOMS, spots

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulate.truth import Planted

Fate = Literal["named", "misread", "vague", "level", "missed", "inside"]
"""Of a planted fault. `named`: the part and what it does. `misread`: the part, for something else.
`vague`: a set that holds it, though the samples name it, or that holds too much. `level`: more or
less than the part, as a node for one rail of it. `inside`: it is not detectable, and nothing was
said that the truth does not allow."""


class Score(Struct, frozen=True):
    """One fabric."""

    fates: tuple[Fate, ...]
    """By planted fault, in the order of the truth."""
    wrong: tuple[Culprit, ...]
    """What blames healthy parts."""


def score(planted: Sequence[Planted], found: Sequence[Culprit], rails: int) -> Score:
    """Hold findings against the truth of a fabric with so many rails."""
    plain = [(one, {_plain(part, rails) for part in one.among}) for one in found]
    faulty = {_plain(one.component, rails) for one in planted}
    allowed = {_plain(part, rails) for one in planted for part in one.among}
    return Score(
        tuple(_fate(one, plain, rails) for one in planted),
        tuple(one for one, among in plain if not _right(among, faulty, allowed, rails)),
    )


def _right(
    among: set[Component], faulty: set[Component], allowed: set[Component], rails: int
) -> bool:
    """Whether a finding holds a part at fault, or what the truth lets pass for one.

    Samples that are too few may point at the path from a faulty part to one partner alone; the
    wrong level of a faulty node is counted as its fate, not as a healthy part that is blamed.
    """
    if among & faulty:
        return True
    return all(
        part in allowed if part.kind == "path" else any(_nested(part, one, rails) for one in faulty)
        for part in among
    ) or any(_nested(part, one, rails) for part in among for one in faulty if part.kind == "path")


def _nested(one: Component, faulty: Component, rails: int) -> bool:
    """Whether it lies within a faulty part, or holds it and no other node; a path in its path only.

    A leaf that is blamed for one node under it is not beside the level: it blames the others.
    """
    if "path" in (one.kind, faulty.kind) and (one.kind, one.nodes) != (faulty.kind, faulty.nodes):
        return False
    mine, its = spots(one, rails), spots(faulty, rails)
    return mine <= its or (mine >= its and set(one.nodes) <= set(faulty.nodes))


def _fate(planted: Planted, found: Sequence[tuple[Culprit, set[Component]]], rails: int) -> Fate:
    part = _plain(planted.component, rails)
    fits = SYMPTOMS[planted.fault.kind]
    allowed = {_plain(one, rails) for one in planted.among}
    holding = [(one, among) for one, among in found if part in among]
    named = [one for one, among in holding if len(among) == 1]
    if named:
        return "named" if any(one.symptom in fits for one in named) else "misread"
    if holding:
        inside = any(among <= allowed for _, among in holding)
        return "inside" if inside and not planted.detectable else "vague"
    beside = {each for _, among in found for each in among if _nested(each, part, rails)}
    if beside - allowed:
        return "level"
    return "missed" if planted.detectable else "inside"


def _plain(part: Component, rails: int) -> Component:
    """One way to write what has several names: with one rail, or one node under a leaf."""
    nodes, rail, kind = part.nodes, part.rail, part.kind
    if kind == "leaf_rail" and len(nodes) == 1:
        kind = "endpoint"
    if rails == 1:
        rail, kind = None, "node" if kind == "endpoint" else kind
    if kind == "path":
        nodes = tuple(sorted(nodes))
    return Component(kind, nodes, rail)
