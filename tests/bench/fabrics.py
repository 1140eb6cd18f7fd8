"""Which simulated fabrics are decoded: sizes, leaves, noise, faults, each from its seed alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from preflight.fabric.observed import Observed
from preflight.fabric.schedule import circle_rounds
from tests.simulate.condense import observed
from tests.simulate.fabric import Fabric, named
from tests.simulate.mixture import RDMA, TCP, mixture
from tests.simulate.noise import Pool, drawn
from tests.simulate.rdma import Rdma
from tests.simulate.recorded import load
from tests.simulate.scene import Scene
from tests.simulate.truth import Planted, truth

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from tests.simulate.faults import Fault
    from tests.simulate.noise import Noise

Name = Literal["rdma", "recorded"]

RECORDING = Path(__file__).parents[1] / "data" / "healthy-sweeps.json"

NODES = (2, 3, 4, 8, 16, 17, 64, 256, 1024, 4096)
MOST_FAULTS, NODES_PER_FAULT = 6, 4
RAILS: dict[Name, int] = {"rdma": 8, "recorded": 1}

_LEAVES = {8: 4, 16: 8, 17: 8, 64: 16, 256: 32, 1024: 32, 4096: 32}
"""Nodes under a leaf, by fabric size; smaller fabrics have one switch."""
_LEAVES_KNOWN = 0.5
_RETESTS = 2
_TAKES = 200
_SHARED_BY = 50
"""So many fabrics in a row share healthy streams; what is drawn from them is each one's own."""


class Case(Struct, frozen=True):
    """One fabric to be decoded."""

    noise: Name
    nodes: int
    faulty: bool
    seed: int

    @property
    def id(self) -> str:
        """As results and findings write it; `python -m tests.bench.decoding ID` shows it again."""
        return f"{self.noise}:{self.nodes}:{'faulty' if self.faulty else 'healthy'}:{self.seed}"


class Made(Struct, frozen=True):
    """A fabric, what a sweep of it shows, and the truth about it."""

    fabric: Fabric
    planted: tuple[Planted, ...]
    observed: Observed


def case(text: str) -> Case:
    """Read an id."""
    noise, nodes, faulty, seed = text.split(":")
    if noise not in RAILS or faulty not in ("faulty", "healthy"):
        raise ValueError(f"{text}: write NOISE:NODES:faulty|healthy:SEED, as in rdma:16:faulty:3")
    return Case(
        "rdma" if noise == "rdma" else "recorded", int(nodes), faulty == "faulty", int(seed)
    )


def make(one: Case) -> Made:
    """Build the fabric of a case, declare the truth, then simulate."""
    random = drawn(one.id)
    noise = _noise(one.noise)
    fabric = _fabric(one, random)
    faults = _faults(fabric, one, random)
    fabric = _with_retests(fabric, faults, random)
    planted = truth(fabric, noise, faults)
    scene = Scene(fabric, noise, faults, one.seed, _pool(one.noise, one.seed // _SHARED_BY))
    return Made(fabric, planted, observed(scene))


def most_faults(nodes: int) -> int:
    """How many faults at once; fabrics of two and three have one, whose side may stay open."""
    return max(1, min(MOST_FAULTS, nodes // NODES_PER_FAULT))


def _faults(fabric: Fabric, one: Case, random: Random) -> tuple[Fault, ...]:
    if not one.faulty:
        return ()
    severity = RDMA if one.noise == "rdma" else TCP
    return mixture(fabric, random.randint(1, most_faults(one.nodes)), severity, random)


def _fabric(one: Case, random: Random) -> Fabric:
    nodes, leaves = named(one.nodes, per_leaf=_LEAVES.get(one.nodes, 0))
    order = {name: at for at, name in enumerate(nodes)}
    shuffled = random.sample(nodes, len(nodes))
    return Fabric(
        nodes=nodes,
        rails=RAILS[one.noise],
        rounds=tuple(
            tuple((a, b) if order[a] < order[b] else (b, a) for a, b in around)
            for around in circle_rounds(shuffled)
        ),
        leaves=leaves if random.random() < _LEAVES_KNOWN else {},
    )


def _with_retests(fabric: Fabric, faults: Sequence[Fault], random: Random) -> Fabric:
    """Slow paths are measured again, beside as many pairs drawn at will: once is no proof."""
    known = [pair for around in fabric.rounds for pair in around]
    suspects = [
        (fault.component.nodes[0], fault.component.nodes[1])
        for fault in faults
        if fault.component.kind == "path"
    ]
    if not suspects:
        return fabric
    again = dict.fromkeys([*suspects, *random.sample(known, min(len(known), len(suspects)))])
    rounds: list[list[tuple[str, str]]] = []
    for a, b in again:
        free = (around for around in rounds if all({a, b}.isdisjoint(pair) for pair in around))
        around = next(free, None)
        if around is None:
            rounds.append([(a, b)])
        else:
            around.append((a, b))
    retests = tuple(map(tuple, rounds)) * _RETESTS
    return replace(fabric, rounds=fabric.rounds + retests, retested=len(fabric.rounds))


@cache
def _noise(name: Name) -> Noise:
    return Rdma() if name == "rdma" else load(RECORDING)


@cache
def _pool(name: Name, seed: int) -> Pool:
    return Pool(_noise(name), seed, _TAKES)
