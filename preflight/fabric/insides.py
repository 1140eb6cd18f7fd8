"""What the rails of each node say of their own all-reduce, checked against what was asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.fabric.samples import End, InsideSamples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.fabric.events import Account, InsideSeen
    from preflight.fabric.roster import Roster
    from preflight.fabric.samples import Timing


class Insides:
    """One account per rail of every node that was asked; nobody where nodes have one rail."""

    def __init__(self, who: Roster) -> None:
        self._backend = who.backend
        self._most = {rung.size_bytes: rung.iterations for rung in (*who.ladder, *who.inside_sizes)}
        self._rails = {name: who.rails_of(name) for name in who.names if who.looks_inside(name)}
        self._ends: dict[str, dict[int, End]] = {name: {} for name in self._rails}

    @property
    def missing(self) -> Iterator[str]:
        """Nodes of which not all rails have spoken."""
        return (name for name, ends in self._ends.items() if len(ends) < len(self._rails[name]))

    def take(self, name: str, seen: InsideSeen) -> bool:
        """Keep one account; False if that node was never asked for it or cannot have seen it."""
        ends = self._ends.get(name)
        sizes = [timing.size_bytes for timing in seen.timings]
        plausible = (
            seen.rail in self._rails.get(name, ())
            and seen.backend == self._backend
            and len(set(sizes)) == len(sizes)
            and (seen.state != "measured" or bool(sizes))
            and all(self._asked(timing) for timing in seen.timings)
        )
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
