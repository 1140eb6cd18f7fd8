"""Several faults of mixed kinds for one fabric, as nights in real fleets bring them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from tests.simulate.faults import Fault, endpoint, leaf_rail, node, path, spots

if TYPE_CHECKING:
    from random import Random

    from preflight.fabric.decoding.culprit import Component
    from tests.simulate.fabric import Fabric, Spot

LEAST_UNDER_LEAF = 4
_TRIES = 60


class Severity(Struct, frozen=True, kw_only=True):
    """How hard faults hit, on one kind of noise."""

    speed: float
    """What a slow part has left of its bandwidth."""
    spikes: float
    """Share of operations."""
    lasts_us: float
    losses: float
    lost_us: float
    """What a lost packet costs."""
    late: float
    corrupt: float
    """Share of large operations."""


RDMA = Severity(
    speed=0.85, spikes=1e-3, lasts_us=10e3, losses=2e-3, lost_us=20e3, late=2e-3, corrupt=0.05
)
"""A slow endpoint at -15 %, a cable that adds 10 ms to one operation in a thousand."""

TCP = Severity(
    speed=0.1, spikes=2e-2, lasts_us=207e3, losses=2e-2, lost_us=207e3, late=2e-2, corrupt=0.05
)
"""What shows on shared CPUs: a link at a tenth; 207 ms is TCP's retransmission timer."""

NAMES = (
    "slow endpoint",
    "spikes",
    "dead rail",
    "late host",
    "slow path",
    "one-direction loss",
    "bad leaf-rail",
    "corrupting GPU",
)


def mixture(fabric: Fabric, count: int, severity: Severity, random: Random) -> tuple[Fault, ...]:
    """`count` faults that share no endpoint (fewer where no place is left), kinds drawn at will."""
    taken: set[Spot] = set()
    found: list[Fault] = []
    for _ in range(_TRIES):
        if len(found) == count:
            break
        fault = plant(fabric, random.choice(NAMES), severity, random)
        if fault is not None:
            touched = spots(fault.component, fabric.rails)
            if taken.isdisjoint(touched):
                taken |= touched
                found.append(fault)
    return tuple(found)


def plant(fabric: Fabric, name: str, severity: Severity, random: Random) -> Fault | None:
    """One fault of that name somewhere; None where the fabric has no such part."""
    rail = random.randrange(fabric.rails)
    at = endpoint(random.choice(fabric.nodes), rail)
    if name == "late host":
        return Fault(
            component=node(at.nodes[0]),
            kind="late",
            per_operation=severity.late,
            lasts_us=severity.lasts_us,
        )
    if name == "slow path":
        a, b = random.choice(random.choice(fabric.rounds))
        return _slow(path(a, b, random.choice((rail, None))), severity)
    if name == "bad leaf-rail":
        return _bad_leaf(fabric, rail, severity, random)
    return _of_endpoint(at, name, severity, random)


def _of_endpoint(at: Component, name: str, severity: Severity, random: Random) -> Fault:
    if name == "slow endpoint":
        return _slow(at, severity)
    if name == "spikes":
        return _spikes(at, severity)
    if name == "dead rail":
        return Fault(component=at, kind="dead")
    if name == "one-direction loss":
        return Fault(
            component=at,
            kind="loss",
            per_operation=severity.losses,
            lasts_us=severity.lost_us,
            incoming=random.choice((True, False)),
        )
    return Fault(component=at, kind="corrupt", per_operation=severity.corrupt)


def _slow(part: Component, severity: Severity) -> Fault:
    return Fault(component=part, kind="slow", speed=severity.speed)


def _spikes(part: Component, severity: Severity) -> Fault:
    return Fault(
        component=part,
        kind="spikes",
        per_operation=severity.spikes,
        lasts_us=severity.lasts_us,
    )


def _bad_leaf(fabric: Fabric, rail: int, severity: Severity, random: Random) -> Fault | None:
    """Slow or spiking; only where the leaf holds enough nodes, and others are not under it."""
    leaves = [
        leaf
        for leaf in dict.fromkeys(fabric.leaves.values())
        if LEAST_UNDER_LEAF <= len(fabric.under(leaf)) <= len(fabric.nodes) // 2
    ]
    if not leaves:
        return None
    part = leaf_rail(fabric, random.choice(leaves), rail)
    return random.choice((_slow, _spikes))(part, severity)
