"""Samples become the figures that operators know."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from preflight.checks.fabric.test_pairs import judge_allreduce
from preflight.fabric.judge import judge_sweep
from preflight.fabric.observed import digests
from preflight.fabric.pair_summary import busbw_gbs, joint_state, lost_accounts, pair_error
from preflight.fabric.samples import End, PairSamples, Timing
from tests.unit.fabric.synthetic import hosts, sweep


def test_busbw_follows_nccl_tests() -> None:
    """Two ranks: factor 1; eight ranks: factor 7/4; decimal gigabytes."""
    assert busbw_gbs(1_000_000_000, 1.0) == 1.0
    assert busbw_gbs(1_000_000_000, 1.0, ranks=8) == pytest.approx(1.75)


def test_network_time_is_that_of_the_end_that_waited_less() -> None:
    """A stall of one host shows at the other end only, and does not count as the network's."""
    first = End("a", "measured", (Timing(8, (10.0, 9000.0, 10.0), (0.0,) * 3),))
    second = End("b", "measured", (Timing(8, (11.0, 12.0, 9.0), (0.0,) * 3),))
    (size,) = digests(PairSamples("a", "b", 0, 0, "gloo", first, second))
    assert (size.p50_us, size.most_us) == (10.0, 12.0)


def test_a_pair_is_as_bad_as_its_worse_end() -> None:
    """One end that saw wrong sums makes the pair corrupt; a silent end makes it absent."""
    fine = End("a", "measured", (Timing(8, (1.0,), (0.0,)),))
    wrong = End("b", "corrupt", error="element 3")
    assert joint_state(PairSamples("a", "b", 0, 0, "gloo", fine, wrong)) == "corrupt"
    assert joint_state(PairSamples("a", "b", 0, 0, "gloo", fine, None)) == "absent"
    assert not list(digests(PairSamples("a", "b", 0, 0, "gloo", None, None)))


def test_an_account_is_lost_only_where_no_end_saw_the_pair_fail() -> None:
    """Not where the other end waited in vain, nor of a node that fell silent."""
    fine, vain = End("a", "measured"), End("a", "no_connect")
    half = PairSamples("a", "b", 0, 0, "gloo", fine, None)
    assert lost_accounts(half, ()) == ("b",)
    assert lost_accounts(half, ("b",)) == ()
    assert lost_accounts(half, ("a",)) == ("b",)
    assert lost_accounts(PairSamples("a", "b", 0, 0, "gloo", vain, None), ()) == ()
    assert lost_accounts(PairSamples("a", "b", 0, 0, "gloo", fine, End("b", "hung")), ()) == ()
    assert lost_accounts(PairSamples("a", "b", 0, 0, "gloo", None, None), ()) == ("a", "b")


@pytest.mark.proves("fabric.allreduce", unknown="NVLink or shared memory carried a pair's data")
@pytest.mark.parametrize("way", ["P2P", "SHM", "NET/IB mlx5_0 GDRDMA + P2P"])
def test_a_pair_that_measures_no_nic_does_not_pass(way: str) -> None:
    """It is unknown, and its speed is no yardstick for others, whose own is that of a NIC."""
    fleet = hosts(6)
    swept = sweep(fleet, lambda a, b: 380.0 if "h1" in (a, b) else 46.0, backend="nccl", rails=2)
    pairs = []
    for pair in swept.pairs:
        net = way if pair.a == "h1" and pair.rail == 1 else "NET/IB mlx5_0 GDRDMA"
        assert pair.first
        assert pair.second
        ends = [replace(end, net=net) for end in (pair.first, pair.second)]
        pairs.append(replace(pair, first=ends[0], second=ends[1]))
    decoded = judge_sweep(replace(swept, pairs=tuple(pairs)), fleet)
    assert decoded.blames == ()
    for names, one in decoded.pairs.items():
        verdict = judge_allreduce(one)
        assert verdict.outcome == ("unknown" if "h1" in names else "ok")
        if "h1" in names:
            past = "P2P" if "P2P" in way else "SHM"
            assert verdict.sentence == f"its data went over {past}, which measures no NIC"
            assert "NCCL_HOSTID" in verdict.advice
    cpus = PairSamples("a", "b", 0, 0, "gloo", End("a", "measured", net="tcp lo"), None)
    assert pair_error(cpus) == ""
