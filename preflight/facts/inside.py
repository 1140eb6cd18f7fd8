"""What all GPUs of one node do together, as its check sees it: measured, expected, whose fault."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

InsideState = Literal[
    "one_rail", "not_run", "trouble", "measured", "hung", "no_connect", "absent", "error", "corrupt"
]
"""`one_rail`: there is nothing to measure. `trouble`: it should have taken part and could not."""


class Inside(Struct, frozen=True, kw_only=True):
    """The all-reduce among the rails of one node, held against its peers."""

    state: InsideState
    rails: int = 1
    backend: str = ""
    reason: str = ""
    """Why it was not measured, or what its rails said went wrong."""
    stopped: bool = False
    """Not measured for what is no fault of the node's: it is not judged."""
    way: str = ""
    """What carried it, as the library says: "P2P", "SHM"."""
    lacks: str = ""
    """Which rails it lacks that its group has, and by what that is known."""
    why: str = ""
    """What is wrong, in one sentence; nothing where it is fine or cannot be judged."""
    advice: str = ""
    at_bytes: int = 0
    """The size at which bandwidth is judged: the largest that was measured."""
    busbw_gbs: float | None = None
    """Of the median operation."""
    best_gbs: float | None = None
    """Of the fastest, which is what is held against the limit."""
    limit_gbs: float | None = None
    limit_origin: str = ""
    peers_gbs: float | None = None
    peers: int = 0
    """Other nodes of its group with as many rails."""
    latency_us: float | None = None
    events: int = 0
    """Of what comes and goes: how many operations, out of how many."""
    operations: int = 0
