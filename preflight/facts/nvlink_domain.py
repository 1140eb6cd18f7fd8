"""NVLink between nodes (GB200 NVL72), as its check sees it: measured, expected, whose fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.facts.model import Gpu


class OverNvlink(Struct, frozen=True, kw_only=True):
    """One node's pairs over NVLink with its neighbours in the domain, on its worst rail."""

    state: Literal["alone", "not_run", "trouble", "measured", "broken"]
    """`alone`: no other node of its domain takes part. `broken`: no pair came to a result."""
    domain: str = ""
    nodes: int = 1
    """How many nodes of the domain take part."""
    rails: int = 0
    rail: int = 0
    """On which it is slowest, or broken."""
    partners: tuple[str, ...] = ()
    """With whom it was measured there."""
    reason: str = ""
    """Why it was not measured."""
    stopped: bool = False
    """Not measured for what is no fault of the node's: it is not judged."""
    way: str = ""
    """What carried it, as NCCL says: "P2P MNNVL"."""
    at_bytes: int = 0
    """The size at which bandwidth is judged: the largest that was measured."""
    best_gbs: float | None = None
    """Of the fastest operation with the faster partner."""
    peers_gbs: float | None = None
    """The median of that on all rails of the other nodes."""
    why: str = ""
    """What is wrong, in one sentence."""
    advice: str = ""
    proven: bool = False
    """Whether its partners are fine with others: then it is this node's fault."""


def nvlink_domain(gpus: Sequence[Gpu]) -> str | None:
    """The domain that all GPUs of a node are in; None without one, or where they disagree."""
    named = {gpu.health.fabric_domain if gpu.health is not None else None for gpu in gpus}
    return named.pop() if len(named) == 1 else None
