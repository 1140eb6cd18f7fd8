"""Which nodes are measured again: those in doubt, with others that are not; none without doubt."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from preflight.fabric.retest import suspects
from tests.unit.fabric.synthetic import end, hosts, sweep


def test_no_node_is_measured_again_without_doubt() -> None:
    """A healthy fleet, and one whose culprit is named, cost no second look."""
    fleet = hosts(8)
    assert suspects(sweep(fleet, lambda *_: 46.0, backend="nccl")) == ()
    named = sweep(fleet, lambda a, b: 30.0 if "h3" in (a, b) else 46.0, backend="nccl")
    assert suspects(named) == ()


def test_a_path_that_was_slow_once_is_measured_twice_more() -> None:
    """One round is no proof: the pair itself again, alone."""
    fleet = hosts(8)
    measured = sweep(fleet, lambda a, b: 40.5 if (a, b) == ("h2", "h5") else 46.0, backend="nccl")
    assert suspects(measured) == ((("h2", "h5"),), (("h2", "h5"),))
    assert suspects(replace(measured, retested=len(measured.rounds))) == ()


@pytest.mark.parametrize("speed", [30.0, 20.0])
@pytest.mark.parametrize("nodes", [8, 40])
def test_paths_that_are_named_on_one_reading_are_measured_twice_more(
    speed: float, nodes: int
) -> None:
    """Be it above or below the limit: a short congestion slows all pairs of one round."""
    fleet = hosts(nodes)
    healthy = sweep(fleet, lambda *_: 46.0, backend="nccl", limit=8)
    slow = {frozenset(pair) for pair in healthy.rounds[2]}
    measured = sweep(fleet, lambda *ab: speed if {*ab} in slow else 46.0, backend="nccl", limit=8)
    rounds = [{frozenset(pair) for pair in around} for around in suspects(measured)]
    assert rounds == [slow, slow]


def test_more_than_eight_paths_are_not_looked_at_where_they_cost_further_rounds() -> None:
    """Of three slow paths of each of four nodes, two each: four rounds in place of six."""
    fleet = hosts(40)
    slow = [{f"h{hub}", f"h{3 * hub + at}"} for hub in (1, 2, 3, 4) for at in (10, 11, 12)]
    measured = sweep(fleet, lambda *ab: 20.0 if {*ab} in slow else 46.0, backend="nccl", limit=39)
    rounds = suspects(measured)
    again = [{*pair} for around in rounds for pair in around]
    assert len(rounds) == 4
    assert sorted(again.count(pair) for pair in slow) == [0] * 4 + [2] * 8


def test_two_that_met_only_each_other_meet_cleared_ones() -> None:
    """Too few rounds to tell the ends apart: each with two partners that are fine elsewhere."""
    fleet = hosts(16)
    measured = sweep(
        fleet, lambda a, b: 20.0 if "h4" in (a, b) else 46.0, backend="nccl", rails=2, limit=1
    )
    rounds = suspects(measured)
    again = [pair for around in rounds for pair in around]
    (partner,) = ({*pair} - {"h4"} for pair in measured.rounds[0] if "h4" in pair)
    assert sum("h4" in pair for pair in again) >= 2
    assert sum(not partner.isdisjoint(pair) for pair in again) >= 2
    assert all(len({*around[0]}) == 2 for around in rounds)


def test_two_gloo_nodes_that_met_only_each_other_meet_cleared_ones_in_a_small_fleet() -> None:
    """Three pairs are too few for the rates, and plainly slow all the same."""
    fleet = hosts(6)
    measured = sweep(fleet, lambda a, b: 0.02 if "h2" in (a, b) else 1.1, backend="gloo", limit=1)
    (partner,) = ({*pair} - {"h2"} for pair in measured.rounds[0] if "h2" in pair)
    again = [pair for around in suspects(measured) for pair in around]
    doubted = {"h2", *partner}
    assert sum("h2" in pair for pair in again) == 2
    assert len(again) == 4
    assert all(len(doubted & {*pair}) == 1 for pair in again)


def test_two_nodes_alone_are_not_measured_again_for_being_slow() -> None:
    """There is no node to separate them with."""
    fleet = hosts(2)
    assert suspects(sweep(fleet, lambda *_: 0.02, backend="gloo")) == ()


def test_two_nodes_alone_are_measured_again_after_a_hang() -> None:
    """Whether it comes again needs no third node: one lost operation fails neither."""
    whole = sweep(hosts(2), lambda *_: 46.0, backend="nccl", rails=2)
    pairs = tuple(
        replace(pair, first=end("h1", 1.0, state="hung"), second=end("h2", 1.0, state="hung"))
        if pair.rail == 1
        else pair
        for pair in whole.pairs
    )
    assert suspects(replace(whole, pairs=pairs)) == ((("h1", "h2"),), (("h1", "h2"),))
