"""What rails say of the all-reduces after the rounds, checked against what was asked.

Those inside of each node, and those over NVLink between the nodes of a domain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.fabric.samples import End, InsideSamples, PairSamples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.fabric.events import Account, DomainSeen, InsideSeen
    from preflight.fabric.roster import Roster
    from preflight.fabric.samples import Timing


class Insides:
    """One account per rail of every node that was asked; nobody where nodes have one rail."""

    def __init__(self, who: Roster) -> None:
        self._backend = who.backend
        self._asked = _Asked(who)
        self._rails = {name: who.rails_of(name) for name in who.names if who.looks_inside(name)}
        self._ends: dict[str, dict[int, End]] = {name: {} for name in self._rails}

    @property
    def missing(self) -> Iterator[str]:
        """Nodes of which not all rails have spoken."""
        return (name for name, ends in self._ends.items() if len(ends) < len(self._rails[name]))

    def take(self, name: str, seen: InsideSeen) -> bool:
        """Keep one account; False if that node was never asked for it or cannot have seen it."""
        ends = self._ends.get(name)
        plausible = seen.rail in self._rails.get(name, ()) and self._asked.fits(seen)
        if ends is None or not plausible or seen.rail in ends:
            return False
        ends[seen.rail] = end(name, seen)
        return True

    def samples(self) -> tuple[InsideSamples, ...]:
        """All that was told."""
        return tuple(
            InsideSamples(
                name,
                self._backend,
                tuple(map(ends.get, rails)),
                () if rails == list(range(len(rails))) else tuple(rails),
            )
            for name, ends in self._ends.items()
            for rails in (self._rails[name],)
        )


class DomainPairs:
    """One account of each end on every rail of every pair over NVLink between nodes."""

    def __init__(self, who: Roster) -> None:
        self._backend = who.backend
        self._asked = _Asked(who)
        self._ends: dict[tuple[int, int, str, str], dict[str, End]] = {
            (number, rail, a, b): {}
            for number, around in enumerate(who.domain_rounds)
            for a, b in around
            for rail in who.rails_of(a, b)
        }

    @property
    def missing(self) -> Iterator[str]:
        """Nodes of which not all accounts are there."""
        return (
            name for (_, _, *pair), ends in self._ends.items() for name in pair if name not in ends
        )

    def take(self, name: str, seen: DomainSeen) -> bool:
        """Keep one account; False if that node was never asked for it or cannot have seen it."""
        ends = self._ends.get((seen.round, seen.rail, seen.a, seen.b))
        plausible = name in (seen.a, seen.b) and self._asked.fits(seen)
        if ends is None or not plausible or name in ends:
            return False
        ends[name] = end(name, seen)
        return True

    def samples(self) -> tuple[PairSamples, ...]:
        """All that was told."""
        return tuple(
            PairSamples(a, b, rail, number, self._backend, ends.get(a), ends.get(b))
            for (number, rail, a, b), ends in self._ends.items()
        )


class _Asked:
    """The sizes of the ladder and those beyond it, each once, no more iterations than ordered."""

    def __init__(self, who: Roster) -> None:
        self._backend = who.backend
        self._most = {rung.size_bytes: rung.iterations for rung in (*who.ladder, *who.inside_sizes)}

    def fits(self, seen: Account) -> bool:
        """Whether such an account can be."""
        sizes = [timing.size_bytes for timing in seen.timings]
        return (
            seen.backend == self._backend
            and len(set(sizes)) == len(sizes)
            and (seen.state != "measured" or bool(sizes))
            and all(self._asked(timing) for timing in seen.timings)
        )

    def _asked(self, timing: Timing) -> bool:
        count = len(timing.times_us)
        most = self._most.get(timing.size_bytes, 0)
        told = len(timing.gaps_us) == count and len(timing.resumed) <= count
        return timing.phase == "ladder" and 0 < count <= most and told


def end(name: str, seen: Account) -> End:
    """One account, as samples keep it."""
    return End(
        node=name,
        state=seen.state,
        timings=seen.timings,
        error=seen.error,
        started_s=seen.started_s,
        setup_ms=seen.setup_ms,
        moved=seen.moved,
        unread=seen.unread,
        net=seen.net,
        stepped_s=seen.stepped_s,
        stalls=seen.stalls,
    )
