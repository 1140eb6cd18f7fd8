"""A host that is late is seen by its own clock, and its verdict reaches whoever reads a sweep."""

from __future__ import annotations

from preflight.checks.fabric.test_pairs import judge_allreduce
from preflight.fabric.judge import judge_sweep
from preflight.fabric.schedule import circle_rounds
from preflight.fleet.model import Host
from preflight.verdict import Outcome
from tests.simulate.fabric import Fabric, named
from tests.simulate.faults import Fault, node
from tests.simulate.iterations import sweep
from tests.simulate.noise import Pool
from tests.simulate.rdma import Rdma
from tests.simulate.scene import Scene


def test_a_late_host_has_a_verdict() -> None:
    """Its pairs are flaky for it and the others are fine: a blame that no pair has is no pass."""
    names, _ = named(6)
    noise = Rdma()
    fault = Fault(component=node("n3"), kind="late", per_operation=5e-3)
    fabric = Fabric(nodes=names, rails=1, rounds=circle_rounds(names))
    swept = sweep(Scene(fabric, noise, (fault,), 1, Pool(noise, 4, 1)))
    decoded = judge_sweep(swept, [Host(name=name, address=name) for name in names])
    (blame,) = decoded.blames
    assert blame.component == "n3"
    assert len(blame.pairs) == 5
    for ends, pair in decoded.pairs.items():
        expected = Outcome.FLAKY if "n3" in ends else Outcome.OK
        assert judge_allreduce(pair).outcome is expected, ends
