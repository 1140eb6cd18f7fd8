"""What a watch is told to do, and what it writes down of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

STALLED_AFTER_S = 300.0
"""Before any of torch's own limits ends the job and its evidence: 480 s (NCCL's heartbeat), 10 min
(a collective of NCCL's), 30 min (of gloo's)."""

SHORTEST_S = 2.0
CAP_MIB = 256


class Options(NamedTuple):
    """As typed."""

    command: tuple[str, ...]
    base: Path
    """The folder in which the evidence's own folder is made."""
    debug: frozenset[str] = frozenset()
    cap_mib: int = CAP_MIB
    """Of each debug file."""
    stalled_after_s: float | None = None
    tee: bool = False
    keep: bool = False
    nodes: str = ""
    """The job's nodes, or `inventory`: looked at too, from the node of rank 0."""
    inventory: str = ""


class Seen(NamedTuple):
    """One look at one rank, as the table of samples has it."""

    at_s: float
    rank: int
    pid: int
    state: str
    cpu_s: float
    faults: int
    switches: int
    calls: int
    moved: int
