"""Small fabrics for the tests of the simulation."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.fabric.schedule import circle_rounds
from tests.simulate.fabric import Fabric, named
from tests.simulate.noise import Pool
from tests.simulate.rdma import Rdma
from tests.simulate.recorded import Recorded, load
from tests.simulate.scene import Scene
from tests.simulate.stream import Rung

if TYPE_CHECKING:
    from tests.simulate.faults import Fault
    from tests.simulate.noise import Noise

RECORDING = Path(__file__).parents[2] / "data" / "healthy-sweeps.json"

SHORT = (Rung(8, 300), Rung(64 << 20, 60, "soak"))
"""A program that is simulated in no time."""


def fabric(count: int, *, rails: int = 2, per_leaf: int = 0) -> Fabric:
    """All pairs up to 16 nodes, eight or nine rounds above."""
    nodes, leaves = named(count, per_leaf=per_leaf)
    return Fabric(nodes=nodes, rails=rails, rounds=circle_rounds(nodes), leaves=leaves)


@cache
def rdma() -> Rdma:
    """The synthetic noise with a short program."""
    return Rdma(SHORT)


@cache
def recorded() -> Recorded:
    """The noise of the recorded sweeps, with its own program."""
    return load(RECORDING)


_POOLS: dict[str, Pool] = {}
"""Healthy streams that all tests of a noise share."""


def scene(where: Fabric, *faults: Fault, noise: Noise | None = None, seed: int = 1) -> Scene:
    """A scene on shared streams."""
    noise = noise or rdma()
    key = f"{noise.name} {noise.program}"
    pool = _POOLS.setdefault(key, Pool(noise, 1, 16))
    return Scene(where, noise, faults, seed, pool)
