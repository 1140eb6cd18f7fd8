"""What is asked of a job that hangs, and what is said of it in the end."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from preflight.facts.look_model import NodeLook

Category = Literal[
    "progresses",
    "straggler",
    "odd_rank",
    "desync",
    "link",
    "dead_rank",
    "stopped_rank",
    "out_of_memory",
    "node_unreachable",
    "no_job",
    "unknown",
]
"""`odd_rank`: the others wait in a collective while it is elsewhere. `link`: all are in the same
one and nothing moves. `straggler`: everything moves, at the pace of the slowest."""


class NodeState(Struct, frozen=True, kw_only=True):
    """One node of the job: what it showed, or why it did not."""

    node: str
    look: NodeLook | None = None
    sentence: str = ""
    """Why there is no look: as the `reach.*` checks say it."""
    advice: str = ""
    late: bool = False
    """It was reached, and what it was to show did not come in time: it is there, and slow."""


class JobState(Struct, frozen=True, kw_only=True):
    """All that is known of one job at this moment."""

    nodes: tuple[NodeState, ...]
    job: str = ""
    """Which of several jobs on these nodes is meant; empty: the only one."""
    here: bool = False
    """The only node is the machine that asks: no command needs its name."""


class Doubt(Struct, frozen=True, kw_only=True):
    """What it might be instead."""

    category: Category
    sentence: str
    confidence: float


class Standing(Struct, frozen=True, kw_only=True):
    """Where a rank stands, in a row of the table: equal ones are folded by the report."""

    ranks: tuple[int, ...]
    where: str
    """`all_reduce (train.py:41)`, or the process state where there is no stack."""
    what: str = ""
    """What it does: waits, computes, reads, is stopped."""


class Diagnosis(Struct, frozen=True, kw_only=True):
    """The answer; `preflight diagnose --json` prints it as it is (docs/diagnose.md)."""

    category: Category
    culprits: tuple[str, ...] = ()
    """`rank 17`, `node gpu003`, `gpu 1`, `path gpu001-gpu004`, `port mlx5_3/1`."""
    sentence: str
    advice: str
    line: str = ""
    """The line of the user's code that matters: `/home/u/train.py:88 in evaluate`."""
    evidence: tuple[str, ...] = ()
    confidence: float
    alternatives: tuple[Doubt, ...] = ()
    standings: tuple[Standing, ...] = ()
    next: str = ""
    """What to check next with preflight."""
    unseen: tuple[str, ...] = ()
    """What could not be looked at, and what would let it be."""
