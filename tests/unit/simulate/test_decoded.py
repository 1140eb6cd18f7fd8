"""From a planted fault to the name of the culprit, through the code that real sweeps go through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preflight.fabric.decoding.find import find
from preflight.fabric.observed import observe
from tests.bench.decoding import decoder
from tests.simulate.condense import observed
from tests.simulate.faults import Fault, endpoint, leaf_rail, node
from tests.simulate.iterations import sweep
from tests.simulate.mixture import RDMA, plant
from tests.simulate.noise import Pool, drawn
from tests.simulate.rdma import Rdma
from tests.simulate.scene import Scene
from tests.simulate.score import score
from tests.simulate.stream import Rung
from tests.simulate.truth import truth
from tests.unit.simulate.builders import fabric

if TYPE_CHECKING:
    from tests.simulate.fabric import Fabric

_NOISE = Rdma((Rung(8, 2000), Rung(64 << 20, 200, "soak")))
_POOL = Pool(_NOISE, 1, 40)


def _scene(where: Fabric, *faults: Fault, seed: int = 5) -> Scene:
    return Scene(where, _NOISE, faults, seed, _POOL)


@pytest.mark.parametrize(
    "name",
    [
        "slow endpoint",
        "spikes",
        "dead rail",
        "late host",
        "one-direction loss",
        "bad leaf-rail",
        "corrupting GPU",
    ],
)
def test_each_kind_of_fault_is_named(name: str) -> None:
    """One of each among 16 nodes under two leaves, all of them declared detectable."""
    where = fabric(16, rails=4, per_leaf=8)
    fault = plant(where, name, RDMA, drawn(name))
    assert fault is not None
    planted = truth(where, _NOISE, [fault])
    assert planted[0].detectable
    scored = score(planted, decoder(observed(_scene(where, fault))), where.rails)
    assert scored.fates == ("named",)
    assert not scored.wrong


def test_a_healthy_fabric_is_left_in_peace() -> None:
    """Bursts of hosts and leaves included, whatever its size."""
    for count in (2, 3, 8, 17):
        assert not find(observed(_scene(fabric(count, rails=4, per_leaf=8)))).culprits


def test_several_faults_at_once_are_told_apart() -> None:
    """A bad leaf-rail, a spiking cable elsewhere, and a late host."""
    where = fabric(17, rails=4, per_leaf=8)
    faults = (
        Fault(component=leaf_rail(where, "leaf1", 2), kind="slow", speed=0.85),
        Fault(component=endpoint("n12", 1), kind="spikes", per_operation=2e-3),
        Fault(component=node("n16"), kind="late", per_operation=2e-3),
    )
    planted = truth(where, _NOISE, faults)
    assert all(one.detectable for one in planted)
    scored = score(planted, find(observed(_scene(where, *faults))).culprits, where.rails)
    assert set(scored.fates) == {"named"}
    assert not scored.wrong


def test_every_iteration_of_a_fabric_leads_to_the_same_culprit() -> None:
    """A raw sweep, as it would come off the wire, goes the same way as the digests of thousands."""
    where = fabric(6, rails=2)
    fault = Fault(component=endpoint("n4", 1), kind="slow", speed=0.85)
    scene = _scene(where, fault)
    raw, short = (find(one).culprits for one in (observe(sweep(scene)), observed(scene)))
    assert [one.component for one in raw] == [one.component for one in short] == [endpoint("n4", 1)]
