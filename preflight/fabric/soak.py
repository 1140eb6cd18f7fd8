"""How long to load each link so that an event of a given rate shows itself; what `deep` is for.

Events that come once in so many seconds of load are seen with 1 - exp(-rate * loaded seconds).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from preflight.fabric.samples import Ladder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fabric.plan import SweepPlan
    from preflight.fabric.schedule import Rounds

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
    return msgspec.structs.replace(
        plan,
        gloo_soak=_rung(_GLOO, seconds),
        nccl_soak=_rung(_NCCL, seconds),
        gloo_budget=msgspec.structs.replace(plan.gloo_budget, soak_s=seconds),
        nccl_budget=msgspec.structs.replace(plan.nccl_budget, soak_s=seconds),
    )


def _rung(sizes: Sequence[tuple[int, float]], seconds: float) -> Ladder:
    """The smallest size that fills the time with no more iterations than are kept.

    Twice the foreseen number is allowed, for links that are faster than foreseen.
    """
    fitting = (each for each in sizes if seconds / each[1] * 2 <= MOST_ITERATIONS)
    size_bytes, one_s = next(fitting, sizes[-1])
    return Ladder(size_bytes, 2, min(MOST_ITERATIONS, max(3, int(seconds / one_s * 2))))
