"""Pairs that failed outright: who hung, who never connected, whose sums came out wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from preflight.fabric.culprit import Component, Found
from preflight.fabric.decode import Culprit, decode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from preflight.fabric.culprit import Kind, Symptom
    from preflight.fabric.observed import Observed, Tried
    from preflight.fabric.samples import PairState

    Where = tuple[str, str, int]

_SYMPTOMS: Mapping[PairState, Symptom] = {
    "hung": "hung",
    "no_connect": "no_connect",
    "absent": "broken",
    "error": "broken",
}
_WORST_FIRST: tuple[Symptom, ...] = ("hung", "no_connect", "broken")
_CERTAIN, _NODE, _PATH, _UNRESOLVED = 0.95, 0.8, 0.7, 0.3
_TWO = 2
_MOST_RAILS = 0.5


class _Result(NamedTuple):
    """A pair as `decode` wants it."""

    a: str
    b: str
    rail: int
    bad: bool
    good: bool
    suspect: str


def failures(observed: Observed) -> list[Found]:
    """Decode what failed outright: no statistics are needed for it."""
    bad = {(one.a, one.b, one.rail): one for one in observed.tried if one.state in _SYMPTOMS}
    if not bad:
        return []
    near = {name for a, b, _ in bad for name in (a, b)}
    by_rail: dict[int, list[_Result]] = {one.rail: [] for one in observed.tried}
    for one in observed.tried:
        if one.a in near or one.b in near:
            by_rail[one.rail].append(_result(one, bad))
    together: dict[tuple[str, tuple[str, ...]], list[tuple[int, Culprit]]] = {}
    for rail, own in sorted(by_rail.items()):
        for culprit in decode(own, observed.silent):
            together.setdefault((culprit.kind, culprit.among), []).append((rail, culprit))
    return [
        _found(same if whole else [one], bad, None if whole else one[0], observed.silent)
        for same in together.values()
        for whole in (len(same) > _MOST_RAILS * len(by_rail),)
        for one in (same[:1] if whole else same)
    ]


def _result(one: Tried, bad: Mapping[Where, Tried]) -> _Result:
    failed = (one.a, one.b, one.rail) in bad
    return _Result(
        one.a,
        one.b,
        one.rail,
        bad=failed,
        good=one.state == "measured" and not failed,
        suspect=one.stood_still,
    )


def _found(
    same: Sequence[tuple[int, Culprit]],
    bad: Mapping[Where, Tried],
    rail: int | None,
    silent: Collection[str],
) -> Found:
    """One fault; `same`: what each rail says of it. On most rails at once it is the whole node."""
    culprit = same[0][1]
    pairs = tuple(dict.fromkeys(pair for _, each in same for pair in each.pairs))
    rails = {number for number, _ in same}
    own = [one for (a, b, at), one in bad.items() if (a, b) in pairs and at in rails]
    name = culprit.among[0]
    kind: Kind = "node" if rail is None else "endpoint"
    confidence = _UNRESOLVED
    if culprit.kind == "node":
        sure = culprit.cleared_partners >= _TWO or name in silent
        confidence = _CERTAIN if sure else _NODE
        among = [_component(kind, (name,), rail)]
    elif culprit.kind == "path":
        confidence = _PATH
        among = [_component("path", culprit.among, rail)]
    else:
        among = [_component(kind, (one,), rail) for one in culprit.among]
        among += [_component("path", pair, rail) for pair in pairs]
    return Found(
        among=tuple(among),
        symptom=_symptom(own),
        confidence=confidence,
        pairs=pairs,
        cleared_partners=culprit.cleared_partners,
    )


def _symptom(own: Sequence[Tried]) -> Symptom:
    seen = {_SYMPTOMS[one.state] for one in own}
    return min(seen, key=_WORST_FIRST.index)


def _component(kind: Kind, nodes: tuple[str, ...], rail: int | None) -> Component:
    on = f" rail {rail}" if rail is not None else ""
    return Component(kind, "-".join(nodes) + on, nodes, rail)
