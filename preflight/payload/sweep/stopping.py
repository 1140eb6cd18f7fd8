"""When a size is left before all its operations are done: out of time, or condemned already.

Looked at every so many operations, and decided by both ends together, so that nobody waits for an
operation that the other no longer makes.
"""

from __future__ import annotations

import math

from . import clocks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import plan

GO_ON, TIME, SPIKES = 2, 1, 0
"""What an end wants; the smallest of both counts."""

WORDS = {TIME: "time", SPIKES: "spikes"}

_SHARE = 0.5
_LARGE = 1 << 20


def every(size_bytes: int) -> int:
    """After how many operations both ends look: one more small all-reduce."""
    return 64 if size_bytes < _LARGE else 16


def within_s(go: plan.Go, phase: str, box_s: float) -> float:
    """How long one size may take: its box where all is well, at most half of the pair's time."""
    return box_s * (phase == "soak") + go.pair_s * _SHARE


def wanted(
    times_us: list[float], spent_s: float, most_s: float, condemn: plan.Condemn | None
) -> int:
    """What this end wants after these operations."""
    if condemn is not None and evidence(times_us, condemn) >= condemn.nats:
        return SPIKES
    return TIME if spent_s > most_s else GO_ON


def evidence(times_us: list[float], condemn: plan.Condemn) -> float:
    """Nats for "as often as is unusual" against "as usual": Wald's sequential test."""
    cut_us = max(condemn.spike_us, clocks.SPIKE_MEDIANS * sorted(times_us)[len(times_us) // 2])
    spikes = sum(1 for time_us in times_us if time_us > cut_us)
    usual, unusual = condemn.usual, condemn.unusual
    clean = len(times_us) - spikes
    return spikes * math.log(unusual / usual) + clean * math.log((1 - unusual) / (1 - usual))
