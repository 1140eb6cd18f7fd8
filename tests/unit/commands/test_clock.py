"""A sweep's time: when it must end, and what each wave gets of what is left."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.commands.nightly.command import typed_end
from preflight.commands.nightly.wave_runner import LEAST_SHARE, wave_budget_s
from preflight.errors import UsageError

NOW = datetime(2026, 11, 22, 1, 30, tzinfo=UTC)


def test_until_is_the_next_time_the_clock_shows_it() -> None:
    """06:00 is this morning, 01:00 tomorrow; a date may be given; the earlier end counts."""
    assert typed_end("06:00", None, NOW) == NOW.replace(hour=6, minute=0)
    assert typed_end("01:00", None, NOW) == NOW.replace(day=23, hour=1, minute=0)
    assert typed_end("2026-11-24T05:00", None, NOW) == datetime(2026, 11, 24, 5, tzinfo=UTC)
    assert typed_end("06:00", "90m", NOW) == NOW + timedelta(minutes=90)
    assert typed_end(None, None, NOW) is None


@pytest.mark.parametrize(
    ("until", "budget"),
    [("6", None), ("25:00", None), ("2026-11-21T05:00", None), ("", None), (None, "5"),
     (None, "0h"), (None, "-1h"), (None, "900d")],
)  # fmt: skip
def test_odd_times_are_refused(until: str | None, budget: str | None) -> None:
    """What is no time, has passed, or is no length for a sweep: one line that says what to type."""
    with pytest.raises(UsageError, match=r"give a (later )?time|give 1 minute to 30 days"):
        typed_end(until, budget, NOW)


@given(st.floats(1, 1e5), st.floats(0, 1e6), st.integers(1, 300))
def test_waves_fit_into_what_is_left(usual_s: float, left_s: float, waves: int) -> None:
    """No wave gets more than is left or usual, nor too little to be worth it."""
    budget_s = wave_budget_s(usual_s, left_s, waves)
    if budget_s is None:
        assert left_s < usual_s * LEAST_SHARE
    else:
        assert usual_s * LEAST_SHARE <= budget_s <= min(usual_s, left_s)


def test_a_short_night_is_shared() -> None:
    """Four hours for eight waves of an hour: half an hour each; without an end the usual time."""
    assert wave_budget_s(3600, 4 * 3600, 8) == 1800
    assert wave_budget_s(3600, 600, 8) == 300
    assert wave_budget_s(3600, None, 8) == 3600
