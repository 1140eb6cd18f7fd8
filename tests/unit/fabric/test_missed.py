"""What a clean sweep could have shown: no more than the rule of blame would have seen."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from preflight.fabric.decoding.culprit import Component
from preflight.fabric.decoding.find import find
from preflight.fabric.decoding.sensitivity import POWER, mean_for, sensitivity
from preflight.fabric.observed import Standout
from tests.cases import draws
from tests.unit.fabric.fabrics import Made

if TYPE_CHECKING:
    from preflight.fabric.observed import Observed


@pytest.mark.parametrize(("nodes", "rails"), [(4, 1), (4, 8), (8, 1), (17, 2), (64, 8)])
def test_the_rate_that_would_have_been_named_is_named(nodes: int, rails: int) -> None:
    """Spikes at just the stated rate, put into the same fabric, name the endpoint."""
    worst = next(
        one for one in sensitivity(Made(nodes=nodes, rails=rails).observed()) if one.rail == 0
    )
    assert worst.one_in is not None
    each = math.ceil(worst.operations / worst.one_in / worst.pairs)
    made = Made(
        nodes=nodes,
        rails=rails,
        spikes=each,
        spiky=lambda a, b, rail: rail == 0 and worst.node in (a, b),
    )
    (found,) = find(made.observed()).culprits
    assert found.component is not None
    assert (found.symptom, found.component.nodes) == ("spikes", (worst.node,))


def test_a_loss_of_bandwidth_that_would_have_been_named_is_named() -> None:
    """The least loss that is expected, and no healthy partner with it."""
    healthy = Made(nodes=8, rails=2)
    (slower,) = {one.slower for one in sensitivity(healthy.observed())}
    assert slower is not None
    made = Made(
        nodes=8, rails=2, factor=1.02 / (1 - slower), slow=lambda a, b, r: r == 1 and "n3" in (a, b)
    )
    (found,) = find(made.observed()).culprits
    assert found.component is not None
    assert found.component.name == "n3 rail 1"


@pytest.mark.parametrize("nodes", [2, 3])
def test_without_peers_nothing_is_promised(nodes: int) -> None:
    """Two or three nodes with one rail have nothing to be compared with."""
    found = sensitivity(Made(nodes=nodes).observed())
    assert {(one.one_in, one.every_s, one.slower) for one in found} == {(None, None, None)}


@draws(25)
@given(st.integers(1, 500))
def test_the_mean_that_reaches_a_count(events: int) -> None:
    """P(X >= events) is 99 % there, and less a little below; Poisson's law where moments abound."""

    def reaches(mean: float) -> float:
        return 1 - sum(
            math.exp(n * math.log(mean) - mean - math.lgamma(n + 1)) for n in range(events)
        )

    mean = mean_for(events, 10**9)
    assert mean is not None
    assert reaches(mean) == pytest.approx(POWER, abs=1e-4)
    assert reaches(mean * 0.9) < POWER
    few = mean_for(events, events + 1)
    assert few is not None
    assert few >= mean
    assert mean_for(events, events - 1) is None


def _with_spikes(healthy: Observed, at_bytes: int, one_in: float, seed: int) -> Observed:
    """Spikes of both ends at random operations of one size through rail 0 of the first node."""
    noise = random.Random(seed)  # noqa: S311  a fabric for tests, no secret
    node, digests = healthy.nodes[0], []
    for one in healthy.digests:
        marked = one
        if node in (one.a, one.b) and one.rail == 0 and one.size_bytes == at_bytes:
            hit = [at for at in range(one.operations) if noise.random() < 1 / one_in]
            step_s = one.loaded_s / one.operations
            marked = replace(
                one,
                standouts=tuple(
                    Standout(1e3 + at * step_s, at, 4e4, 4e4, 1.0, 1.0) for at in hit[-256:]
                ),
            )
        digests.append(marked)
    return replace(healthy, digests=tuple(digests))


@pytest.mark.slow
@pytest.mark.parametrize("at_bytes", [8, 64 << 20])
def test_spikes_at_one_size_are_named_at_the_rate_that_is_promised(at_bytes: int) -> None:
    """At the rate expected with 99 % the decoder names the endpoint; at a fifth it does not."""
    healthy = Made(nodes=8, rails=2).observed()
    own = next(one for one in sensitivity(healthy) if (one.node, one.rail) == (healthy.nodes[0], 0))
    at_size = next(one for one in own.sizes if one.size_bytes == at_bytes)
    assert at_size.one_in is not None
    seeds = range(20)

    def named(one_in: float) -> int:
        decoded = (find(_with_spikes(healthy, at_bytes, one_in, seed)).culprits for seed in seeds)
        wanted = [Component("endpoint", ("n1",), 0)]
        return sum([one.component for one in found] == wanted for found in decoded)

    assert named(at_size.one_in) >= 19
    assert named(at_size.one_in * 5) <= 10


def test_sizes_add_up_and_each_alone_needs_more_frequent_spikes() -> None:
    """All operations are of some size; a spike must be longer the larger the size is."""
    for one in sensitivity(Made(nodes=8).observed()):
        assert sum(each.operations for each in one.sizes) == one.operations
        assert one.one_in is not None
        assert all(each.one_in is None or each.one_in < one.one_in for each in one.sizes)
        assert [each.over_us for each in one.sizes] == sorted(each.over_us for each in one.sizes)


def test_no_more_rows_than_wanted_and_the_dullest_look_first() -> None:
    """The rows that are kept are those in which a spike must be most frequent."""
    every = sensitivity(Made(nodes=8, rails=2).observed())
    assert sensitivity(Made(nodes=8, rails=2).observed(), 3) == every[:3]
    rates = [one.one_in or 0.0 for one in every]
    assert rates == sorted(rates)
