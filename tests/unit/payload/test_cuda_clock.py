"""Times by CUDA events are those of the wire, whatever the hosts do that enqueue the work."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from sweep import clocks
from sweep import pair as stopping

from tests.unit.payload.streams import End, Time, Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_SPIKE_US = 1000.0
"""Less is no spike with NCCL (preflight/fabric/limits.toml)."""

_MIB = 1 << 20


@dataclass
class Seen:
    """What one end says of one size."""

    times_us: list[float]
    gaps_us: list[float]
    began_s: list[float]
    """When each gap began, where that is marked."""
    worked_us: float
    """What its host did, without waits and stalls."""
    spent_us: float


def pair(
    monkeypatch: pytest.MonkeyPatch,
    wire_us: float | Callable[[int], float],
    *,
    enqueue_us: Sequence[float] = (20.0, 20.0),
    stalls: Mapping[int, Sequence[float]] | None = None,
    size_bytes: int = 8,
    operations: int = 2000,
    check_us: float = 0.0,
    stall_us: float = 3000.0,
) -> list[Seen]:
    """Measure one size as the ladder does, on two simulated GPUs.

    `enqueue_us`: what an operation costs each host; `stalls`: when the host of an end stalls, us.
    """
    wire = Wire(wire_us if callable(wire_us) else lambda _: wire_us)
    ends = [End(wire, number, each, check_us) for number, each in enumerate(enqueue_us)]
    for number, moments in (stalls or {}).items():
        ends[number].stalls = [(at_us, stall_us) for at_us in sorted(moments)]
    own = Time()
    monkeypatch.setattr(clocks, "time", own)

    def measure(end: End) -> Seen:
        own.end = end
        clock = clocks.CudaClock(end, size_bytes, end.reduce, end.check, lambda: None)
        clock.warm_up(20)
        left = operations
        while left > 0:
            clock.restart()
            clock.run(min(left, stopping.batch_size(size_bytes)))
            left -= stopping.batch_size(size_bytes)
            end.agree()
        end.leave()
        timing = clock.timing(0.0)
        marks = [at_s for _, at_s in timing["resumed"]]
        return Seen(timing["times_us"], timing["gaps_us"], marks, end.worked_us, end.now_us)

    with ThreadPoolExecutor(2) as both:
        return list(both.map(measure, ends))


def network_us(seen: Sequence[Seen]) -> list[float]:
    """The shorter of both ends' times, as `preflight.fabric.pair_summary` takes it."""
    return [min(both) for both in zip(*(end.times_us for end in seen), strict=True)]


def median(values: Sequence[float]) -> float:
    """The middle one."""
    return sorted(values)[len(values) // 2]


@pytest.mark.slow
@pytest.mark.parametrize("enqueue_us", [(5.0, 5.0), (45.0, 45.0), (5.0, 45.0)])
@pytest.mark.parametrize("wire_us", [18.0, 24.0, 36.0])
def test_latency_is_that_of_the_wire_though_the_host_needs_longer_to_enqueue(
    monkeypatch: pytest.MonkeyPatch, wire_us: float, enqueue_us: tuple[float, float]
) -> None:
    """Wires of 18, 24 and 36 us read so, not as long as the host's loop takes."""
    seen = pair(monkeypatch, wire_us, enqueue_us=enqueue_us)
    times = network_us(seen)
    assert len(times) == 2000
    assert median(times) == pytest.approx(wire_us, rel=0.02)
    assert max(times) < 1.1 * wire_us


@pytest.fixture(scope="module")
def healthy_us() -> float:
    """How long a host works that does not stall."""
    with pytest.MonkeyPatch.context() as patched:
        return pair(patched, 24.0)[0].worked_us


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_stalled_host_has_a_gap_and_the_wire_no_slow_operation(
    monkeypatch: pytest.MonkeyPatch, healthy_us: float, seed: int
) -> None:
    """33 stalls of 3 ms at any moment: who made the other wait has the gap, and is not slow."""
    randomly = random.Random(seed)  # noqa: S311 - moments, no secrets
    moments = [randomly.uniform(0, healthy_us) for _ in range(33)]
    seen = pair(monkeypatch, 24.0, stalls={0: moments})
    assert max(network_us(seen)) < 3 * 24.0
    assert median(network_us(seen)) == pytest.approx(24.0, rel=0.02)
    waited = [at for at, us in enumerate(seen[1].times_us) if us > _SPIKE_US]
    for at in waited:
        assert seen[0].gaps_us[at] > 0.5 * seen[1].times_us[at]
    assert max(seen[1].gaps_us) < _SPIKE_US


@pytest.mark.slow
def test_a_stall_that_outlasts_the_work_ahead_is_seen_as_that_hosts(
    monkeypatch: pytest.MonkeyPatch, healthy_us: float
) -> None:
    """Stalls of 30 ms, ten times what was enqueued ahead: most are gaps, and none is the wire's."""
    randomly = random.Random(1)  # noqa: S311 - moments, no secrets
    moments = [randomly.uniform(0, healthy_us) for _ in range(20)]
    seen = pair(monkeypatch, 24.0, stalls={0: moments}, stall_us=30_000.0)
    late = [at for at, us in enumerate(seen[1].times_us) if us > _SPIKE_US]
    assert late
    assert all(seen[0].gaps_us[at] > 0.9 * seen[1].times_us[at] for at in late)
    assert max(network_us(seen)) < 3 * 24.0


@pytest.mark.parametrize("size_mib", [1, 16, 64])
def test_a_slow_host_reads_the_same_bandwidth(
    monkeypatch: pytest.MonkeyPatch, size_mib: int
) -> None:
    """45 us an operation and ten more for each check cost no bandwidth; nor do stalls."""
    wire_us = 20.0 + size_mib * _MIB / 46e3
    best = []
    for enqueue_us, stalls in ((5.0, []), (45.0, []), (45.0, [i * 7e3 + 11 for i in range(50)])):
        seen = pair(
            monkeypatch,
            wire_us,
            enqueue_us=(enqueue_us, enqueue_us),
            stalls={0: stalls, 1: []},
            size_bytes=size_mib * _MIB,
            operations=40,
            check_us=60.0,
        )
        times = network_us(seen)
        assert median(times) == pytest.approx(wire_us, rel=0.01)
        best.append(min(times))
    assert best == [pytest.approx(wire_us, rel=0.01)] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size_bytes", "operations", "batch"), [(8, 2000, 64), (_MIB, 60, 16), (64 * _MIB, 40, 16)]
)
@pytest.mark.parametrize("stalls", [(), tuple(i * 9e3 + 5.0 for i in range(20))])
def test_one_slow_operation_of_the_wire_is_seen_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
    size_bytes: int,
    operations: int,
    batch: int,
    stalls: Sequence[float],
) -> None:
    """10 ms once: both ends saw it in that operation, also while a host stalls elsewhere."""
    usual_us = 24.0 + size_bytes / 46e3
    every = stopping.batch_size(size_bytes)
    for slow in (0, operations // 2, operations - 1):
        agreed, within = divmod(slow, every)
        # One more all-reduce begins each batch, and one more is what both ends agree by.
        number = 20 + agreed * (every + every // batch + 1) + within + within // batch + 1

        def took_us(at: int, number: int = number) -> float:
            return usual_us + (10_000.0 if at == number else 0.0)

        seen = pair(
            monkeypatch, took_us, stalls={0: stalls}, size_bytes=size_bytes, operations=operations
        )
        spikes = [at for at, us in enumerate(network_us(seen)) if us > usual_us + 5000.0]
        assert spikes == [slow]
        assert network_us(seen)[slow] == pytest.approx(usual_us + 10_000.0, rel=0.05)


def test_a_host_that_waits_for_each_launch_still_yields_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With CUDA_LAUNCH_BLOCKING=1 nothing can be enqueued ahead: it reads as long as that takes."""
    reduce = End.reduce

    def blocking(end: End) -> None:
        reduce(end)
        end.synchronize()

    monkeypatch.setattr(End, "reduce", blocking)
    times = network_us(pair(monkeypatch, 24.0, operations=128))
    assert len(times) == 128
    assert 24.0 <= median(times) < 120.0


def test_each_batch_has_its_place_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds the stream up is in no gap: later batches say when they began."""
    seen = pair(monkeypatch, 24.0, operations=320)
    for end in seen:
        assert len(end.began_s) >= 4
        assert end.began_s == sorted(end.began_s)
        assert max(end.gaps_us) < 100.0
