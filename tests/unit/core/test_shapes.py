"""Two modes and drifts: found where they are, and in no noise that has one mode and stays."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.fabric.shapes import LEAST as DRIFT_LEAST
from preflight.fabric.shapes import MODES_LEAST, SHARE, drift, two_modes

if TYPE_CHECKING:
    from collections.abc import Callable

UNIMODAL: dict[str, Callable[[random.Random], float]] = {
    "normal": lambda noise: noise.gauss(100, 5),
    "uniform": lambda noise: noise.uniform(1, 2),
    "exponential": lambda noise: noise.expovariate(1) + 0.01,
    "log-normal": lambda noise: noise.lognormvariate(0, 1),
    "heavy tail": lambda noise: 20 * noise.paretovariate(2),
    "whole microseconds": lambda noise: float(round(noise.gauss(20, 1))),
}


def _noise(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311  a series for tests, no secret


@pytest.mark.parametrize("kind", UNIMODAL)
@pytest.mark.parametrize("count", [MODES_LEAST, 400])
def test_noise_with_one_mode_shows_nothing(kind: str, count: int) -> None:
    """Of 300 series of each kind none has two modes, and none drifts."""
    noise, draw = _noise(1), UNIMODAL[kind]
    for _ in range(300):
        series = [draw(noise) for _ in range(count)]
        assert two_modes(series) is None
        assert drift(series) is None


@settings(max_examples=60, deadline=None)
@given(
    st.integers(MODES_LEAST, 600),
    st.floats(0.2, 0.8),
    st.floats(1.5, 50),
    st.integers(0, 10**6),
    st.floats(1e-3, 1e6),
)
def test_two_modes_are_found_at_any_scale(
    count: int, share: float, ratio: float, seed: int, scale: float
) -> None:
    """Clusters of 4 % width with a fifth of the values or more, in any order and unit."""
    noise = _noise(seed)
    slow = round(share * count)
    series = [scale * ratio * math.exp(noise.gauss(0, 0.04)) for _ in range(slow)]
    series += [scale * math.exp(noise.gauss(0, 0.04)) for _ in range(count - slow)]
    noise.shuffle(series)
    found = two_modes(series)
    assert found is not None
    assert found.high / found.low == pytest.approx(ratio, rel=0.05)
    assert found.share_high == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("share", [0.01, SHARE / 2])
def test_a_few_spikes_are_no_mode(share: float) -> None:
    """What is rarer than a tenth is a tail, which other tests judge."""
    noise = _noise(2)
    series = [noise.gauss(1000 if noise.random() < share else 20, 1) for _ in range(1000)]
    assert two_modes(series) is None


@settings(max_examples=60, deadline=None)
@given(
    st.integers(DRIFT_LEAST, 1500),
    st.floats(0.3, 3).flatmap(lambda change: st.sampled_from([change, -change / (1 + change)])),
    st.integers(0, 10**6),
)
def test_a_drift_is_found_with_its_size(count: int, change: float, seed: int) -> None:
    """A steady creep of 30 % and more in noise of 5 %, up or down, spikes among it."""
    noise = _noise(seed)
    series = [
        math.exp(at / (count - 1) * math.log1p(change) + noise.gauss(0, 0.05))
        * (50 if noise.random() < 0.01 else 1)
        for at in range(count)
    ]
    found = drift(series)
    assert found is not None
    # The ends are the middles of the first and last twelfth.
    assert math.log(found.end / found.start) == pytest.approx(
        math.log1p(change) * 11 / 12, rel=0.25
    )


def test_a_burst_is_no_drift() -> None:
    """A slow stretch that passes goes up and down again."""
    series = [50.0 if 400 < at < 600 else 20.0 + at % 7 for at in range(1000)]
    assert drift(series) is None


def test_too_little_is_no_series() -> None:
    """Few values, equal ones, and none at all say nothing."""
    for series in ([], [1.0] * 500, [1.0, 9.0] * (MODES_LEAST // 2 - 1)):
        assert two_modes(series) is None
    assert drift([]) is None
    assert drift([float(at + 1) for at in range(DRIFT_LEAST - 1)]) is None
