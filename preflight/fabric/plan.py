"""What one sweep is to do, how long each part may take, and what share of it measured.

Events that come once in so many seconds of load are seen with 1 - exp(-rate * loaded seconds).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.statistics import grouped
from preflight.fabric.samples import Ladder
from preflight.fabric.schedule import Rounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fabric.samples import End, Sweep, Timing


KIB, MIB = 1 << 10, 1 << 20
_BYTES_EACH = 24  # an iteration's time and gap, in JSON
_RETESTS = 64  # up to 16 rounds, each four times as long
_RAILS = 16  # more GPUs than nodes have
LOGS_EACH = 8
"""Of one rail: a process that is killed is replaced, and retests have processes of their own."""

_LOG_BYTES = 3 * 300 << 10
"""Of one process: its log is sent each time that it has doubled, and at the end."""


class Budget(Struct, frozen=True, kw_only=True):
    """Deadlines of one pair, seconds. A pair that is healthy needs a small part of them."""

    meet_s: float = 5.0
    """For the two ends to connect: two lost SYNs (1 s and 2 s more) are forgiven."""
    op_s: float = 4.0
    """For one all-reduce; after that the pair is hung."""
    box_s: float = 0.2
    """For all counted iterations of one size; at least three are made."""
    pair_s: float = 6.0
    """No larger size is begun that would not end within this."""
    soak_s: float = 0.1
    """For all counted iterations of the soak; on top of `pair_s`."""
    init_s: float = 0.0
    """For CUDA to initialise, before the first round: 1 to 15 s without persistence mode."""

    @property
    def turn_s(self) -> float:
        """The longest that a pair may take once it is connected, when nothing hangs."""
        return self.pair_s + self.soak_s

    @property
    def barrier_s(self) -> float:
        """For everyone to come to the next round: the slowest pair, a hung one, and a margin."""
        return self.turn_s + self.op_s + self.meet_s


GLOO = (
    Ladder(8, 20, 1500),
    Ladder(64 * KIB, 3, 50),
    Ladder(1 * MIB, 2, 20),
    Ladder(4 * MIB, 2, 10),
)
"""CPU: about 0.5 s for a healthy pair on two shared cores, most of it at 8 B: of an event in one of
500 operations 1,500 show one with 95 %, and all partners of a node see its events together."""

GLOO_SOAK = Ladder(256 * KIB, 2, 400)
"""0.3 to 1 ms each, so that a spike of 10 ms shows; enough data for a lossy link to lose some."""

NCCL = (
    Ladder(8, 50, 2000),
    Ladder(64 * KIB, 10, 50),
    Ladder(1 * MIB, 5, 20),
    Ladder(16 * MIB, 5, 20),
    Ladder(64 * MIB, 2, 20),
)
"""GPU: sizes at which a 10 ms spike still shows (1 GiB at 47 GB/s takes 23 ms by itself)."""

NCCL_INSIDE = (Ladder(256 * MIB, 1, 10),)
"""Beyond the ladder, among the GPUs of one node: NVLink's floors count from this size on. Of the
busbw at 1 GiB eight A100 reach 0.77 at 64 MiB and 0.87 here (nccl-tests output in
AFDWang/Hetu-Galvatron, tests/profiler/test_hardware_profile.py)."""

NCCL_SOAK = Ladder(64 * MIB, 2, 200)
"""About 1.4 ms each at 47 GB/s."""


class SweepPlan(Struct, frozen=True, kw_only=True):
    """One sweep over a fleet. `rounds` is made over *all* nodes, also those left out."""

    nodes: tuple[str, ...]
    rounds: Rounds
    left_out: dict[str, str] = {}
    """Node name → why it may not take part."""
    cut: frozenset[tuple[str, str]] = frozenset()
    """(from, to) of connections that did not come about a moment ago."""
    interface: str | None = None
    unpinned: frozenset[str] = frozenset()
    """Nodes on which NCCL chooses its interface as it does in the job. Elsewhere, where `interface`
    names none, it is held to the one that leads to the other nodes."""
    leaves: dict[str, str] = {}
    seed: int = 1
    sysfs: str = "/sys"
    """On the nodes; elsewhere in tests."""
    stop_early: bool = False
    """Leave a size as soon as its spikes condemn the pair; else all iterations are wanted."""
    domains: dict[str, str] = {}
    """Node name → its NVLink domain; after the rounds, nodes of one are measured over NVLink."""
    inside: bool = True
    """After the rounds, nodes with two rails or more all-reduce among their own."""
    keep_logs: bool = False
    """Each rail sends what NCCL logged: for a capture."""
    ready_s: float = 45.0
    """For a node's Python to import torch; from a cold network file system this takes long."""
    start_s: float = 20.0
    """For all rails to be forked and to come to the sweep's store."""
    gloo: tuple[Ladder, ...] = GLOO
    nccl: tuple[Ladder, ...] = NCCL
    nccl_inside: tuple[Ladder, ...] = NCCL_INSIDE
    gloo_soak: Ladder | None = GLOO_SOAK
    nccl_soak: Ladder | None = NCCL_SOAK
    gloo_budget: Budget = Budget()
    nccl_budget: Budget = Budget(
        meet_s=15.0, op_s=10.0, box_s=0.5, pair_s=15.0, soak_s=0.5, init_s=60.0
    )
    """NCCL connects in its first operation, which takes seconds when cold."""

    def sizes(self, backend: str) -> tuple[tuple[Ladder, ...], Ladder | None]:
        """The ladder and the soak of a backend."""
        nccl = backend == "nccl"
        return (self.nccl, self.nccl_soak) if nccl else (self.gloo, self.gloo_soak)

    @property
    def most_words(self) -> int:
        """The most bytes in which one node can tell all iterations that it is asked for."""
        ladders = ((*ladder, soak) for ladder, soak in map(self.sizes, ("gloo", "nccl")))
        most = max(sum(rung.iterations for rung in ladder if rung) for ladder in ladders)
        logs = LOGS_EACH * _LOG_BYTES * _RAILS if self.keep_logs else 0
        return most * _BYTES_EACH * _RAILS * (len(self.rounds) + _RETESTS) + logs


MISS = 0.01
"""The chance to miss an event of the wanted rate that is accepted."""

DEEP_RATE = 0.1
"""What `deep` catches unless told otherwise: one event in 10 s of load, 46 s of load per node."""

MOST_ITERATIONS = 50_000
"""Of one soak: every iteration is kept and sent."""

_KIB, _MIB = 1 << 10, 1 << 20
_LEAST_S, _MOST_S = 0.1, 600.0

_GLOO = ((256 * _KIB, 3e-4), (1 * _MIB, 1e-3), (4 * _MIB, 3e-3))
_NCCL = ((64 * _MIB, 1.4e-3), (128 * _MIB, 2.8e-3))
"""Sizes, and what one all-reduce of each takes at 1.3 and 47 GB/s: at most a third of 10 ms, so
that a spike of 10 ms shows."""


def loaded_s(rate_per_s: float, miss: float = MISS) -> float:
    """Seconds of load after which an event of that rate was missed with probability `miss`.

    T = ln(1 / miss) / rate: one event in 10 s needs 46 s for 99 %, one in a minute 276 s.
    """
    return math.log(1.0 / miss) / rate_per_s


def per_pair_s(rate_per_s: float, rounds: Rounds) -> float:
    """The part of that load that each pair has to bring: a node's partners add up."""
    turns: dict[str, int] = {}
    for around in rounds:
        for name in (name for pair in around for name in pair):
            turns[name] = turns.get(name, 0) + 1
    fewest = min(turns.values(), default=1)
    return min(_MOST_S, max(_LEAST_S, loaded_s(rate_per_s) / fewest))


def catching(plan: SweepPlan, rate_per_s: float) -> SweepPlan:
    """The same sweep, soaking for long enough to see an event of that rate on every node."""
    seconds = per_pair_s(rate_per_s, plan.rounds)
    return replace(
        plan,
        gloo_soak=_rung(_GLOO, seconds),
        nccl_soak=_rung(_NCCL, seconds),
        gloo_budget=replace(plan.gloo_budget, soak_s=seconds),
        nccl_budget=replace(plan.nccl_budget, soak_s=seconds),
    )


def _rung(sizes: Sequence[tuple[int, float]], seconds: float) -> Ladder:
    """The smallest size that fills the time with no more iterations than are kept.

    Twice the foreseen number is allowed, for links that are faster than foreseen.
    """
    fitting = (each for each in sizes if seconds / each[1] * 2 <= MOST_ITERATIONS)
    size_bytes, one_s = next(fitting, sizes[-1])
    return Ladder(size_bytes, 2, min(MOST_ITERATIONS, max(3, int(seconds / one_s * 2))))


_US = 1e6


class _Turn(Struct, frozen=True):
    """One end's part in one pair: seconds, by the clock of its node."""

    begins_s: float
    ends_s: float
    inside_s: float
    """Of it, in operations that were timed."""


def measured_share(sweep: Sweep) -> float | None:
    """The part of their time, 0 to 1, that rails spent in timed operations; None: nothing was.

    A rail's time runs from the start of its first scheduled pair, connecting included, to the end
    of its last one's last operation, by its node's own clock: what start-up took is not in it, and
    rounds in which it had no pair are. A node whose clock was set meanwhile does not count.
    """
    scheduled = (one for one in sweep.pairs if not 0 < sweep.retested <= one.round)
    seats = grouped(
        ((end.node, one.rail), _turn(end)) for one in scheduled for end in one.ends if end.timings
    )
    inside_s = total_s = 0.0
    most_s = sweep.seconds or math.inf
    for turns in seats.values():
        spent_s = sum(turn.inside_s for turn in turns)
        window_s = max(turn.ends_s for turn in turns) - min(turn.begins_s for turn in turns)
        if spent_s <= window_s <= most_s:
            inside_s += spent_s
            total_s += window_s
    return inside_s / total_s if total_s > 0 else None


def _turn(end: End) -> _Turn:
    return _Turn(
        begins_s=end.started_s - end.setup_ms / 1e3,
        ends_s=end.started_s + max(map(_ends_s, end.timings)),
        inside_s=sum(sum(timing.times_us) for timing in end.timings) / _US,
    )


def _ends_s(timing: Timing) -> float:
    """Seconds after the end's `started_s`: times, gaps, and the checks that gaps leave out."""
    checks_us = timing.check_us * len(timing.times_us)
    return timing.began_s + (sum(timing.times_us) + sum(timing.gaps_us) + checks_us) / _US
