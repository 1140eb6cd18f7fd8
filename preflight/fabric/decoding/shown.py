"""What the rules that condemn see of each pair on its own: for a picture that agrees with them.

The same limits, the same events, the same log times, and the scatter that is believed of healthy
pairs: a picture by other rules points at healthy nodes where machines are busy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from preflight.fabric.decoding.events import events_on, limits_of, marks_of
from preflight.fabric.decoding.logtimes import log_times, of_latency, of_the_wire
from preflight.fabric.decoding.meetings import meetings
from preflight.fabric.decoding.numbers import number
from preflight.fabric.decoding.parts import ALL_RAILS
from preflight.fabric.decoding.shifts import HOT, Shifts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from preflight.fabric.decoding.events import Mark
    from preflight.fabric.decoding.meetings import Meetings
    from preflight.fabric.observed import Observed

Turn = tuple[str, str, int, int]
"""a, b, rail, round."""


class Events(NamedTuple):
    """Of one pair on one rail in one round; those on most of its rails count for each."""

    wire: int
    late: int
    operations: int
    longest_us: float
    """Of those that took part in an event."""


class Slower(NamedTuple):
    """Log times by turn, and from how much more on one stands out of what healthy pairs scatter."""

    logs: dict[Turn, float]
    hot: float


class Shown(NamedTuple):
    """All that a picture draws by colour."""

    events: dict[Turn, Events]
    scatter: float
    """Times the variance by Poisson's law that counts of healthy pairs have."""
    wire: Slower
    latency: Slower


def shown(observed: Observed) -> Shown:
    """See each pair by itself, as the rules do."""
    met = meetings(observed)
    turns = [(*place, number_of) for place, number_of in zip(met.places, met.rounds, strict=True)]
    backend = observed.backend
    slow = -math.log(1 - number(backend, "slow_effect"))
    late = math.log1p(number(backend, "latency_effect"))
    return Shown(
        events=_events(met, turns, number(backend, "spike_us")),
        scatter=number(backend, "event_scatter"),
        wire=_slower(
            met, turns, observed, of_the_wire(backend), slow, number(backend, "bandwidth_scatter")
        ),
        latency=_slower(met, turns, observed, of_latency, late, number(backend, "latency_scatter")),
    )


def _events(met: Meetings, turns: Sequence[Turn], least_us: float) -> dict[Turn, Events]:
    marks = marks_of(met, limits_of(met, least_us))
    found: dict[Turn, Events] = {}
    for rows in met.together:
        own = [each for row in rows if row in marks for each in marks[row]]
        wire = _by_rail([mark for host, mark in own if not host], len(rows))
        hosts = dict.fromkeys(host for host, _ in own if host)
        late = [_by_rail([m for host, m in own if host == name], len(rows)) for name in hosts]
        for row in rows:
            rail = met.places[row].rail
            each = [_on(counts, rail) for counts in (wire, *late)]
            found[turns[row]] = Events(
                wire=each[0][0],
                late=sum(count for count, _ in each[1:]),
                operations=met.operations[row],
                longest_us=max(longest for _, longest in each),
            )
    return found


def _by_rail(marks: Sequence[Mark], rails: int) -> dict[int, tuple[int, float]]:
    counts: dict[int, tuple[int, float]] = {}
    for rail, worst_us in events_on(marks, rails) if marks else ():
        count, longest = counts.get(rail, (0, 0.0))
        counts[rail] = count + 1, max(longest, worst_us)
    return counts


def _on(counts: Mapping[int, tuple[int, float]], rail: int) -> tuple[int, float]:
    own, every = counts.get(rail, (0, 0.0)), counts.get(ALL_RAILS, (0, 0.0))
    return own[0] + every[0], max(own[1], every[1])


def _slower(  # noqa: PLR0917  what one rule goes by
    met: Meetings,
    turns: Sequence[Turn],
    observed: Observed,
    wanted: Callable[[int], bool],
    effect: float,
    floor: float,
) -> Slower:
    timed = log_times(met, observed.leaves, wanted, effect)
    model = Shifts(timed, effect=effect, floor=floor)
    logs = {turns[row]: log for row, log in zip(timed.rows, timed.logs, strict=True)}
    return Slower(logs, min(effect, HOT * model.scatter))
