"""What one sweep is to do and how long each part of it may take."""

from __future__ import annotations

from msgspec import Struct

from preflight.fabric.samples import Ladder
from preflight.fabric.schedule import Rounds

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

    @property
    def most_words(self) -> int:
        """The most bytes in which one node can tell all iterations that it is asked for."""
        ladders = ((*self.gloo, self.gloo_soak), (*self.nccl, self.nccl_soak))
        most = max(sum(rung.iterations for rung in ladder if rung) for ladder in ladders)
        logs = LOGS_EACH * _LOG_BYTES * _RAILS if self.keep_logs else 0
        return most * _BYTES_EACH * _RAILS * (len(self.rounds) + _RETESTS) + logs
