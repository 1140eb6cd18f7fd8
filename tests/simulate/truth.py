"""What a decoder is asked for, written down before it sees anything.

A fault is *detectable* if the generator's own figures give it a power of 99.9 % and it has two
partners that are free of faults and cleared by others. For the rest the parts among which it may
lie are listed: saying nothing, or a set of them, is no error there. Naming a healthy part is one
everywhere.
"""

from __future__ import annotations

from collections import defaultdict
from math import erfc, exp, log, log1p, sqrt
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.fabric.decoding.culprit import Component
from tests.simulate.faults import Fault, endpoint, leaf_rail, node, path, spots
from tests.simulate.power import Events, apart, of_events, of_shift, together
from tests.simulate.stream import checked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.simulate.fabric import Fabric, Spot
    from tests.simulate.noise import Noise, Rare

POWER = 0.999
PARTNERS = 2
OBSERVATIONS = 2
"""Of a slow path: on two rails or in two rounds. Seen once it is a suspicion, to be retested."""
LEAST_YARDSTICKS = 3
CLEAN_SHARE = 0.5
"""For what is judged against peers: so many measurements free of faults, and more than half of
those that do not go through the part. A spread cannot be had from fewer, and robust statistics
break down beyond."""

_VISIBLE = 0.5
"""A hit operation is looked for above that share of what the fault adds."""
_MEDIANS = 5.0
"""Below so many medians an operation is not kept one by one: part of the sample format."""

Meeting = tuple[str, str, int, int]
"""a, b, rail, round."""


class Planted(Struct, frozen=True, kw_only=True):
    """One fault with what may be asked about it."""

    fault: Fault
    detectable: bool
    power: float
    partners: int
    """Distinct partners that are free of faults and cleared."""
    among: tuple[Component, ...]
    """The parts among which it may be said to lie; the faulty one alone if it is detectable."""

    @property
    def component(self) -> Component:
        """The part at fault."""
        return self.fault.component


def truth(fabric: Fabric, noise: Noise, faults: Sequence[Fault]) -> tuple[Planted, ...]:
    """Declare each fault of a fabric, from parameters alone."""
    view = _View(fabric, noise, faults)
    return tuple(view.declared(number, fault) for number, fault in enumerate(faults))


class _View:
    """Who was measured with whom, and through which faults."""

    def __init__(self, fabric: Fabric, noise: Noise, faults: Sequence[Fault]) -> None:
        self._fabric, self._noise, self._faults = fabric, noise, faults
        touching: dict[Spot, list[int]] = defaultdict(list)
        for number, fault in enumerate(faults):
            for spot in spots(fault.component, fabric.rails):
                touching[spot].append(number)
        self._own: dict[int, list[Meeting]] = defaultdict(list)
        """Fault → what goes through it and through no other."""
        self._shared: dict[int, list[Meeting]] = defaultdict(list)
        self._clean: dict[Spot, set[str]] = defaultdict(set)
        """Endpoint → the partners with whom it was measured and nothing was wrong."""
        clean = total = 0
        for around, a, b in fabric.meetings():
            for rail in range(fabric.rails):
                near = {*touching.get((a, rail), ()), *touching.get((b, rail), ())}
                through = [one for one in near if faults[one].hits(a, b, rail)]
                for one in through:
                    which = self._own if len(through) == 1 else self._shared
                    which[one].append((a, b, rail, around))
                if not through:
                    self._clean[a, rail].add(b)
                    self._clean[b, rail].add(a)
                clean += not through
                total += 1
        self._clean_of = clean, total
        self._parts = _parts(fabric)

    def declared(self, number: int, fault: Fault) -> Planted:
        """One fault."""
        part = fault.component
        partners = self._cleared(number, fault)
        count = len(partners)
        if part.kind == "path":
            count = self._ends_cleared(part)
            partners = {"": self._own[number]} if count else {}
        power = self._power(number, partners) if partners else 0.0
        detectable = power >= POWER and count >= PARTNERS
        return Planted(
            fault=fault,
            detectable=detectable,
            power=power,
            partners=count,
            among=(part,) if detectable else (part, *self._among(number, part, partners)),
        )

    def _cleared(self, number: int, fault: Fault) -> dict[str, list[Meeting]]:
        """Partners outside the part that others clear → what they measured through it alone."""
        inside = fault.component.nodes
        partners: dict[str, list[Meeting]] = defaultdict(list)
        for one in self._own[number]:
            a, b, rail, _ = one
            for name, other in ((a, b), (b, a)):
                if other in inside and name not in inside and self._clean[name, rail]:
                    partners[name].append(one)
        return partners

    def _ends_cleared(self, part: Component) -> int:
        """With how many others the worse-known end of a path was fine, on all its rails."""
        return min(
            len(self._clean[spot] - set(part.nodes)) for spot in spots(part, self._fabric.rails)
        )

    def _power(self, number: int, partners: dict[str, list[Meeting]]) -> float:
        fault = self._faults[number]
        meetings = [one for some in partners.values() for one in some]
        is_path = fault.component.kind == "path"
        if fault.kind == "dead":
            return 1.0
        if fault.kind == "corrupt":
            each = -checked(self._noise.program) * log1p(-min(fault.per_operation, 0.999))
            seen = [Events((1 - exp(-each),) * len(some)) for some in partners.values()]
            return of_events(seen, 0.0, 1, least=1 if is_path else PARTNERS, enough=1)
        if not self._comparable(number) or (
            fault.kind == "slow" and is_path and len(meetings) < OBSERVATIONS
        ):
            return 0.0
        if fault.kind == "slow":
            return self._power_of_shift(fault, len(meetings) if is_path else len(partners))
        expected = [self._events(fault, some) for some in partners.values()]
        background = self._background(fault, meetings)
        alone = is_path or fault.kind == "late"
        return of_events(
            expected,
            background,
            self._parts,
            least=1 if alone else PARTNERS,
            dispersion=self._noise.dispersion(_VISIBLE * fault.lasts_us),
        )

    def _comparable(self, number: int) -> bool:
        """Whether there are peers enough to judge one fault by, and most of them are healthy."""
        clean, total = self._clean_of
        others = total - len(self._own[number]) - len(self._shared[number])
        return clean >= LEAST_YARDSTICKS and clean > CLEAN_SHARE * others

    def _power_of_shift(self, fault: Fault, observations: int) -> float:
        noise, unrest = self._noise, self._noise.unrest
        size = max(rung.size_bytes for rung in noise.program)
        added_us = noise.wire_us(size) * (1 / fault.speed - 1)
        shift = log1p(added_us / noise.typical_us(size))
        each = sqrt(noise.log_sd(size) ** 2 + unrest.pair_log_sd**2 + unrest.spot_log_sd**2)
        return of_shift(shift, unrest.spot_log_sd, each, observations, self._parts)

    def _events(self, fault: Fault, meetings: Sequence[Meeting]) -> Events:
        """Expected with one partner. A late host is late on all rails at once: counted once."""
        each: list[Events] = []
        for rung in self._noise.program:
            took_us = self._noise.typical_us(rung.size_bytes)
            if _VISIBLE * fault.lasts_us > (_MEDIANS - 1) * took_us:
                mean = rung.operations * fault.per_operation
                each.append(apart(mean, (rung.operations * took_us + mean * fault.lasts_us) / 1e6))
        rounds = {one[3] for one in meetings}
        times = len(rounds if fault.kind == "late" else meetings)
        return together(each, times)

    def _background(self, fault: Fault, meetings: Sequence[Meeting]) -> float:
        """Events as long that healthy noise brings into as many measurements."""
        noise, unrest = self._noise, self._noise.unrest
        over_us = _VISIBLE * fault.lasts_us
        each = 0.0
        for rung in noise.program:
            seconds = rung.operations * noise.typical_us(rung.size_bytes) / 1e6
            each += rung.operations * noise.tail(rung.size_bytes, over_us)
            each += rung.operations * _rate(unrest.single, over_us)
            each += 2 * seconds * (_rate(unrest.host, over_us) + _rate(unrest.leaf, over_us))
        return each * len(meetings)

    def _among(
        self, number: int, part: Component, partners: Mapping[str, object]
    ) -> list[Component]:
        """What else the same samples may point at."""
        met = [*self._own[number], *self._shared[number]]
        if part.kind == "path":
            a, b = part.nodes
            return [_part(a, part.rail), _part(b, part.rail)]
        found = [] if part.kind != "leaf_rail" else [_part(one, part.rail) for one in part.nodes]
        outside = dict.fromkeys(name for one in met for name in one[:2] if name not in part.nodes)
        if part.kind == "leaf_rail":
            leaves = dict.fromkeys(self._fabric.leaves[name] for name in outside)
            if len(partners) < PARTNERS and part.rail is not None:
                found += [leaf_rail(self._fabric, leaf, part.rail) for leaf in leaves]
            return found
        found += [_part(one, part.rail) for one in outside if len(partners) < PARTNERS]
        pairs = dict.fromkeys((a, b) for a, b, _, _ in met)
        return found + [path(a, b, part.rail) for a, b in pairs]


def _part(name: str, rail: int | None) -> Component:
    return node(name) if rail is None else endpoint(name, rail)


def _parts(fabric: Fabric) -> int:
    """How many parts could be suspected: nodes, endpoints, paths by rail, leaves by rail."""
    paths = {(a, b) for _, a, b in fabric.meetings()}
    leaves = set(fabric.leaves.values())
    each = len(fabric.nodes) + len(paths) + len(leaves)
    return max(1, len(fabric.nodes) + each * fabric.rails)


def _rate(rare: Rare, over_us: float) -> float:
    """Of rare events that last longer than that."""
    if not rare.rate:
        return 0.0
    return rare.rate * erfc(log(over_us / rare.median_us) / rare.log_sd / sqrt(2)) / 2
