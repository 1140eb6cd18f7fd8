"""What a picture draws of each pair is what the rules of blame have counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preflight.core.thresholds import SHIPPED
from preflight.fabric.decoding.parts import ALL_RAILS, read_meetings
from preflight.fabric.decoding.rare_events import count_events
from preflight.fabric.decoding.sensitivity import heatmap_values
from tests.unit.report.fabrics import fabric

if TYPE_CHECKING:
    from preflight.fabric.observed import Observed


def odd(a: str, b: str, rail: int) -> int:
    """Some pairs have spikes on their first rail, one node has them on all."""
    return 4 if "n0002" in (a, b) else int(a[-1]) % 3 if rail == 0 else 0


def counted(observed: Observed, *, late: bool) -> tuple[int, int]:
    """Events that the rule counts: on single rails, and on most of a pair's at once."""
    watched = count_events(read_meetings(observed), SHIPPED("gloo.spike_us"))
    rows = watched.late if late else watched.wire
    both = list(zip(rows.places, rows.events, strict=True))
    together = sum(events for place, events in both if place.rail == ALL_RAILS)
    return sum(events for _, events in both) - together, together


@pytest.mark.parametrize("late", ["", "n0002"])
@pytest.mark.parametrize("rails", [1, 4])
def test_every_event_is_drawn_where_it_was_counted(rails: int, late: str) -> None:
    """On its rail; what hit most rails of a pair at once on each of them."""
    observed = fabric(6, rails=rails, spikes=odd, late=late)
    seen = heatmap_values(observed).events.values()
    for is_late in (False, True):
        single, together = counted(observed, late=is_late)
        drawn = sum(one.late if is_late else one.wire for one in seen)
        assert drawn == single + rails * together
    assert sum(one.wire + one.late for one in seen) > 0


def test_a_fabric_without_times_shows_nothing() -> None:
    """No pair was measured to its end."""
    seen = heatmap_values(fabric(4, lambda *_: "hung"))
    assert (seen.events, seen.wire.logs, seen.latency.logs) == ({}, {}, {})
