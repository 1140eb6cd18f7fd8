"""Simulated fabrics that were once read wrongly: late hosts of many rails, two bad of one leaf."""

from __future__ import annotations

import pytest

from tests.bench.decoding import decode
from tests.bench.fabrics import case


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rdma:8:faulty:217", "rdma:17:faulty:160", "rdma:16:healthy:3"])
def test_late_hosts_are_named_though_each_round_shows_them_once(name: str) -> None:
    """One event per pair over eight calm rails was a hair short of proof; up to four of them."""
    outcome = decode(case(name))
    assert not outcome.wrong
    assert {fault.fate for fault in outcome.faults} <= {"named"}


@pytest.mark.slow
def test_two_bad_gpus_under_one_leaf_are_no_bad_leaf() -> None:
    """The third of its four nodes is dead: two of three is no majority that means anything."""
    outcome = decode(case("recorded:16:faulty:70057"))
    assert not outcome.wrong
    assert [fault.fate for fault in outcome.faults if "dead" not in fault.what].count("missed") == 0
