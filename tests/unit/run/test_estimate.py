"""What a run takes is told before anyone is asked: what fits is planned, the rest is listed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from preflight.burn.burn_in import (
    BURN_SHARE,
    Devices,
    burn_plan,
    fit,
    most_devices,
    nic_turn_s,
    phases_s,
)
from preflight.core.thresholds import durations
from preflight.fabric.planner import MARGIN, rounds_that_fit
from preflight.fabric.schedule import default_rounds
from preflight.facts.model import Nic, NicPort
from preflight.fleet.model import Expected, Fleet, Host, Job
from preflight.history.run_record import Cost
from preflight.run import estimate
from preflight.run.estimate import GPUS_ASSUMED, Workload, workload
from tests.unit.facts.builders import facts

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.check import Stage, Tier

QUICK: frozenset[Stage] = frozenset({"reach", "facts", "net", "fabric"})
NODES, GPUS, NICS = st.integers(1, 5000), st.integers(0, 16), st.integers(0, 16)


def _expected(
    nodes: int = 64, gpus: int = 8, nics: int = 8, *, tier: Tier = "quick", last: Cost | None = None
) -> Workload:
    stages: frozenset[Stage] = QUICK if tier == "quick" else QUICK | {"local"}
    return Workload(
        nodes=nodes, gpus=gpus, nics=nics, assumed=False, tier=tier, stages=stages, last=last
    )


def _all_s(one: Workload, wall_s: float = 1e6, rounds: int = 9) -> float:
    cost = one.cost(wall_s)
    return cost.other_s + rounds * cost.round_s


def test_every_duration_has_its_source() -> None:
    """And none that no GPU has shown calls itself measured."""
    for name, one in durations().items():
        assert one.unit.startswith(("s ", "GB/s ", "rounds ")), name
        assert one.kind in ("measured", "estimate"), name
        assert len(one.source) > 10, name
        room = name.partition(".")[0]
        assert one.kind == "estimate" or room not in ("cuda", "nccl", "burn"), name


@given(NODES, st.integers(1, 16), NICS)
def test_more_to_do_takes_longer(nodes: int, gpus: int, nics: int) -> None:
    """With each node, GPU and NIC; and CPUs take less than GPUs."""
    base = _expected(nodes, gpus, nics, tier="standard")
    for more in ({"nodes": nodes + 1}, {"gpus": gpus + 1}, {"nics": nics + 2}):
        assert _all_s(base) < _all_s(replace(base, **more)), more
    assert _all_s(replace(base, gpus=0)) < _all_s(base)
    assert _all_s(base) < _all_s(replace(base, tier="deep", catch_rate=0.1))


@given(NODES, GPUS, NICS, st.floats(1, 4000), st.sampled_from(["quick", "standard", "deep"]))
def test_what_is_planned_fits_or_is_said_to_be_left_out(
    nodes: int, gpus: int, nics: int, wall_s: float, tier: Tier
) -> None:
    """The rounds that are planned fit with all else; where not even one does, that is said."""
    one, wanted = _expected(nodes, gpus, nics, tier=tier), default_rounds(nodes)
    rounds = min(wanted, rounds_that_fit(wall_s, one.cost(wall_s)))
    told = "\n".join(one.lines(wall_s, rounds, wanted))
    assert rounds <= 1 or _all_s(one, wall_s, rounds) <= wall_s * MARGIN
    assert (rounds < wanted) == (f"({rounds} of {wanted} round" in told)
    over = _all_s(one, wall_s, rounds) > wall_s
    assert not over or "left out" in told or "budget " in told
    assert over or rounds < wanted or tier != "quick" or "left out" not in told


@given(NODES, GPUS, NICS, st.floats(1, 4000), st.sampled_from(["quick", "standard", "deep"]))
def test_a_budget_without_time_for_one_round_says_which_has_it(
    nodes: int, gpus: int, nics: int, wall_s: float, tier: Tier
) -> None:
    """What it proposes is enough, and not much more than enough."""
    one = _expected(nodes, gpus, nics, tier=tier)
    why = one.too_small(wall_s)
    if not why:
        times = one.times(wall_s)
        least_s = times.facts_s + times.burn_s + times.start_s + (nodes > 1) * times.round_s
        assert least_s <= wall_s
        return
    enough = int(why.rpartition("give --preflight-budget=")[2])
    assert one.too_small(enough) == ""
    assert enough - 10 < wall_s or one.too_small(enough - 10)
    assert any(line.startswith("budget   ") for line in one.lines(wall_s, 1, 1))


def test_nothing_is_refused_for_what_is_only_assumed_or_for_one_slow_run() -> None:
    """Eight GPUs that may not be there, and what the last run took, if the estimate says less."""
    assumed = replace(_expected(nodes=2), assumed=True)
    assert assumed.too_small(25.0)
    assert not assumed.without_assumed_gpus.too_small(25.0)
    slow = _expected(nodes=2, last=Cost(round_s=10.0, other_s=500.0))
    assert not slow.too_small(60.0)
    quick = _expected(nodes=2, last=Cost(round_s=1.0, other_s=5.0))
    assert not quick.too_small(8.0)
    assert not replace(_expected(), stages=frozenset({"reach", "facts"})).too_small(1.0)


def test_rounds_that_were_asked_for_and_have_no_time_are_named() -> None:
    """Twenty rounds of --preflight-sweep=20, of which a minute has time for some."""
    time, left_out = _expected(nodes=64).lines(60.0, 20, 20)
    assert "(20 rounds) of 60 s" in time
    found = re.fullmatch(
        r"left out (\d+) of 20 rounds, retests of suspects: no time in 60 s; "
        r"--preflight-budget=(\d+) has time for all",
        left_out,
    )
    assert found is not None, left_out
    assert 0 < int(found[1]) < 20
    assert len(_expected(nodes=64).lines(float(found[2]), 20, 20)) == 1


def test_nvlink_between_nodes_takes_its_time() -> None:
    """Where the inventory names a model whose nodes share NVLink."""
    hosts = tuple(
        Host(name=name, address=name, expected=Expected(gpus=4, gpu_model="NVIDIA GB200"))
        for name in ("h1", "h2")
    )
    domain = workload(Fleet(hosts=hosts, origin="a test"), "quick", QUICK)
    assert _all_s(domain) > _all_s(replace(domain, nvlink_domains=False))


def test_the_budget_that_is_proposed_takes_all() -> None:
    """Whatever was left out for lack of time."""
    one = _expected(nodes=512, nics=12, tier="standard")
    told = one.lines(150.0, 1, 8)[1]
    assert told.startswith("left out 9.75 of 10 s of sustained load, loopback of")
    budget = float(told.partition("--preflight-budget=")[2].partition(" ")[0])
    assert len(one.lines(budget, 8, 8)) == 1
    assert rounds_that_fit(budget, one.cost(budget)) >= 8
    assert (
        len(one.lines(budget - 10, 8, 8)) == 2
        or rounds_that_fit(budget - 10, one.cost(budget - 10)) < 8
    )


def test_what_the_last_run_took_wins() -> None:
    """Of this fleet and tier: a round of 0.5 s is planned for as such."""
    one = _expected(last=Cost(round_s=0.5, other_s=20.0))
    assert rounds_that_fit(60.0, one.cost(60.0)) == 68
    assert one.lines(60.0, 9, 9) == [
        "time     about 20 s and 9 rounds of 0.5 s, as in the last run, of 60 s"
    ]


def test_what_is_expected_comes_from_the_inventory_else_it_is_said_to_be_assumed() -> None:
    """The most that any node has; then the ranks of a node; then eight, in the header."""
    hosts = tuple(
        Host(name=name, address=name, expected=Expected(gpus=gpus))
        for name, gpus in (("h1", 4), ("h2", 8))
    )
    known = workload(Fleet(hosts=hosts, origin="a test"), "quick", QUICK)
    assert (known.nodes, known.gpus, known.nics, known.assumed) == (2, 8, 8, False)
    bare = tuple(Host(name=name, address=name) for name in ("h1", "h2"))
    ranks = workload(Fleet(hosts=bare, origin="a test", job=Job(nproc_per_node=4)), "quick", QUICK)
    assert (ranks.gpus, ranks.assumed) == (4, False)
    unknown = workload(Fleet(hosts=bare, origin="a test"), "quick", QUICK)
    assert (unknown.gpus, unknown.assumed) == (GPUS_ASSUMED, True)
    assert unknown.lines(60.0, 1, 1)[0].endswith(" of 60 s; assumes 8 GPUs a node")
    none = workload(
        Fleet(hosts=tuple(replace(h, expected=Expected(gpus=0)) for h in bare), origin="a test"),
        "quick", QUICK,
    )  # fmt: skip
    assert " s sweep (1 round) of 60 s" in none.lines(60.0, 1, 1)[0]


@pytest.mark.parametrize("gpus", [0, 3])
def test_this_machine_is_asked_how_many_gpus_it_has(
    gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an inventory; none where no driver is loaded."""
    for number in range(gpus):
        (tmp_path / "gpus" / f"0000:0{number}:00.0").mkdir(parents=True)
    monkeypatch.setattr(estimate, "_DRIVER_GPUS", str(tmp_path / "gpus"))
    here = Host(name="me", address="127.0.0.1", transport="local")
    one = workload(Fleet(hosts=(here,), origin="this machine"), "quick", QUICK)
    assert (one.gpus, one.assumed) == (gpus, False)
    told = "sweep inside the node" if gpus else "4 s facts of 60 s"
    assert told in one.lines(60.0, 0, 0)[0]


def test_stages_that_do_not_run_are_not_estimated() -> None:
    """A prolog asks for facts; one node with one GPU has nobody to sweep with."""
    prolog = replace(_expected(), tier="prolog", stages=frozenset({"reach", "facts"}))
    assert prolog.lines(8.0, 0, 0) == ["time     about 4 s facts of 8 s"]
    assert _expected(nodes=1, gpus=1).lines(60.0, 0, 0) == ["time     about 4 s facts of 60 s"]
    assert "s sweep inside the node of 60 s" in _expected(nodes=1).lines(60.0, 0, 0)[0]


@given(st.floats(5, 400), st.integers(0, 12), st.sampled_from(["standard", "deep"]))
def test_a_burn_in_takes_no_more_than_its_share(left_s: float, turns: int, tier: Tier) -> None:
    """The sustained load shrinks first, then NICs wait for another night; one has its turn."""
    has = Devices(gpus=8, sides=2, nic_turns=turns)
    load = fit(burn_plan(tier), left_s, has).cuda
    assert load.sustained is not None
    assert load.nic is not None
    phases = phases_s(load, "cuda", has)
    need_s, limit_s = phases.pop("nic"), load.limit_s["nic"]
    assert limit_s >= nic_turn_s(load.nic)
    least = load.sustained.seconds == load.sustained.window_s
    if need_s > limit_s + 0.01:
        assert least
    room_s = left_s * BURN_SHARE - sum(phases.values())
    assert limit_s <= max(nic_turn_s(load.nic), room_s) + 1e-6


def test_the_turns_of_nics_come_from_the_facts() -> None:
    """Of the NUMA node with most active NICs; all of them where a NUMA node is not known."""
    port = NicPort(port=1, state="4: ACTIVE")
    nics = tuple(Nic(name=f"mlx5_{n}", numa=int(n > 2), ports=(port,)) for n in range(8))
    down = Nic(name="mlx5_9", numa=0, ports=(NicPort(port=1, state="1: DOWN"),))
    known = facts("h1", nics=(*nics, down))
    assert most_devices([known], slots=2).nic_turns == 5
    unknown = facts("h2", nics=(*nics, replace(nics[0], name="mlx5_8", numa=None)))
    assert most_devices([known, unknown], slots=2).nic_turns == 9
    assert most_devices([], slots=2) == Devices(gpus=2, sides=1, nic_turns=0)


@pytest.mark.parametrize("seed", [0, 5, 2**32 - 1])
def test_the_seed_decides_which_nics_come_first(seed: int) -> None:
    """Those that find no time tonight are not the same as those of another night."""
    plan = burn_plan("standard", seed)
    assert plan.cuda.nic is not None
    assert plan.cuda.nic.first == seed
