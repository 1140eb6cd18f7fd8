"""Shares are printed with the interval that they leave open."""

from __future__ import annotations

import pytest

from tests.bench.proportion import clopper_pearson


def test_the_exact_interval_is_the_tabulated_one() -> None:
    """Known values; none of 300 leaves 1.2 % open."""
    for hits, tries, interval in (
        (0, 300, (0.0, 0.01222)),
        (300, 300, (0.98778, 1.0)),
        (5, 10, (0.18709, 0.81291)),
        (0, 0, (0.0, 1.0)),
    ):
        assert clopper_pearson(hits, tries) == pytest.approx(interval, abs=1e-5)
