"""The plan of one sweep: sizes, deadlines of each part, and the share of time that it measured.

An event of a given rate is seen with probability 1 - exp(-rate * loaded seconds).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.statistics import grouped
from preflight.fabric.samples import End, Rung, Sweep, Timing
from preflight.fabric.schedule import Rounds

KIB, MIB = 1 << 10, 1 << 20
_BYTES_EACH = 24  # an iteration's time and gap, in JSON
_RETESTS = 64  # up to 16 rounds, each four times as long
_RAILS = 16  # more GPUs than nodes have
LOGS_EACH = 8
"""Logs of one rail: a killed process is replaced, and retests have their own processes."""

_LOG_BYTES = 3 * 300 << 10
"""Times that one process sends its log: each time that it has doubled, and at the end."""


class Budget(Struct, frozen=True, kw_only=True):
    """Deadlines of one pair, seconds. A good pair needs a small part of them."""

    meet_s: float = 5.0
    """For the two ends to connect: long enough for two lost SYNs (1 s and 2 s more)."""
    op_s: float = 4.0
    """For one all-reduce; after that the pair counts as hung."""
    box_s: float = 0.2
    """For all counted iterations of one size; at least three are made."""
    pair_s: float = 6.0
    """A larger size that would not end within this is not begun."""
    soak_s: float = 0.1
    """For all counted iterations of the soak; on top of `pair_s`."""
    init_s: float = 0.0
    """For CUDA to initialise, before the first round: 1 to 15 s without persistence mode."""

    @property
    def barrier_s(self) -> float:
        """For all nodes to reach the next round: the slowest pair, a hung one, and a margin."""
        return self.pair_s + self.soak_s + self.op_s + self.meet_s


GLOO = (
    Rung(8, 20, 1500),
    Rung(64 * KIB, 3, 50),
    Rung(1 * MIB, 2, 20),
    Rung(4 * MIB, 2, 10),
)
"""CPU: about 0.5 s for a good pair on two shared cores, most of it at 8 B: 1,500 operations show an
event of rate 1 in 500 with 95 %, and all partners of a node see its events together."""

GLOO_SOAK = Rung(256 * KIB, 2, 400)
"""0.3 to 1 ms each, so that a spike of 10 ms shows; enough data for a lossy link to lose some."""

NCCL = (
    Rung(8, 50, 2000),
    Rung(64 * KIB, 10, 50),
    Rung(1 * MIB, 5, 20),
    Rung(16 * MIB, 5, 20),
    Rung(64 * MIB, 2, 20),
)
"""GPU: sizes at which a 10 ms spike still shows (1 GiB at 47 GB/s takes 23 ms by itself)."""

NCCL_INSIDE = (Rung(256 * MIB, 1, 10),)
"""Above the ladder, among the GPUs of one node: NVLink's floors apply from this size on. Eight A100
reach 0.77 of their busbw at 1 GiB at 64 MiB, and 0.87 here (nccl-tests output in
AFDWang/Hetu-Galvatron, tests/profiler/test_hardware_profile.py)."""

NCCL_SOAK = Rung(64 * MIB, 2, 200)
"""About 1.4 ms each at 47 GB/s."""


class SweepPlan(Struct, frozen=True, kw_only=True):
    """One sweep over a fleet. `rounds` covers *all* nodes, also those left out."""

    nodes: tuple[str, ...]
    rounds: Rounds
    left_out: dict[str, str] = {}
    """Node name → why it may not take part."""
    cut: frozenset[tuple[str, str]] = frozenset()
    """(from, to) of connections that failed in the port stage."""
    interface: str | None = None
    unpinned: frozenset[str] = frozenset()
    """Nodes on which NCCL chooses its interface as in the job. On the others, if `interface` names
    none, it gets the one that leads to the other nodes."""
    leaves: dict[str, str] = {}
    seed: int = 1
    sysfs: str = "/sys"
    """/sys on the nodes; another folder in tests."""
    stop_early: bool = False
    """Leave a size as soon as its spikes prove the pair bad; else make all iterations."""
    domains: dict[str, str] = {}
    """Node name → its NVLink domain; after the rounds, nodes of one are measured over NVLink."""
    inside: bool = True
    """After the rounds, nodes with two rails or more all-reduce among their own rails."""
    keep_logs: bool = False
    """Each rail sends NCCL's log, for a capture."""
    ready_s: float = 45.0
    """For a node's Python to import torch; from a cold network file system this takes long."""
    start_s: float = 20.0
    """For all rails to be forked and to come to the sweep's store."""
    gloo: tuple[Rung, ...] = GLOO
    nccl: tuple[Rung, ...] = NCCL
    nccl_inside: tuple[Rung, ...] = NCCL_INSIDE
    gloo_soak: Rung | None = GLOO_SOAK
    nccl_soak: Rung | None = NCCL_SOAK
    gloo_budget: Budget = Budget()
    nccl_budget: Budget = Budget(
        meet_s=15.0, op_s=10.0, box_s=0.5, pair_s=15.0, soak_s=0.5, init_s=60.0
    )
    """NCCL connects in its first operation, which takes seconds when cold."""

    def sizes(self, backend: str) -> tuple[tuple[Rung, ...], Rung | None]:
        """The ladder and the soak of a backend."""
        nccl = backend == "nccl"
        return (self.nccl, self.nccl_soak) if nccl else (self.gloo, self.gloo_soak)

    def limits(self, backend: str) -> Budget:
        """The deadlines of a backend."""
        return self.nccl_budget if backend == "nccl" else self.gloo_budget

    @property
    def most_bytes(self) -> int:
        """Return the most bytes that one node needs to report all its iterations."""
        ladders = ((*ladder, soak) for ladder, soak in map(self.sizes, ("gloo", "nccl")))
        most = max(sum(rung.iterations for rung in ladder if rung) for ladder in ladders)
        logs = LOGS_EACH * _LOG_BYTES * _RAILS if self.keep_logs else 0
        return most * _BYTES_EACH * _RAILS * (len(self.rounds) + _RETESTS) + logs


MISS = 0.01
"""Accepted probability to miss an event of the wanted rate."""

DEEP_RATE = 0.1
"""The default of `deep`: catch one event in 10 s of load, with 46 s of load per node."""

MOST_ITERATIONS = 50_000
"""Most iterations of one soak, each of which is kept and sent."""

_LEAST_S, _MOST_S = 0.1, 600.0

_GLOO = ((256 * KIB, 3e-4), (1 * MIB, 1e-3), (4 * MIB, 3e-3))
_NCCL = ((64 * MIB, 1.4e-3), (128 * MIB, 2.8e-3))
"""Sizes, and the time of one all-reduce of each at 1.3 and 47 GB/s: at most a third of 10 ms, so
that a spike of 10 ms shows."""


def loaded_s(rate_per_s: float) -> float:
    """Return the seconds of load after which an event of that rate is missed with `MISS`.

    T = ln(1 / miss) / rate: one event in 10 s needs 46 s for 99 %, one in a minute 276 s.
    """
    return math.log(1.0 / MISS) / rate_per_s


def per_pair_s(rate_per_s: float, rounds: Rounds) -> float:
    """Return the share of that load for each pair: those of a node's partners add up."""
    turns = Counter(name for round_pairs in rounds for pair in round_pairs for name in pair)
    fewest = min(turns.values(), default=1)
    return min(_MOST_S, max(_LEAST_S, loaded_s(rate_per_s) / fewest))


def plan_to_catch(plan: SweepPlan, rate_per_s: float) -> SweepPlan:
    """Return the sweep with a soak long enough to catch an event of that rate on every node."""
    seconds = per_pair_s(rate_per_s, plan.rounds)
    return replace(
        plan,
        gloo_soak=_rung(_GLOO, seconds),
        nccl_soak=_rung(_NCCL, seconds),
        gloo_budget=replace(plan.gloo_budget, soak_s=seconds),
        nccl_budget=replace(plan.nccl_budget, soak_s=seconds),
    )


def _rung(sizes: Sequence[tuple[int, float]], seconds: float) -> Rung:
    """Return the smallest size that fills the time with no more iterations than are kept.

    It allows twice the planned number, for links that are faster than planned.
    """
    fitting = (size for size in sizes if seconds / size[1] * 2 <= MOST_ITERATIONS)
    size_bytes, one_s = next(fitting, sizes[-1])
    return Rung(size_bytes, 2, min(MOST_ITERATIONS, max(3, int(seconds / one_s * 2))))


_US = 1e6


def measured_share(sweep: Sweep) -> float | None:
    """Return the share of their time, 0 to 1, that rails spent in timed operations; None if none.

    A rail's time runs from the start of its first scheduled pair, connecting included, to the end
    of its last operation, by its node's own clock: without start-up, with rounds in which it had
    no pair. A node whose clock was set meanwhile does not count.
    """
    scheduled = (pair for pair in sweep.pairs if not 0 < sweep.retested <= pair.round)
    turns_by_rail = grouped(
        ((end.node, pair.rail), _turn(end))
        for pair in scheduled
        for end in pair.ends
        if end.timings
    )
    inside_s = total_s = 0.0
    most_s = sweep.seconds or math.inf
    for turns in turns_by_rail.values():
        begin, end, spent = zip(*turns, strict=True)
        spent_s, window_s = sum(spent), max(end) - min(begin)
        if spent_s <= window_s <= most_s:
            inside_s += spent_s
            total_s += window_s
    return inside_s / total_s if total_s > 0 else None


def _turn(end: End) -> tuple[float, float, float]:
    """Return when a pair began and ended at one end, and its seconds in timed operations."""
    within_us = sum(sum(timing.times_us) for timing in end.timings)
    ended_s = end.started_s + max(map(_duration_s, end.timings))
    return end.started_s - end.setup_ms / 1e3, ended_s, within_us / _US


def _duration_s(timing: Timing) -> float:
    """Return seconds since the end's `started_s`: times, gaps, and checks, which gaps leave out."""
    checks_us = timing.check_us * len(timing.times_us)
    return timing.began_s + (sum(timing.times_us) + sum(timing.gaps_us) + checks_us) / _US
