"""Collects the results that each end reports: of pairs, inside nodes, over NVLink between nodes.

Each end's account is kept once, if that end was asked for it and the account is possible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from preflight.fabric.samples import End, InsideSamples, PairSamples, Phase, Rung

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from preflight.fabric.agent_events import Account, DomainSeen, InsideSeen, PairSeen
    from preflight.fabric.roster import Roster
    from preflight.fabric.schedule import Rounds

    Key = tuple[int, int, str, str]
    """Round, rail, and both nodes."""
    Kind = tuple[int, Phase]


Where = TypeVar("Where")
Whose = TypeVar("Whose")


class Accounts(Generic[Where, Whose]):
    """One account per place of measurement and per end that was asked."""

    def __init__(self, who: Roster) -> None:
        self.ends: dict[Where, dict[Whose, End]] = {}
        self._backend = who.backend
        self._asked: dict[Where, tuple[Collection[Whose], Mapping[Kind, int]]] = {}

    def ask(self, where: Where, ends: Collection[Whose], most: Mapping[Kind, int]) -> None:
        """Expect accounts of these ends; `most`: requested iterations by size and phase."""
        self.ends[where] = {}
        self._asked[where] = ends, most

    def keep(self, where: Where, whose: Whose, name: str, seen: Account) -> bool:
        """Keep one account; False if that end was not asked for it or cannot have measured it."""
        asked, most = self._asked.get(where, ((), {}))
        if whose not in asked or whose in self.ends[where] or not fits(seen, self._backend, most):
            return False
        self.ends[where][whose] = end(name, seen)
        return True


class Insides(Accounts[str, int]):
    """One account per rail of every node that has several rails."""

    def __init__(self, who: Roster) -> None:
        super().__init__(who)
        self._rails = {name: who.rails_of(name) for name in who.names if who.looks_inside(name)}
        for name, rails in self._rails.items():
            self.ask(name, rails, iterations((*who.ladder, *who.inside_sizes)))

    @property
    def missing(self) -> Iterator[str]:
        """Nodes of which a rail's account is missing."""
        return (name for name, rails in self._rails.items() if len(self.ends[name]) < len(rails))

    def take(self, name: str, seen: InsideSeen) -> bool:
        """Keep one account; False as above."""
        return self.keep(name, seen.rail, name, seen)

    def samples(self) -> tuple[InsideSamples, ...]:
        """All accounts as samples."""
        return tuple(
            InsideSamples(
                name,
                self._backend,
                tuple(map(self.ends[name].get, rails)),
                () if rails == list(range(len(rails))) else tuple(rails),
            )
            for name, rails in self._rails.items()
        )


class PairAccounts(Accounts["Key", str]):
    """One account of each end on every rail of every pair of some rounds."""

    def expect(
        self, who: Roster, rounds: Rounds, most: Mapping[Kind, int], first: int = 0
    ) -> PairAccounts:
        """Ask for these rounds, numbered from `first` on."""
        for number, around in enumerate(rounds, first):
            for pair in around:
                for rail in who.rails_of(*pair):
                    self.ask((number, rail, *pair), pair, most)
        return self

    @property
    def missing(self) -> Iterator[str]:
        """Nodes of which an account is missing."""
        return (name for key, ends in self.ends.items() for name in key[2:] if name not in ends)

    def take(self, name: str, seen: PairSeen | DomainSeen) -> bool:
        """Keep one account; False as above."""
        return self.keep((seen.round, seen.rail, seen.a, seen.b), name, name, seen)

    def samples(self) -> tuple[PairSamples, ...]:
        """All accounts as samples."""
        return tuple(
            PairSamples(a, b, rail, number, self._backend, ends.get(a), ends.get(b))
            for (number, rail, a, b), ends in self.ends.items()
        )


def iterations(rungs: Iterable[Rung], soak: Rung | None = None) -> dict[Kind, int]:
    """How many iterations of each size are asked for, by size and phase."""
    most: dict[Kind, int] = {(rung.size_bytes, "ladder"): rung.iterations for rung in rungs}
    return most | {(soak.size_bytes, "soak"): soak.iterations} if soak is not None else most


def fits(seen: Account, backend: str, most: Mapping[Kind, int]) -> bool:
    """Whether an account is possible: each size as requested and once, no more iterations."""
    timings = {(timing.size_bytes, timing.phase): timing for timing in seen.timings}
    return (
        seen.backend == backend
        and len(timings) == len(seen.timings)
        and (seen.state != "measured" or bool(timings))
        and all(
            0 < len(timing.times_us) <= most.get(kind, 0)
            and len(timing.gaps_us) == len(timing.times_us) >= len(timing.resumed)
            for kind, timing in timings.items()
        )
    )


def end(name: str, seen: Account) -> End:
    """Convert an account to a sample's end."""
    own = (each for each in End.__struct_fields__ if each != "node")
    return End(name, **{each: getattr(seen, each) for each in own})
