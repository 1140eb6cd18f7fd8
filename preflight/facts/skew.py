"""Whose clock is off: each is known to lie in an interval, and most of the intervals meet.

Marzullo's rule: the moment that lies in the most intervals is the time, and who does not hold it
is off by at least his distance from it. The uncertainty of a round trip can so condemn nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from preflight.facts.limits import limit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.facts.node import Clock

HERE: Final = ""
"""The clock of this machine among the nodes': a voice, and no part of the job."""


@dataclass(frozen=True, slots=True)
class Time:
    """Where most clocks agree, ahead of this machine's by `from_s` to `to_s`."""

    from_s: float
    to_s: float
    votes: int
    of: int

    @property
    def decides(self) -> bool:
        """More than half of the clocks, so that the others are off and not these."""
        return self.votes * 2 > self.of

    def off_s(self, clock: Clock) -> float:
        """How far a clock is off at least: positive ahead, negative behind, 0 within it."""
        if clock.ahead_s - clock.uncertain_s > self.to_s:
            return clock.ahead_s - clock.uncertain_s - self.to_s
        return min(0.0, clock.ahead_s + clock.uncertain_s - self.from_s)


def agreed(clocks: Sequence[Clock]) -> Time:
    """The moment that most clocks hold possible; each may be half of what matters off by itself."""
    slack_s = limit("clock_apart_s") / 2
    edges = [(clock.ahead_s - clock.uncertain_s - slack_s, -1) for clock in clocks]
    edges += [(clock.ahead_s + clock.uncertain_s + slack_s, 1) for clock in clocks]
    edges.sort()
    best, inside = Time(0.0, 0.0, 0, len(clocks)), 0
    for at, (edge_s, kind) in enumerate(edges):
        inside -= kind
        if inside > best.votes:
            best = Time(edge_s, edges[at + 1][0], inside, len(clocks))
    return best


@dataclass(frozen=True, slots=True)
class Astray:
    """How far a clock is off: as it was seen, and at least, whatever the round trip hid."""

    seen_s: float
    at_least_s: float


def off(clocks: Mapping[str, Clock], time: Time) -> dict[str, Astray]:
    """The clocks that are off by so much that it matters, by name, the farthest first."""
    middle_s = (time.from_s + time.to_s) / 2
    found = {
        name: Astray(clock.ahead_s - middle_s, abs(time.off_s(clock)))
        for name, clock in clocks.items()
    }
    slack_s = limit("clock_apart_s") / 2
    far = [(name, one) for name, one in found.items() if one.at_least_s > slack_s]
    return dict(sorted(far, key=lambda named: -named[1].at_least_s))


def worded(off_s: float) -> str:
    """3600.1 s ahead, 4.2 s behind."""
    return f"{abs(off_s):.1f} s {'ahead' if off_s > 0 else 'behind'}"
