"""Suspects are measured again in the same launch; what was measured before stays as it is."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import msgspec
import pytest

from preflight.fabric.agent_events import PairAccount, Ready
from preflight.fabric.collect import SweepAccounts
from preflight.fabric.launch import Hooks, sweep
from preflight.fabric.observed import observe
from preflight.fabric.retest import RETEST_TIMES, add_rounds
from preflight.fabric.roster import build_roster, turns_of
from preflight.fabric.samples import Timing
from preflight.fabric.schedule import Rounds, circle_rounds
from preflight.fabric.sweep_plan import SweepPlan
from tests.unit.fabric.nodes import (
    DEADLINE_S,
    HAS_TORCH,
    NAMES,
    QUICK,
    Starter,
    agent,
    fleet,
    plan,
    strike,
)

if TYPE_CHECKING:
    from preflight.fabric.samples import PairSamples, Sweep

CPU = Ready("2.13.0+cpu", cuda=False, gpus=0)
BUSY = pytest.mark.busy
TORCH = pytest.mark.skipif(not HAS_TORCH, reason="no torch in this Python")
LEFT = pytest.mark.usefixtures("nothing_left")


def test_a_retest_is_numbered_on_and_measures_more() -> None:
    """More iterations within longer deadlines, also after an earlier retest; no node's twice."""
    asked = SweepPlan(nodes=NAMES, rounds=circle_rounds(NAMES))
    who = build_roster(asked, dict.fromkeys(NAMES, CPU))
    once = add_rounds(who, asked, ((("h1", "h3"),),))
    twice = add_rounds(once, asked, ((("h2", "h3"),),))
    for more in (once, twice):
        assert [rung.iterations for rung in more.ladder] == [
            rung.iterations * RETEST_TIMES for rung in who.ladder
        ]
    first = {"round": 3, "a": "h1", "b": "h3", "rank": 1, "partner": 0}
    last = {"round": 4, "a": "h2", "b": "h3", "rank": 1, "partner": 1}
    assert turns_of(twice, "h3")[3:] == [first, last]
    assert turns_of(twice, "h4")[3:] == [None, None]
    assert once.limits == twice.limits
    assert twice.limits.box_s * len(who.ladder) < twice.limits.pair_s
    assert twice.limits.barrier_s > who.limits.barrier_s


def test_a_retest_that_was_cut_leaves_its_pair_in_doubt() -> None:
    """One whole retest settles a pair; those that were all cut short are reported."""
    asked = SweepPlan(nodes=NAMES, rounds=circle_rounds(NAMES), gloo_soak=None)
    who = build_roster(asked, dict.fromkeys(NAMES, CPU))
    collected = SweepAccounts(who)
    collected.expect_more(
        add_rounds(who, asked, ((("h1", "h3"),), (("h1", "h2"),), (("h1", "h3"),)))
    )
    timing = Timing(8, (200.0,), (1.0,))
    seen = PairAccount(
        round=3, rail=0, a="h1", b="h3", backend="gloo", state="measured", error="",
        started_s=1.0, setup_ms=1.0, timings=(timing,),
    )  # fmt: skip
    assert all(collected.add(name, seen) for name in ("h1", "h3"))
    assert collected.unsettled() == ()
    collected.cut = True
    assert collected.unsettled() == (("h1", "h2"),)


def _again(found: Sweep, number: int) -> list[PairSamples]:
    return [pair for pair in found.pairs if pair.round == number]


@BUSY
@TORCH
@LEFT
def test_suspects_are_measured_again_without_a_new_start() -> None:
    """Two retests, the second asked for after the first; then no node is suspected any more."""
    hosts = fleet(3)
    start = Starter({})
    seen: list[tuple[int, int]] = []
    agents: list[list[int]] = []

    def suspects(so_far: Sweep) -> Rounds:
        seen.append((len(so_far.rounds), so_far.retested))
        agents.append(sorted(agent(start.talks["h1"])[:2]))
        return [((("h1", "h3"),),), ((("h2", "h3"),), (("h1", "h2"),)), ()][len(seen) - 1]

    found = sweep(
        plan(hosts), hosts, start, nonce="again", deadline_s=DEADLINE_S,
        hooks=Hooks(suspects=suspects),
    )  # fmt: skip
    assert seen == [(3, 0), (4, 3), (6, 3)]
    assert agents[0] == agents[1] == agents[2]
    assert (found.troubles, found.left_out, found.retested) == ({}, {}, 3)
    assert [[(p.a, p.b) for p in _again(found, number)] for number in (3, 4, 5)] == [
        [("h1", "h3")], [("h2", "h3")], [("h1", "h2")],
    ]  # fmt: skip
    for pair in found.pairs:
        times = RETEST_TIMES if pair.round >= 3 else 1
        for end in (pair.first, pair.second):
            assert end is not None
            assert end.state == "measured"
            assert len(end.timings[0].times_us) <= QUICK[0].iterations * times
    assert any(len(p.first.timings[1].times_us) > 5 for p in _again(found, 3) if p.first)
    assert observe(found).retested == 3


@BUSY
@TORCH
@LEFT
def test_a_node_that_dies_in_a_retest_costs_its_own_pair() -> None:
    """The other retest of that round is measured, all scheduled pairs stay, and it is named."""
    hosts = fleet(4)
    start = Starter({})

    def suspects(so_far: Sweep) -> Rounds:
        if so_far.retested:
            return ()
        strike(agent(start.talks["h4"])[:1], signal.SIGKILL)
        return ((("h1", "h2"), ("h3", "h4")),)

    hooks = Hooks(suspects=suspects)
    found = sweep(plan(hosts), hosts, start, nonce="dies", deadline_s=DEADLINE_S, hooks=hooks)
    assert set(found.troubles) == {"h4"}
    assert all(p.first and p.second for p in found.pairs if p.round < 3)
    assert [(p.a, p.b) for p in _again(found, 3) if p.first and p.first.state == "measured"] == [
        ("h1", "h2")
    ]


@BUSY
@TORCH
@LEFT
def test_a_retest_for_which_there_is_no_time_is_no_shortfall() -> None:
    """Nothing is unfinished, as all that was scheduled has been measured; the doubt is kept."""
    hosts = fleet(2)
    asked: list[Sweep] = []

    def suspects(so_far: Sweep) -> Rounds:
        asked.append(so_far)
        return ((("h1", "h2"),),)

    limits = msgspec.structs.replace(plan(hosts).gloo_budget, pair_s=DEADLINE_S, box_s=DEADLINE_S)
    found = sweep(
        plan(hosts, gloo_budget=limits), hosts, Starter({}),
        nonce="none", deadline_s=DEADLINE_S, hooks=Hooks(suspects=suspects),
    )  # fmt: skip
    assert (len(asked), found.unfinished, found.retested) == (1, "", 0)
    assert found.unsettled == (("h1", "h2"),)
    assert len(found.pairs) == 1
