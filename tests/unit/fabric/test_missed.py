"""What a clean sweep could have shown: no more than the rule that condemns would have seen."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.fabric.decoding import find
from preflight.fabric.decoding.missed import POWER, mean_for, missed
from tests.unit.fabric.fabrics import Made


@pytest.mark.parametrize(("nodes", "rails"), [(4, 1), (4, 8), (8, 1), (17, 2), (64, 8)])
def test_the_rate_that_would_have_been_named_is_named(nodes: int, rails: int) -> None:
    """Spikes at just the rate that is promised, put into the same fabric, condemn the endpoint."""
    worst = next(one for one in missed(Made(nodes=nodes, rails=rails).observed()) if one.rail == 0)
    assert worst.one_in is not None
    each = math.ceil(worst.operations / worst.one_in / worst.pairs)
    made = Made(
        nodes=nodes,
        rails=rails,
        spikes=each,
        spiky=lambda a, b, rail: rail == 0 and worst.node in (a, b),
    )
    (found,) = find(made.observed()).found
    assert found.named is not None
    assert (found.symptom, found.named.nodes) == ("spikes", (worst.node,))


def test_a_loss_of_bandwidth_that_would_have_been_named_is_named() -> None:
    """The least loss that is promised, and no healthy partner with it."""
    healthy = Made(nodes=8, rails=2)
    (slower,) = {one.slower for one in missed(healthy.observed())}
    assert slower is not None
    made = Made(
        nodes=8, rails=2, factor=1.02 / (1 - slower), slow=lambda a, b, r: r == 1 and "n3" in (a, b)
    )
    (found,) = find(made.observed()).found
    assert found.named is not None
    assert found.named.name == "n3 rail 1"


@pytest.mark.parametrize("nodes", [2, 3])
def test_without_peers_nothing_is_promised(nodes: int) -> None:
    """Two or three nodes with one rail have nobody to be compared with."""
    found = missed(Made(nodes=nodes).observed())
    assert {(one.one_in, one.every_s, one.slower) for one in found} == {(None, None, None)}


@given(st.integers(1, 500))
def test_the_mean_that_reaches_a_count(events: int) -> None:
    """P(X >= events) is 99 % there, and less a little below."""

    def reaches(mean: float) -> float:
        return 1 - sum(
            math.exp(n * math.log(mean) - mean - math.lgamma(n + 1)) for n in range(events)
        )

    mean = mean_for(events)
    assert reaches(mean) == pytest.approx(POWER, abs=1e-6)
    assert reaches(mean * 0.9) < POWER
