"""A late host among many rails is judged by what hit them at once: its rails alone are calm."""

from __future__ import annotations

import pytest

from tests.bench.decoding import decode
from tests.bench.fabrics import case


@pytest.mark.parametrize(
    "name", ["rdma:8:faulty:217", "rdma:8:faulty:295", "rdma:17:faulty:160", "rdma:16:healthy:3"]
)
def test_late_hosts_are_named_though_each_round_shows_them_once(name: str) -> None:
    """One event per pair over eight calm rails was a hair short of proof; up to four of them."""
    outcome = decode(case(name))
    assert not outcome.wrong
    assert {fault.fate for fault in outcome.faults} <= {"named"}
