"""Noise of an NDR InfiniBand rail, from published figures: no such fabric was at hand to record.

Sources: 8 B all-reduce of two nodes 19-20 us (NVIDIA/nccl-tests issue 150); 46-48 GB/s per NDR
rail (issue 290); p99 below twice p50 on an idle fabric and hosts' stalls as the main false alarm
(R-Pingmesh, SIGCOMM'24). Spreads and the rates of rare events are our choice, not measured.
"""

from __future__ import annotations

from array import array
from functools import cached_property
from math import exp
from typing import TYPE_CHECKING

from preflight.fabric.sweep_plan import NCCL, NCCL_SOAK
from tests.simulate.noise import Rare, Unrest, drawn
from tests.simulate.stream import Rung, Stream

if TYPE_CHECKING:
    from random import Random

    from preflight.fabric.samples import Backend

PROGRAM = (
    *(Rung(one.size_bytes, one.iterations) for one in NCCL),
    Rung(NCCL_SOAK.size_bytes, NCCL_SOAK.iterations, "soak"),
)
"""As the shipped plan has it: about 0.4 s under load."""

_BASE_US, _BYTES_PER_US = 19.0, 47_000.0
_LATENCY_LOG_SD, _WIRE_LOG_SD = 0.17, 0.008
"""The first gives p99 = 1.5 p50 at 8 B."""
_END_LOG_SD = 0.01
_GAP_US, _GAP_LOG_SD = 3.0, 0.5
_TABLE = 4096
_UNREST = Unrest(
    single=Rare(2e-6, 1_500, 0.8),
    host=Rare(0.02, 2_000, 0.9),
    leaf=Rare(0.002, 1_500, 0.5),
    pair_log_sd=0.007,
    spot_log_sd=0.003,
    hop_us=1.5,
)


class Rdma:
    """One lane per take: rails of a host share no jitter, only the stalls that `unrest` adds."""

    name, net, lanes = "rdma", "NET/IB mlx5_{rail}", 1
    backend: Backend = "nccl"
    unrest = _UNREST

    def __init__(self, program: tuple[Rung, ...] = PROGRAM) -> None:
        self.program = program

    @cached_property
    def _tables(self) -> tuple[list[float], list[float], list[float], list[float]]:
        """Factors to draw from: log-normals at evenly mixed places, the same in every process."""
        random = drawn("rdma tables")
        spreads = (_LATENCY_LOG_SD, _WIRE_LOG_SD, _END_LOG_SD, _GAP_LOG_SD)
        latency, wire, end, gap = (
            [exp(random.gauss(0, spread)) for _ in range(_TABLE)] for spread in spreads
        )
        return latency, wire, end, [_GAP_US * one for one in gap]

    def take(self, random: Random) -> tuple[tuple[Stream, ...], ...]:
        """One stream per rung."""
        return (tuple(self._stream(rung, random) for rung in self.program),)

    def _stream(self, rung: Rung, random: Random) -> Stream:
        latency, wire, end, gap = self._tables
        count, wire_us = rung.operations, self.wire_us(rung.size_bytes)
        times = [
            _BASE_US * one + wire_us * other
            for one, other in zip(
                random.choices(latency, k=count), random.choices(wire, k=count), strict=True
            )
        ]
        return Stream(
            array("d", times),
            array("d", [t * e for t, e in zip(times, random.choices(end, k=count), strict=True)]),
            array("d", random.choices(gap, k=count)),
            array("d", random.choices(gap, k=count)),
        )

    def wire_us(self, size_bytes: int) -> float:
        """At 47 GB/s."""
        return size_bytes / _BYTES_PER_US

    def typical_us(self, size_bytes: int) -> float:
        """Latency and the wire's part."""
        return _BASE_US + self.wire_us(size_bytes)

    def log_sd(self, size_bytes: int) -> float:
        """Of a median of many operations: next to nothing; the rest is in `unrest`."""
        del size_bytes
        return 0.002

    def tail(self, size_bytes: int, over_us: float) -> float:
        """A log-normal of 0.17 never reaches milliseconds; rare events are in `unrest`."""
        del size_bytes, over_us
        return 0.0

    def dispersion(self, over_us: float) -> float:
        """Stalls hit an operation per rail at most: what is left to count is nearly Poisson's."""
        del over_us
        return 1.0
