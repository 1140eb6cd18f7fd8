"""Medians and percentiles agree with their definitions, also with some owners left out."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.core.statistics import LeaveOut, median, nearest_rank

NUMBERS = st.lists(st.floats(0, 1e9), min_size=1, max_size=50)
OWNED = st.lists(st.tuples(st.floats(0, 1e9), st.sets(st.sampled_from("abcdef"), max_size=2)))


@given(NUMBERS)
def test_the_median_is_the_median(values: list[float]) -> None:
    """The same as the standard library's."""
    assert median(values) == pytest.approx(statistics.median(values))


@given(NUMBERS, st.floats(0.01, 1))
def test_a_percentile_was_really_measured(values: list[float], share: float) -> None:
    """Nearest rank: one of the values, and at least that share does not exceed it."""
    found = nearest_rank(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9


def test_p99_of_few_samples_is_their_largest() -> None:
    """Below a hundred samples p99 is the maximum, as in nccl-tests."""
    assert nearest_rank([1.0] * 98 + [9.0], 0.99) == 9.0
    assert nearest_rank([float(n) for n in range(1, 101)], 0.99) == 99.0


@pytest.mark.parametrize("of", [median, lambda values: nearest_rank(values, 0.5)])
def test_nothing_has_no_median(of: object) -> None:
    """No samples is an error to be handled, not a zero."""
    with pytest.raises(ValueError, match="unknown"):
        of([])  # type: ignore[operator]


@given(OWNED, st.sets(st.sampled_from("abcdef"), max_size=3))
def test_leaving_owners_out_is_the_median_of_the_rest(
    owned: list[tuple[float, set[str]]], without: set[str]
) -> None:
    """The quick walk gives what filtering and sorting anew would."""
    rest = [value for value, owners in owned if not owners & without]
    found = LeaveOut(owned)
    assert found.median(without) == (pytest.approx(statistics.median(rest)) if rest else None)
