"""Sweeps made up from a function of the pair: what judges see without a network."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from preflight.fabric.judge import judge_sweep
from preflight.fabric.samples import End, PairSamples, Rung, Sweep, Timing
from preflight.fabric.schedule import circle_rounds
from preflight.fleet.model import Expected, Host

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preflight.fabric.phrases import Blame
    from preflight.fabric.samples import Backend, PairState

SMALL, LARGE = 8, 4 << 20
TOP = defaultdict(lambda: LARGE, nccl=64 << 20)
"""The ladder's largest size by backend."""


def hosts(count: int, expected: Expected | None = None) -> list[Host]:
    """h1, h2, ... in order."""
    return [
        Host(name=f"h{n + 1}", address=f"10.0.0.{n + 1}", expected=expected or Expected())
        for n in range(count)
    ]


def end(
    node: str,
    busbw_gbs: float,
    latency_us: float = 200.0,
    state: PairState = "measured",
    sizes: int = 2,
    *,
    backend: str = "gloo",
) -> End:
    """One end's account: ten steady iterations of a small and a large size."""
    if state != "measured":
        return End(node, state, error=f"{state} on purpose")
    large_us = TOP[backend] / busbw_gbs / 1e3
    return End(
        node,
        "measured",
        (
            Timing(SMALL, (latency_us,) * 10, (1.0,) * 10),
            Timing(TOP[backend], (large_us,) * 10, (1.0,) * 10),
        )[:sizes],
    )


def sweep(
    fleet: Sequence[Host],
    speed: Callable[[str, str], float | PairState],
    *,
    limit: int | None = None,
    backend: Backend = "gloo",
    rails: int = 1,
) -> Sweep:
    """Every pair at the GB/s that `speed` says, or in the state that it says."""
    rounds = circle_rounds([host.name for host in fleet], limit)
    pairs = []
    for number, around in enumerate(rounds):
        for a, b in around:
            value = speed(a, b)
            ends = [
                end(name, value, backend=backend)
                if isinstance(value, float)
                else end(name, 1.0, state=value)
                for name in (a, b)
            ]
            pairs += [PairSamples(a, b, rail, number, backend, *ends) for rail in range(rails)]
    return Sweep((Rung(SMALL, 1, 10), Rung(TOP[backend], 1, 10)), rounds, tuple(pairs))


def blame(measured: Sweep, fleet: Sequence[Host]) -> tuple[Blame, ...]:
    """Who is blamed for it in the end."""
    return judge_sweep(measured, fleet).blames
