"""Whether measuring changes what is measured: our figures of a pair beside a plain script's."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from preflight.fabric.observed import digests, ladder
from preflight.fabric.pair_summary import busbw_gbs
from preflight.fabric.samples import Rung
from preflight.fabric.sweep_plan import MIB, SweepPlan
from tests.bench.probing import connected, some
from tests.bench.ratio import Band, Row, extremes, in_turns, ratio_of_medians
from tests.bench.sweeping import swept, whole
from tests.bench.torchruns import rung, torchrun

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight.core.remote_command import Connection
    from preflight.fleet.model import Host
    from tests.lab.cluster import Lab

_SMALL, _LARGE = Rung(8, 100, 3000), Rung(4 * MIB, 10, 100)
_BOX_S = 5.0
"""Time enough for all of them, so that both sides do as many operations of each size."""

_TURNS = 15
_BAND = Band(0.95, 1.05)


class Pair(Struct, frozen=True):
    """What one side says of the pair."""

    latency_us: float
    busbw_gbs: float


def measure(lab: Lab) -> Iterator[Row]:
    """One pair of hosts, in turns by a sweep of ours and by a script under torchrun."""
    first, second = some(lab.inventory(), 2)
    _, connections = connected((first, second))
    try:
        ours, theirs = in_turns(
            _TURNS,
            lambda: _told("ours", _ours((first, second), connections)),
            lambda: _told("plain", _theirs((first, second))),
        )
    finally:
        for connection in connections.values():
            connection.close()
    yield _row(
        "bandwidth",
        f"one pair, {_LARGE.iterations} all-reduces of {_LARGE.size_bytes // MIB} MiB: busbw in "
        "our report / by a plain torch.distributed script",
        "GB/s",
        [(mine.busbw_gbs, other.busbw_gbs) for mine, other in zip(ours, theirs, strict=True)],
        _BAND,
    )
    yield _row(
        "latency",
        f"one pair, {_SMALL.iterations} all-reduces of {_SMALL.size_bytes} B: median time "
        "in our report / by that script",
        "us",
        [(mine.latency_us, other.latency_us) for mine, other in zip(ours, theirs, strict=True)],
    )


def _row(
    key: str,
    what: str,
    unit: str,
    turns: Sequence[tuple[float, float]],
    bound: Band | None = None,
) -> Row:
    ours, theirs = zip(*turns, strict=True)
    return Row(
        id=f"harness.{key}",
        what=what,
        ours=extremes(ours),
        theirs=extremes(theirs),
        unit=unit,
        value=ratio_of_medians(ours, theirs),
        runs=len(ours),
        bound=bound,
        note="value: ratio of the medians and its 95 % interval (bootstrap over turns)",
    )


def _ours(pair: tuple[Host, Host], connections: Mapping[str, Connection]) -> Pair:
    names = (pair[0].name, pair[1].name)
    plan = SweepPlan(nodes=names, rounds=((names,),), gloo=(_SMALL, _LARGE), gloo_soak=None)
    budget = msgspec.structs.replace(plan.gloo_budget, box_s=_BOX_S, pair_s=4 * _BOX_S)
    told = whole(swept(msgspec.structs.replace(plan, gloo_budget=budget), pair, connections))
    sizes = ladder(digests(told.pairs[0]))
    if len(sizes) < len((_SMALL, _LARGE)):
        raise RuntimeError("the pair was not measured at both sizes; is this machine very busy?")
    small, large = sizes
    return Pair(small.p50_us, large.busbw_gbs)


def _theirs(pair: tuple[Host, Host]) -> Pair:
    medians_us = torchrun(pair, [rung(_SMALL), rung(_LARGE)])
    large_us = medians_us[_LARGE.size_bytes]
    return Pair(medians_us[_SMALL.size_bytes], busbw_gbs(_LARGE.size_bytes, large_us / 1e6))


def _told(who: str, one: Pair) -> Pair:
    sys.stderr.write(f"  {who}: {one.busbw_gbs:.3f} GB/s, {one.latency_us:.0f} us\n")
    return one
