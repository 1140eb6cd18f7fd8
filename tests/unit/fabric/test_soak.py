"""How long a soak must be is arithmetic: the rate one wants to catch, and the rounds there are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.fabric.schedule import circle_rounds
from preflight.fabric.sweep_plan import (
    MOST_ITERATIONS,
    SweepPlan,
    loaded_s,
    per_pair_s,
    plan_to_catch,
)

FOUR = ("h1", "h2", "h3", "h4")


@pytest.mark.parametrize(("rate", "seconds"), [(0.1, 46.05), (1 / 60, 276.3), (10.0, 0.4605)])
def test_the_load_that_shows_a_rate(rate: float, seconds: float) -> None:
    """One event in 10 s takes 46 s of load to be seen with 99 %, one in a minute 276 s."""
    assert loaded_s(rate) == pytest.approx(seconds, rel=1e-3)
    assert 1 - math.exp(-rate * loaded_s(rate)) == pytest.approx(0.99)


def test_a_nodes_partners_share_the_load() -> None:
    """Three rounds: each pair brings a third; whoever has the fewest turns decides."""
    assert per_pair_s(0.1, circle_rounds(FOUR)) == pytest.approx(46.05 / 3, rel=1e-3)
    assert per_pair_s(0.1, ((("h1", "h2"),), (("h1", "h3"),))) == pytest.approx(46.05, rel=1e-3)


@given(st.floats(0.001, 100.0))
def test_a_soak_keeps_within_its_bounds_and_sizes_in_which_spikes_show(rate: float) -> None:
    """Whatever the rate: no endless account, no size beyond a third of a spike of 10 ms."""
    plan = SweepPlan(nodes=FOUR, rounds=circle_rounds(FOUR))
    deep = plan_to_catch(plan, rate)
    for soak, most_bytes in ((deep.gloo_soak, 4 << 20), (deep.nccl_soak, 128 << 20)):
        assert soak is not None
        assert 3 <= soak.iterations <= MOST_ITERATIONS
        assert soak.size_bytes <= most_bytes
    assert deep.gloo_budget.barrier_s > deep.gloo_budget.soak_s == deep.nccl_budget.soak_s
    assert deep.gloo == plan.gloo
