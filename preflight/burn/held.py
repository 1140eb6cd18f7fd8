"""Every unit of every node held against its peers, its own start, and floors."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from preflight.burn.floors import floor
from preflight.burn.limits import known, limit
from preflight.burn.own_past import own_nights
from preflight.burn.units import speed
from preflight.burn.yardstick import Bound, Population, strictest
from preflight.facts.burn import Unit
from preflight.numbers import in_force, words
from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from preflight.burn.units import Raw
    from preflight.facts.burn import Held
    from preflight.fleet.model import Host, Promise

    Earlier = Mapping[tuple[str, str, str], Sequence[float]]
    """What a unit reached on earlier nights, by node, measure and name."""

_LEAST_WINDOWS = 8
_LEAST_BAD, _BAD_SHARE, _TIMES_PEERS = 2, 0.2, 4
"""What comes and goes: so many samples, that part of them, and so many times a peer's part."""


class _Like(NamedTuple):
    """What units have in common that may be compared."""

    group: str
    kind: str
    measure: str
    alike: str


def hold(
    raws: Iterable[Raw], hosts: Mapping[str, Host], earlier: Earlier | None = None
) -> dict[str, list[tuple[Raw, Unit]]]:
    """Judge all units of a fleet, by node. `hosts` are the fleet's, with group and promise.

    What the inventory sets in place of shipped numbers is in force for its group.
    """
    classes: dict[_Like, dict[str, list[Raw]]] = {}
    for raw in raws:
        like = _Like(hosts[raw.node].group, raw.kind, raw.measure, raw.alike)
        classes.setdefault(like, {}).setdefault(raw.node, []).append(raw)
    found: dict[str, list[tuple[Raw, Unit]]] = {}
    for by_node in classes.values():
        promise = hosts[next(iter(by_node))].promised
        with in_force(promise.limits) as used:
            judged = _hold_class(by_node, hosts, earlier or {})
        told = "".join(f"; {words(name, one)}" for name, one in used.items())
        for raw, unit in judged:
            own = replace(unit, limit_origin=unit.limit_origin + told) if told else unit
            found.setdefault(raw.node, []).append((raw, own))
    return found


def _hold_class(
    by_node: Mapping[str, list[Raw]], hosts: Mapping[str, Host], earlier: Earlier
) -> list[tuple[Raw, Unit]]:
    population = Population({n: [one.speed for one in own] for n, own in by_node.items()})
    bounds = {
        (node, place): _bound(
            raw,
            place,
            population,
            hosts[node].promised,
            earlier.get((node, raw.measure, raw.name), ()),
        )
        for node, own in by_node.items()
        for place, raw in enumerate(own)
    }
    usual = median([_bad(raw, bounds[node, place]) / len(raw.values)
                    for node, own in by_node.items() for place, raw in enumerate(own)])  # fmt: skip
    return [
        (raw, _unit(raw, bounds[node, place], usual))
        for node, own in by_node.items()
        for place, raw in enumerate(own)
    ]


def _bound(
    raw: Raw, place: int, population: Population, promise: Promise, nights: Sequence[float]
) -> Bound | None:
    """Peers first, then floors; its own past only where there is neither."""
    effect = known(raw.kind, raw.measure)
    effect = limit(raw.kind, "effect") if effect is None else effect
    scatter = limit(raw.kind, "scatter")
    known_by_others = (
        population.here(raw.node, place, effect=effect, scatter=scatter),
        population.away(raw.node, effect=effect, scatter=scatter),
        _floor(raw, promise),
    )
    unheld = all(one is None for one in known_by_others)
    third = own_nights(raw, nights) if unheld else None
    return strictest((*known_by_others, _own_start(raw), third))


def _own_start(raw: Raw) -> Bound | None:
    """A load that begins fast and does not last needs no peers to be seen."""
    samples = raw.reading.samples
    if raw.measure != "sustained_tflops" or len(samples) < _LEAST_WINDOWS:
        return None
    share = 1 - limit(raw.kind, "droop")
    return Bound(
        median(samples[: len(samples) // 4]) * share, f"{share:.2g} of its own first quarter"
    )


def _floor(raw: Raw, promise: Promise) -> Bound | None:
    found = floor(raw, promise)
    return None if found is None else Bound(speed(raw.measure, found.value), found.origin)


def _bad(raw: Raw, bound: Bound | None) -> int:
    if bound is None:
        return 0
    return sum(speed(raw.measure, value) < bound.speed for value in raw.values)


def _unit(raw: Raw, bound: Bound | None, usual: float) -> Unit:
    bad = _bad(raw, bound)
    return Unit(
        name=raw.name,
        measure=raw.measure,
        best=raw.best,
        typical=median(raw.values),
        samples=len(raw.values),
        held=_held(raw, bound, bad, usual),
        limit=None if bound is None else speed(raw.measure, bound.speed),
        limit_origin="" if bound is None else bound.origin,
        peers=None if bound is None or bound.peers is None else speed(raw.measure, bound.peers),
        bad=bad,
        waited=raw.reading.waited,
    )


def _held(raw: Raw, bound: Bound | None, bad: int, usual: float) -> Held:
    if bound is None:
        return "unheld"
    if raw.speed < bound.speed:
        waited = raw.reading.waited >= limit(raw.kind, "starved")
        return "starved" if raw.excusable and waited else "slow"
    share = bad / len(raw.values)
    often = bad >= _LEAST_BAD and share >= max(_BAD_SHARE, _TIMES_PEERS * usual)
    return "flaky" if often and not raw.excusable else "ok"
