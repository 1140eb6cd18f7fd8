"""All that a fabric's samples say against its parts, hard failures before statistics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.fabric.culprit import Component, Found
from preflight.fabric.decoding.events import Exposure, watch
from preflight.fabric.decoding.explain import explain
from preflight.fabric.decoding.hard import failures
from preflight.fabric.decoding.parts import Parts, Place
from preflight.fabric.decoding.proof import proven
from preflight.fabric.decoding.rates import Rates
from preflight.fabric.decoding.shifts import Shifts, of_latency, of_the_wire, shifts
from preflight.fabric.limits import limit

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from preflight.fabric.culprit import Symptom
    from preflight.fabric.decoding.explain import Accepted, Model
    from preflight.fabric.digest import Digest
    from preflight.fabric.observed import Observed

FALSE_ALARM = 1e-3
"""How probable it may be that a healthy fabric has any part named, over all tests of a run."""

_FAMILIES = 4
"""Bandwidth, latency, spikes, late hosts: each gets its share."""

SYSTEMIC_SHARE, SYSTEMIC_NODES = 0.25, 3
"""Over a quarter of the nodes and at least three: one cause is likelier than that many faults."""


class Findings(Struct, frozen=True, kw_only=True):
    """What is wrong with a fabric, worst first within each kind of symptom."""

    found: tuple[Found, ...] = ()
    systemic: str = ""
    """Why so many faults at once are likelier one shared cause; nothing where they are not."""

    @property
    def condemned(self) -> tuple[Component, ...]:
        """Every part that is named for sure."""
        return tuple(one.named for one in self.found if one.named is not None)


def find(observed: Observed, too_slow: Collection[tuple[str, str, int]] = ()) -> Findings:
    """Name the parts at fault, or the sets among which they lie.

    `too_slow`: pairs (a, b, rail) that are slower than an absolute limit, whoever their peers are.
    """
    found = failures(observed, too_slow)
    out = {(one.a, one.b, one.rail, one.round) for one in observed.tried if one.state != "measured"}
    digests = [
        one
        for one in observed.digests
        if one.operations and (one.a, one.b, one.rail, one.round) not in out
    ]
    for symptom, accepted, parts in _searches(digests, observed):
        for one in accepted:
            fresh = _worded(symptom, one, parts)
            if not _known(fresh, found):
                found.append(fresh)
    found = [proven(one, observed, found) for one in found]
    return Findings(found=tuple(found), systemic=_systemic(found, observed))


def _searches(
    digests: Sequence[Digest], observed: Observed
) -> Iterable[tuple[Symptom, list[Accepted], Parts]]:
    backend, leaves = observed.backend, observed.leaves
    wrong = _wrong(observed)
    model: Model = Rates(wrong, never=True)
    hot = [number for number, one in enumerate(wrong) if one.events]
    yield "corrupt", *_search([one.place for one in wrong], observed, model, hot, certain=True)
    wire = shifts(digests, leaves, of_the_wire)
    effect = -math.log(1 - _number(backend, "slow_effect"))
    slow = Shifts(wire, effect=effect, floor=_number(backend, "bandwidth_scatter"))
    yield "slow", *_search([one.place for one in wire], observed, slow, slow.hot())
    small = shifts(digests, leaves, of_latency)
    effect = math.log1p(_number(backend, "latency_effect"))
    slow = Shifts(small, effect=effect, floor=_number(backend, "latency_scatter"))
    yield "latency", *_search([one.place for one in small], observed, slow, slow.hot())
    watched = watch(digests, _number(backend, "spike_us"))
    most = _number(backend, "burst_nats")
    least = _number(backend, "event_effect")
    # A host that is late makes its partners wait, and some of that looks like the wire's.
    families: tuple[tuple[Symptom, list[Exposure]], ...] = (
        ("late", watched.late),
        ("spikes", watched.wire),
    )
    for symptom, rows in families:
        rates = Rates(rows, most=most, effect=least)
        yield symptom, *_search([one.place for one in rows], observed, rates, rates.hot())


def _search(
    places: Sequence[Place],
    observed: Observed,
    model: Model,
    hot: Sequence[int],
    *,
    certain: bool = False,
) -> tuple[list[Accepted], Parts]:
    parts = Parts(places, observed.leaves)
    false_alarm = math.inf if certain else FALSE_ALARM / _FAMILIES
    return explain(parts, parts.suspects(hot), model, false_alarm), parts


def _wrong(observed: Observed) -> list[Exposure]:
    """Whether any sum came out wrong, per pair, rail and round that was measured."""
    return [
        Exposure(Place(one.a, one.b, one.rail), 1, 0.0, int(one.state == "corrupt"), 0.0)
        for one in observed.tried
        if one.state in ("measured", "corrupt")
    ]


def _worded(symptom: Symptom, one: Accepted, parts: Parts) -> Found:
    return Found(
        among=tuple(parts.component(key) for key in (one.key, *one.ties)),
        symptom=symptom,
        confidence=round(1 - math.exp(-max(0.05, one.margin)), 3),
        pairs=parts.pairs(one.key),
        strength=one.strength,
    )


def _known(fresh: Found, found: Sequence[Found]) -> bool:
    """Whether a part that is named already accounts for it: one fault has several symptoms."""
    named = [one.named for one in found if one.named is not None]
    return all(
        any(_within(part, other) or _within(other, part) for other in named) for part in fresh.among
    )


def _within(part: Component, other: Component) -> bool:
    """Whether all that goes through `part` goes through `other`."""
    rails = other.rail is None or part.rail == other.rail
    if other.kind == "path":
        return rails and part.kind == "path" and set(part.nodes) == set(other.nodes)
    if part.kind == "path":
        return rails and bool(set(part.nodes) & set(other.nodes))
    return rails and set(part.nodes) <= set(other.nodes)


def _systemic(found: Sequence[Found], observed: Observed) -> str:
    """Counted on nodes after decoding, never on pairs: one slow host makes many pairs bad."""
    causes: dict[str, set[str]] = {}
    for one in found:
        if one.named is not None and one.named.kind in ("node", "endpoint"):
            causes.setdefault(one.symptom, set()).update(one.named.nodes)
    everyone = len(observed.nodes)
    for nodes in causes.values():
        if len(nodes) >= SYSTEMIC_NODES and len(nodes) > SYSTEMIC_SHARE * everyone:
            return f"{len(nodes)} of {everyone} nodes are blamed at once"
    return ""


def _number(backend: str, name: str) -> float:
    found = limit(backend, name)
    if found is None:
        found = limit("nccl", name)
    return found or 0.0
