"""Peers first, then the expected platform's floor, then history; else it is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest
from msgspec.structs import replace

from preflight.core.registry import load_folder, shipped_folder
from preflight.fabric.compare import speed_key
from preflight.fabric.judge import judge_sweep
from preflight.fabric.planner import KEPT_RUNS, add_run, plan
from preflight.fabric.schedule import Planned
from preflight.fleet.baselines import rail_floor
from preflight.fleet.model import Expected
from preflight.history.run_record import Cost, Past
from preflight.verdict import Outcome, Verdict
from tests.unit.fabric.synthetic import TOP, hosts, sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from preflight.fabric.samples import PairState, Sweep
    from preflight.fleet.model import Host

COST = Cost(round_s=2.0, other_s=25.0)
NDR = Expected(nic_gbits=400, nic_link="ib", origin="fleet.toml [group.train]")
CHECK = next(one for one in load_folder(shipped_folder()) if one.check.id == "fabric.allreduce")


def _nccl(fleet: Sequence[Host], gbs: float, rails: int = 1) -> Sweep:
    """Every pair at that speed, at 64 MiB."""
    return sweep(fleet, lambda *_: gbs, backend="nccl", rails=rails)


def _judge(
    measured: Sweep,
    fleet: Sequence[Host],
    earlier: Mapping[str, Sequence[float]] | None = None,
) -> Verdict:
    return CHECK.conclude(judge_sweep(measured, fleet, earlier).pairs["h1", "h2"])


@pytest.mark.parametrize("nodes", [2, 3])
def test_without_peers_the_floor_of_the_promised_nics_decides(nodes: int) -> None:
    """A rail of 400 Gb/s at 46 GB/s is fine, at 30 it is not; the sentence says by what."""
    fleet = hosts(nodes, NDR)
    fine, slow = _judge(_nccl(fleet, 46.0), fleet), _judge(_nccl(fleet, 30.0), fleet)
    which = "floor for 400 Gb/s InfiniBand NICs, expected by fleet.toml [group.train]"
    assert (fine.outcome, fine.sentence) == (
        Outcome.OK,
        f"median 46 GB/s at 64 MiB (limit 40 GB/s, {which}), 0.2 ms",
    )
    assert slow.outcome is Outcome.FAIL
    assert slow.sentence.startswith("median 30 GB/s at 64 MiB between ")
    assert f"limit 40 GB/s ({which})" in slow.sentence
    assert slow.evidence["decided_by"] == "platform"


def test_an_unknown_network_without_peers_is_not_judged() -> None:
    """46 GB/s may be good or bad: that is unknown, no pass; below any network's least is bad."""
    fleet = hosts(2)
    verdict = _judge(_nccl(fleet, 46.0), fleet)
    assert (verdict.outcome, verdict.sentence) == (
        Outcome.UNKNOWN,
        "median 46 GB/s at 64 MiB: no peers, no expected value and no earlier runs to compare with",
    )
    assert "nic_gbits" in verdict.advice
    assert _judge(_nccl(fleet, 0.3), fleet).outcome is Outcome.FAIL
    one_sided = [replace(fleet[0], expected=NDR), *fleet[1:]]
    assert _judge(_nccl(one_sided, 46.0), one_sided).outcome is Outcome.UNKNOWN


def test_peers_below_any_networks_floor_are_still_peers() -> None:
    """NCCL over sockets between four hosts that share one H200: each pair reached 0.93 GB/s."""
    fleet = hosts(4)
    verdict = _judge(_nccl(fleet, 0.93), fleet)
    assert verdict.outcome is Outcome.OK
    assert "limit 0.6 GB/s, shipped floor for nccl" in verdict.sentence
    slow = sweep(fleet, lambda a, b: 0.024 if "h4" in (a, b) else 0.93, backend="nccl")
    assert {one.component for one in judge_sweep(slow, fleet).blames} == {"h4"}
    assert _judge(slow, fleet).outcome is Outcome.OK


@pytest.mark.parametrize("rails", [1, 2, 8])
@pytest.mark.parametrize("lost", [(), ("h4",)])
def test_three_nodes_are_compared_with_each_other(rails: int, lost: tuple[str, ...]) -> None:
    """Any two pairs of three nodes share one: a slow node is named by the pair without it."""
    fleet = hosts(3 + len(lost))

    def speed(slow: str) -> Callable[[str, str], float | PairState]:
        return lambda a, b: "hung" if {a, b} & {*lost} else 20.0 if slow in (a, b) else 46.0

    measured = sweep(fleet, speed(""), backend="nccl", rails=rails)
    assert {CHECK.conclude(judge_sweep(measured, fleet).pairs[ends]).outcome
            for ends in (("h1", "h2"), ("h1", "h3"), ("h2", "h3"))} == {Outcome.OK}  # fmt: skip
    for name in ("h1", "h2", "h3"):
        measured = sweep(fleet, speed(name), backend="nccl", rails=rails)
        named = {one.component for one in judge_sweep(measured, fleet).blames}
        assert named == {name, *lost}


def test_three_nodes_that_all_got_slower_are_held_to_their_own_past() -> None:
    """That they are alike clears no node of what all of them have lost."""
    fleet = hosts(3)
    measured = _nccl(fleet, 30.0)
    earlier = {speed_key(pair, TOP["nccl"]): [46.0] * 3 for pair in measured.pairs}
    slow = _judge(measured, fleet, earlier)
    assert slow.outcome is Outcome.FAIL
    assert "0.8 of its median in 3 earlier runs" in slow.sentence


def test_a_promise_overrides_the_floor_and_the_slower_end_counts() -> None:
    """A site that expects less than the floor means it; a pair is as fast as its slower end."""
    low = replace(NDR, allreduce_min_gbs=25.0)
    fleet = hosts(2, low)
    verdict = _judge(_nccl(fleet, 30.0), fleet)
    assert verdict.outcome is Outcome.OK
    assert "limit 25 GB/s, expected by fleet.toml" in verdict.sentence
    older = Expected(nic_gbits=200, nic_link="ib", origin="fleet.toml [group.old]")
    mixed = [replace(hosts(2)[0], expected=NDR), replace(hosts(2)[1], expected=older)]
    verdict = _judge(_nccl(mixed, 23.0), mixed)
    assert verdict.outcome is Outcome.OK
    assert "limit 20 GB/s, floor for 200 Gb/s InfiniBand NICs" in verdict.sentence


def test_peers_and_other_rails_come_first_and_floors_see_that_all_are_slow() -> None:
    """The stricter of a share of the peers' median and of the floor counts: all slow is seen."""
    fleet = hosts(4)
    assert _judge(_nccl(fleet, 46.0), fleet).evidence["decided_by"] == "peers"
    two = hosts(2)
    rails = _judge(_nccl(two, 46.0, rails=8), two)
    assert "0.6 of the other rails' median" in rails.sentence
    expected = hosts(4, NDR)
    assert _judge(_nccl(expected, 30.0), expected).evidence["decided_by"] == "platform"


def test_history_decides_third() -> None:
    """What the pair itself reached counts only where there is neither a peer nor a floor."""
    fleet = hosts(2)
    measured = _nccl(fleet, 30.0)
    key = speed_key(measured.pairs[0], TOP["nccl"])
    assert _judge(measured, fleet, {key: [46.0, 46.0]}).outcome is Outcome.UNKNOWN
    slow = _judge(measured, fleet, {key: [45.0, 46.0, 47.0]})
    assert slow.outcome is Outcome.FAIL
    assert "0.8 of its median in 3 earlier runs, no peers" in slow.sentence
    assert _judge(measured, fleet, {key: [31.0] * 3}).outcome is Outcome.OK
    expected = hosts(2, replace(NDR, nic_gbits=200))
    known = _judge(measured, expected, {key: [46.0] * 5})
    assert (known.outcome, known.evidence["decided_by"]) == (Outcome.OK, "platform")


def test_a_small_fleet_remembers_its_speeds() -> None:
    """Runs add up, bad pairs are not remembered, and the next plan has them."""
    fleet = hosts(2)
    names = [host.name for host in fleet]
    measured = _nccl(fleet, 46.0)
    key, past = speed_key(measured.pairs[0], TOP["nccl"]), Past()
    for bad in ([], [("h1", "h2")], *[[] for _ in range(KEPT_RUNS)]):
        planned = Planned(rounds=measured.rounds)
        kept = replace(past, suspects=())
        past = add_run(kept, planned, measured, names, bad=bad, tier="quick", seconds=1.0)
    assert past.speeds == {key: (46.0,) * KEPT_RUNS}
    again = plan(names, {}, extent="auto", seed=1, past=past, budget_s=60, cost=COST)
    assert again.earlier == past.speeds
    many = hosts(4)
    large = add_run(Past(), Planned(rounds=_nccl(many, 46.0).rounds), _nccl(many, 46.0),
                  [host.name for host in many], bad=[], tier="quick", seconds=1.0)  # fmt: skip
    assert large.speeds == {}


@pytest.mark.parametrize("rate", [100, 200, 400])
def test_without_a_promised_link_the_lower_floor_counts(rate: int) -> None:
    """Nothing is guessed; fewer NICs than GPUs share what they have."""
    both = [rail_floor(Expected(nic_gbits=rate, nic_link=link)) for link in _links()]
    least = rail_floor(Expected(nic_gbits=rate))
    assert least is not None
    assert least.value == min(one.value for one in both if one)
    assert least.origin == f"floor for {rate} Gb/s NICs"
    halved = rail_floor(Expected(nic_gbits=rate, gpus=8, nics=4))
    assert halved is not None
    assert halved.value == least.value / 2
    assert halved.origin == f"floor for {rate} Gb/s NICs, 4 for 8 GPUs"
    assert rail_floor(Expected(gpus=8, nics=8)) is None
    assert rail_floor(Expected(nic_gbits=25)) is None


def _links() -> list[Literal["ib", "roce"]]:
    return ["ib", "roce"]
