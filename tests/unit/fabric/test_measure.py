"""Samples become the figures that operators know."""

from __future__ import annotations

import pytest

from preflight.fabric.measure import busbw_gbs, lost_accounts, summarise
from preflight.fabric.samples import End, PairSamples, Timing


def test_busbw_follows_nccl_tests() -> None:
    """Two ranks: factor 1; eight ranks: factor 7/4; decimal gigabytes."""
    assert busbw_gbs(1_000_000_000, 1.0) == 1.0
    assert busbw_gbs(1_000_000_000, 1.0, ranks=8) == pytest.approx(1.75)


def test_network_time_is_that_of_the_end_that_waited_less() -> None:
    """A stall of one host shows at the other end only, and does not count as the network's."""
    first = End("a", "measured", (Timing(8, (10.0, 9000.0, 10.0), (0.0,) * 3),))
    second = End("b", "measured", (Timing(8, (11.0, 12.0, 9.0), (0.0,) * 3),))
    (size,) = summarise(PairSamples("a", "b", 0, 0, "gloo", first, second)).sizes
    assert (size.p50_us, size.max_us, size.ends_p99_us) == (10.0, 12.0, (9000.0, 12.0))


def test_a_pair_is_as_bad_as_its_worse_end() -> None:
    """One end that saw wrong sums makes the pair corrupt; a silent end makes it absent."""
    fine = End("a", "measured", (Timing(8, (1.0,), (0.0,)),))
    wrong = End("b", "corrupt", error="element 3")
    assert summarise(PairSamples("a", "b", 0, 0, "gloo", fine, wrong)).state == "corrupt"
    assert summarise(PairSamples("a", "b", 0, 0, "gloo", fine, None)).state == "absent"
    assert summarise(PairSamples("a", "b", 0, 0, "gloo", None, None)).sizes == ()


def test_an_account_is_lost_only_where_nobody_saw_the_pair_fail() -> None:
    """Not where the other end waited in vain, nor of a node that fell silent."""
    fine, vain = End("a", "measured"), End("a", "no_connect")
    half = PairSamples("a", "b", 0, 0, "gloo", fine, None)
    assert lost_accounts(half, ()) == ("b",)
    assert lost_accounts(half, ("b",)) == ()
    assert lost_accounts(half, ("a",)) == ("b",)
    assert lost_accounts(PairSamples("a", "b", 0, 0, "gloo", vain, None), ()) == ()
    assert lost_accounts(PairSamples("a", "b", 0, 0, "gloo", fine, End("b", "hung")), ()) == ()
    assert lost_accounts(PairSamples("a", "b", 0, 0, "gloo", None, None), ()) == ("a", "b")
