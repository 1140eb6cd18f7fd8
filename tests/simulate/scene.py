"""One simulated sweep, pair by pair: which healthy streams, how scaled, what delayed or failed.

Both ways out of the simulation read it: digests of thousands of nodes, every iteration of a few.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from itertools import cycle
from math import exp
from typing import TYPE_CHECKING, NamedTuple

from tests.simulate.hits import bursts, felt, lasting, merged, planted
from tests.simulate.noise import Pool, drawn
from tests.simulate.stream import Hit, checked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from random import Random

    from preflight.fabric.samples import PairState
    from tests.simulate.fabric import Fabric, Spot
    from tests.simulate.faults import Fault
    from tests.simulate.hits import Burst, Hits
    from tests.simulate.noise import Noise
    from tests.simulate.stream import Rung, Template

BEGAN_S = 1_790_000_000.0
"""When the first round begins, seconds since 1970."""

_PAUSE_S = 1.0
"""Between two rounds: to meet, to check data, to read counters."""
_MEET_S = 0.05
_CLOCK_SD_S = 0.002
_HUNG_SHARE = 0.3


class Part(NamedTuple):
    """One rung of one pair on one rail."""

    rung: Rung
    template: Template
    factor: float
    add_us: float
    hits: Hits
    began_s: float
    """Seconds after the pair met."""


class Meeting(NamedTuple):
    """One pair on one rail in one round."""

    a: str
    b: str
    rail: int
    round: int
    state: PairState
    error: str
    met_s: float
    """By the first end's clock, seconds since 1970."""
    met_second_s: float
    parts: tuple[Part, ...]


class Scene:
    """A fabric with noise and faults, from one seed."""

    def __init__(
        self,
        fabric: Fabric,
        noise: Noise,
        faults: Sequence[Fault],
        seed: int,
        pool: Pool | None = None,
    ) -> None:
        """`pool`: healthy streams that several scenes share; they are of its seed, not of ours."""
        self.fabric, self.noise, self.faults = fabric, noise, tuple(faults)
        self._seed = seed
        self._pool = Pool(noise, seed) if pool is None else pool
        self._at: dict[Spot, list[Fault]] = defaultdict(list)
        for fault in self.faults:
            for name in fault.component.nodes:
                rail = fault.component.rail
                for each in range(fabric.rails) if rail is None else (rail,):
                    self._at[name, each].append(fault)

    def meetings(self) -> Iterator[Meeting]:
        """All pairs on all rails, round by round."""
        random = self._random("streams")
        before, lane, number = -1, 0, 0
        # In an order, not at will: no two rounds of a small fabric share their noise by chance.
        takes = cycle(random.sample(range(self._pool.size), self._pool.size))
        for around, a, b in self.fabric.meetings():
            met_s = BEGAN_S + around * self.round_s + random.random() * _MEET_S
            for rail in range(self.fabric.rails):
                lane += 1
                if around != before or lane == self.noise.lanes:
                    # What ran in another round shares no burst with this one.
                    before, lane, number = around, 0, next(takes)
                templates = self._pool.take(number)[lane]
                yield self._meeting(random, (a, b, rail, around), templates, met_s)

    @cached_property
    def round_s(self) -> float:
        """How long a round takes."""
        return _PAUSE_S + self._loaded_s

    @cached_property
    def _loaded_s(self) -> float:
        templates = self._pool.take(0)[0]
        return sum(one.spent[-1] + one.idle[-1] for one in templates) / 1e6

    @cached_property
    def _spots(self) -> dict[Spot, float]:
        """Log factor of each endpoint."""
        random, spread = self._random("endpoints"), self.noise.unrest.spot_log_sd
        return {
            (name, rail): random.gauss(0, spread) if spread else 0.0
            for name in self.fabric.nodes
            for rail in range(self.fabric.rails)
        }

    @cached_property
    def _clocks(self) -> dict[str, float]:
        random = self._random("clocks")
        return {name: random.gauss(0, _CLOCK_SD_S) for name in self.fabric.nodes}

    @cached_property
    def _bursts(self) -> dict[tuple[str, int], tuple[Burst, ...]]:
        """By host or leaf, and round; only where there are any."""
        random, unrest = self._random("bursts"), self.noise.unrest
        found: dict[tuple[str, int], tuple[Burst, ...]] = {}
        leaves = dict.fromkeys(self.fabric.leaves.values())
        for around in range(len(self.fabric.rounds)):
            for names, rare in ((self.fabric.nodes, unrest.host), (leaves, unrest.leaf)):
                for name in names if rare.rate else ():
                    if some := bursts(random, rare, name, self.round_s):
                        found[name, around] = some
        return found

    def _meeting(
        self,
        random: Random,
        where: tuple[str, str, int, int],
        templates: Sequence[Template],
        met_s: float,
    ) -> Meeting:
        a, b, rail, _ = where
        unrest = self.noise.unrest
        factor, hop_us = 1.0, 0.0
        if unrest.pair_log_sd:
            log = random.gauss(0, unrest.pair_log_sd) + self._spots[a, rail] + self._spots[b, rail]
            factor = exp(log)
            hop_us = unrest.hop_us if self.fabric.far(a, b) else 0.0
        alone = random.random()
        faults = self._faults(a, b, rail)
        state: PairState = "measured"
        error = ""
        if faults:
            state, error = self._state(faults, where)
        parts: list[Part] = []
        began_s = 0.0
        if state in ("measured", "corrupt"):
            kept = len(templates) - (state == "corrupt")
            for rung, template in zip(self.noise.program[:kept], templates, strict=False):
                shift_us = hop_us + self._slower_us(faults, rung)
                length_s = (
                    template.idle[-1] + factor * template.spent[-1] + shift_us * rung.operations
                ) / 1e6
                hits = self._hits(where, rung, (met_s + began_s, length_s), faults)
                alone -= unrest.single.rate * rung.operations
                if alone < 0:
                    alone = 1.0
                    extra_us = lasting(random, unrest.single)
                    hits = merged(
                        (hits, {random.randrange(rung.operations): Hit(extra_us, extra_us)})
                    )
                parts.append(Part(rung, template, factor, shift_us, hits, began_s))
                began_s += length_s + sum(hit.first + hit.first_gap for hit in hits.values()) / 1e6
        clocks = self._clocks
        return Meeting(*where, state, error, met_s + clocks[a], met_s + clocks[b], tuple(parts))

    def _faults(self, a: str, b: str, rail: int) -> list[Fault]:
        here = self._at.get((a, rail), ()), self._at.get((b, rail), ())
        if not any(here):
            return []
        both = {id(one): one for some in here for one in some}
        return [one for one in both.values() if one.hits(a, b, rail)]

    def _state(
        self, faults: Sequence[Fault], where: tuple[str, str, int, int]
    ) -> tuple[PairState, str]:
        a, b, rail, _ = where
        random = self._random("state", *where)
        large = checked(self.noise.program)
        state: PairState = "measured"
        for fault in faults:
            if fault.kind == "dead":
                return ("hung" if random.random() < _HUNG_SHARE else "no_connect"), (
                    f"no answer on rail {rail}"
                )
            if fault.kind == "corrupt":
                share = 1 - (1 - fault.per_operation) ** large
                state = "corrupt" if random.random() < share else state
        return state, f"sums between {a} and {b} are wrong" if state == "corrupt" else ""

    def _slower_us(self, faults: Sequence[Fault], rung: Rung) -> float:
        """What slow parts add to an operation: the slowest of them decides."""
        speed = min((fault.speed for fault in faults if fault.kind == "slow"), default=1.0)
        return self.noise.wire_us(rung.size_bytes) * (1 / speed - 1) if speed < 1 else 0.0

    def _hits(
        self,
        where: tuple[str, str, int, int],
        rung: Rung,
        span: tuple[float, float],
        faults: Sequence[Fault],
    ) -> Hits:
        all_hits = [self._planted(fault, where, rung) for fault in faults if fault.lasts_us]
        found = self._felt(where, rung, span)
        if found:
            all_hits.append(found)
        return merged(all_hits) if all_hits else {}

    def _planted(self, fault: Fault, where: tuple[str, str, int, int], rung: Rung) -> Hits:
        if fault.kind not in ("spikes", "late", "loss"):
            return {}
        a, _, rail, around = where
        part = fault.component
        # A late host is late on all its rails at once.
        place = ("late", around) if fault.kind == "late" else (*where,)
        random = self._random("fault", part.name, rung.size_bytes, *place)
        del rail
        return planted(fault, random, rung.operations, rung.size_bytes, at_a=a in part.nodes)

    def _felt(
        self, where: tuple[str, str, int, int], rung: Rung, span: tuple[float, float]
    ) -> Hits:
        a, b, _, around = where
        if not self._bursts:
            return {}
        began_s, length_s = span
        round_began_s = BEGAN_S + around * self.round_s
        leaves = {self.fabric.leaves[name] for name in (a, b) if name in self.fabric.leaves}
        hits: Hits = {}
        for name in (a, b, *sorted(leaves)):
            for number, burst in enumerate(self._bursts.get((name, around), ())):
                into_s = round_began_s + burst.at_s - began_s
                if not 0 <= into_s < length_s:
                    continue
                random = self._random("felt", name, number, rung.size_bytes, *where)
                hit = felt(burst, a, random, by_leaf=name in leaves)
                if hit is not None:
                    hits[int(into_s / length_s * rung.operations)] = hit
        return hits

    def _random(self, *of: object) -> Random:
        return drawn(self._seed, *of)
