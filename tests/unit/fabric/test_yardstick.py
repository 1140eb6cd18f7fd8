"""What few pairs say of how healthy ones scatter: enough to judge by, or not."""

from __future__ import annotations

from preflight.fabric.decoding.parts import Exposures, Place
from preflight.fabric.decoding.rare_events import Rates
from preflight.fabric.decoding.shifts import LogTimes, Shifts

UNEVEN = {
    ("n1", "n2"): 1.09,
    ("n1", "n3"): -0.13,
    ("n1", "n4"): 0.51,
    ("n1", "n5"): 0.99,
    ("n1", "n6"): 0.26,
    ("n2", "n3"): 0.53,
    ("n2", "n4"): 0.16,
    ("n2", "n5"): 0.74,
    ("n2", "n6"): -0.35,
    ("n3", "n4"): -0.5,
    ("n3", "n5"): 0.61,
    ("n3", "n6"): 0.82,
    ("n4", "n5"): 0.5,
    ("n4", "n6"): 0.4,
    ("n5", "n6"): 0.84,
}
"""Log times of six healthy hosts on two shared cores."""


def test_the_faster_half_of_what_scatters_evenly_is_not_the_healthy_one() -> None:
    """A host somewhat slower than most is no fault where all pairs differ by as much."""
    places = [Place(a, b, 0) for a, b in UNEVEN]
    times = LogTimes(places, list(UNEVEN.values()), repeated=False)
    model = Shifts(times, effect=0.916, floor=0.15)
    strength, gain = model.fit([at for at, one in enumerate(places) if "n5" in one])
    assert strength < 0.916
    assert gain < 11


def test_a_few_calm_pairs_are_luck_where_events_are_usual() -> None:
    """156 events in 22 pairs against 16 in 6, on shared hosts: one rate for all explains that."""
    events = [7] * 20 + [8, 8] + [3, 3, 3, 3, 2, 2]
    rows = Exposures(
        places=[Place(f"n{at}", "n0", 0) for at in range(len(events))],
        operations=[1230] * len(events),
        loaded_s=[1.0] * len(events),
        events=events,
        worst_us=[9e3] * len(events),
    )
    usual = Rates(rows, most=4, effect=0.002, usual=0.01).fit(range(22))[1]
    never = Rates(rows, most=4, effect=0.002).fit(range(22))[1]
    assert usual < 10 < never
