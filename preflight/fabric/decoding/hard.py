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
_WORST_FIRST: tuple[Symptom, ...] = ("hung", "no_connect", "broken", "slow")
_CERTAIN, _NODE, _PATH, _UNRESOLVED = 0.95, 0.8, 0.7, 0.3
_TWO = 2


class _Result(NamedTuple):
    """A pair as `decode` wants it."""

    a: str
    b: str
    bad: bool
    good: bool
    suspect: str


def failures(observed: Observed, too_slow: Collection[Where] = ()) -> list[Found]:
    """Decode what failed, or is slower than an absolute limit: `too_slow`, by (a, b, rail)."""
    slow = frozenset(too_slow)
    bad = {
        (one.a, one.b, one.rail): one
        for one in observed.tried
        if one.state in _SYMPTOMS or (one.a, one.b, one.rail) in slow
    }
    if not bad:
        return []
    results = [
        _Result(
            one.a,
            one.b,
            bad=(one.a, one.b, one.rail) in bad,
            good=one.state == "measured" and (one.a, one.b, one.rail) not in bad,
            suspect=one.stood_still if one.state == "hung" else "",
        )
        for one in observed.tried
    ]
    rails = {one.rail for one in observed.tried}
    culprits = decode(results, observed.silent)
    return [_found(culprit, bad, rails, observed.silent) for culprit in culprits]


def _found(
    culprit: Culprit,
    bad: Mapping[Where, Tried],
    rails: Collection[int],
    silent: Collection[str],
) -> Found:
    own = [one for (a, b, _), one in bad.items() if (a, b) in culprit.pairs]
    hit = {one.rail for one in own}
    rail = next(iter(hit)) if len(hit) == 1 < len(rails) else None
    name = culprit.among[0]
    kinds: Mapping[str, Kind] = {"node": "node" if rail is None else "endpoint", "path": "path"}
    confidence = _UNRESOLVED
    if culprit.kind == "node":
        sure = culprit.cleared_partners >= _TWO or name in silent
        confidence = _CERTAIN if sure else _NODE
        among = [_component(kinds["node"], (name,), rail)]
    elif culprit.kind == "path":
        confidence = _PATH
        among = [_component("path", culprit.among, rail)]
    else:
        among = [_component(kinds["node"], (one,), rail) for one in culprit.among]
        among += [_component("path", pair, rail) for pair in culprit.pairs]
    return Found(
        among=tuple(among),
        symptom=_symptom(own),
        confidence=confidence,
        pairs=culprit.pairs,
        cleared_partners=culprit.cleared_partners,
    )


def _symptom(own: Sequence[Tried]) -> Symptom:
    seen = {_SYMPTOMS.get(one.state, "slow") for one in own}
    return min(seen, key=_WORST_FIRST.index)


def _component(kind: Kind, nodes: tuple[str, ...], rail: int | None) -> Component:
    on = f" rail {rail}" if rail is not None else ""
    return Component(kind, "-".join(nodes) + on, nodes, rail)
