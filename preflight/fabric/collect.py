"""The accounts of a sweep as they come in: each checked against what its node was asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.fabric.samples import End, PairSamples, Timing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preflight.fabric.events import PairSeen
    from preflight.fabric.roster import Roster

    Key = tuple[int, int, str, str]


_FEW = 64  # only the last stragglers are looked at pair by pair


class Collected:
    """What has been said so far, by whom, and who is through."""

    def __init__(self, who: Roster) -> None:
        self.names = frozenset(who.names)
        self.done: set[str] = set()
        self.lost: set[str] = set()
        self.troubles: dict[str, str] = {}
        self._who = who
        self._iterations = {rung.size_bytes: rung.iterations for rung in who.ladder}
        self._ends: dict[Key, dict[str, End]] = {
            (number, rail, a, b): {}
            for number, around in enumerate(who.rounds)
            for a, b in around
            for rail in range(who.rails)
        }
        self.expected = 2 * len(self._ends)
        self.accounts = 0

    def waiting(self) -> list[str]:
        """Who is neither through nor lost, in fleet order."""
        return [name for name in self._who.names if name not in self.done | self.lost]

    def open(self) -> bool:
        """Whether any pair of two nodes still under way has not been heard of by either end."""
        under_way = set(self.waiting())
        return len(under_way) > _FEW or any(
            not ends and a in under_way and b in under_way
            for (_, _, a, b), ends in self._ends.items()
        )

    def take(self, name: str, seen: PairSeen) -> bool:
        """Keep one account; False if that node was never asked for it or cannot have seen it."""
        ends = self._ends.get((seen.round, seen.rail, seen.a, seen.b))
        plausible = ends is not None and name in (seen.a, seen.b) and self._fits(seen)
        if ends is None or not plausible or name in ends:
            return False
        ends[name] = End(
            node=name,
            state=seen.state,
            timings=seen.timings,
            error=seen.error,
            started_s=seen.started_s,
            setup_ms=seen.setup_ms,
        )
        self.accounts += 1
        return True

    def lose(self, name: str, reason: str) -> None:
        """Count a node as gone; what it said before is kept."""
        if name not in self.done:
            self.lost.add(name)
            self.troubles.setdefault(name, reason)

    def give_up(self, names: Iterable[str]) -> None:
        """Wait no longer for these nodes."""
        for name in names:
            self.lose(name, "its agent said nothing more, and did not finish in time")

    def pairs(self) -> tuple[PairSamples, ...]:
        """Both ends' accounts of every pair, rail and round of the launch."""
        return tuple(
            PairSamples(a, b, rail, number, self._who.backend, ends.get(a), ends.get(b))
            for (number, rail, a, b), kept in self._ends.items()
            for ends in (self._excused(a, b, kept),)
        )

    def blamable(self) -> dict[str, str]:
        """Who fell silent or in trouble. When the store went, that explains all the others."""
        host = self._who.names[0]
        return {host: self.troubles[host]} if host in self.lost else dict(self.troubles)

    def _excused(self, a: str, b: str, ends: dict[str, End]) -> dict[str, End]:
        """Without the store, a pair of other nodes that was not finished says nothing of them."""
        host = self._who.names[0]
        finished = {end.state for end in ends.values()} == {"measured"}
        if host not in self.lost or host in (a, b) or finished:
            return ends
        error = f"{host}, which hosted the sweep's store, was lost"
        return {name: End(node=name, state="not_run", error=error) for name in (a, b)}

    def _fits(self, seen: PairSeen) -> bool:
        """Within the ladder: each size once, no more iterations than were asked for."""
        sizes = [timing.size_bytes for timing in seen.timings]
        return (
            seen.backend == self._who.backend
            and len(set(sizes)) == len(sizes)
            and (seen.state != "measured" or bool(sizes))
            and all(self._asked(timing) for timing in seen.timings)
        )

    def _asked(self, timing: Timing) -> bool:
        count = len(timing.times_us)
        most = self._iterations.get(timing.size_bytes, 0)
        return 0 < count <= most and len(timing.gaps_us) == count
