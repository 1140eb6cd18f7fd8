"""What a run measured, as a few numbers per node: devices under load, and rails of the network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.burn.own_past import conditions
from preflight.burn.units import FAR, FASTER_IS_LESS, units
from preflight.fabric.measure import LATENCY_BELOW, wire_from
from preflight.fabric.words import size
from preflight.history.night import Numbers
from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from preflight.burn.units import Raw
    from preflight.facts.burned import Burned
    from preflight.facts.model import Facts
    from preflight.run import Run

_OF_WAYS = "p2p_gbs"


def numbers_of(run: Run) -> tuple[Numbers, ...]:
    """Everything of one run."""
    measured = run.judgement.measured
    return (*_of_burn(measured.burned, measured.facts), *_of_rails(run))


def _of_burn(burned: Mapping[str, Burned], facts: Mapping[str, Facts]) -> Iterable[Numbers]:
    for name, one in burned.items():
        told = facts.get(name)
        by_measure: dict[str, dict[str, float]] = {}
        for raw in units(name, one, told):
            if raw.alike.endswith(FAR):
                continue  # the near side says what there is to say
            unit = raw.name.partition(" to ")[0] if raw.measure == _OF_WAYS else raw.name
            kept = by_measure.setdefault(raw.measure, {})
            kept[unit] = _slower(raw, kept.get(unit))
        for measure, values in by_measure.items():
            yield Numbers(
                node=name,
                measure=measure,
                under=conditions(one, told),
                units=tuple(values),
                values=tuple(values.values()),
            )


def _slower(raw: Raw, other: float | None) -> float:
    """Of a GPU's ways to others the slowest."""
    if other is None:
        return raw.best
    return max(raw.best, other) if raw.measure in FASTER_IS_LESS else min(raw.best, other)


def _of_rails(run: Run) -> Iterable[Numbers]:
    """The medians of each rail's pairs: at the largest size its bandwidth, at the smallest times.

    A median of several partners is the node's own: one bad partner is one of them.
    """
    sweep = run.judgement.measured.sweep
    if sweep is None:
        return
    reached: dict[tuple[str, str, str], dict[int, list[float]]] = {}
    for pair, seen in zip(sweep.pairs, run.judgement.sweep.seen, strict=True):
        if seen.summary.state != "measured" or not seen.summary.sizes:
            continue
        small, large = seen.summary.sizes[0], seen.summary.sizes[-1]
        told = []
        if large.size_bytes >= wire_from(pair.backend):
            told.append(("allreduce_gbs", large.size_bytes, large.busbw_gbs))
        if small.size_bytes < LATENCY_BELOW:
            told.append(("allreduce_p50_us", small.size_bytes, small.p50_us))
            told.append(("allreduce_p99_us", small.size_bytes, small.p99_us))
        for measure, size_bytes, value in told:
            for name in (pair.a, pair.b):
                key = (name, measure, f"{pair.backend}, {size(size_bytes)}")
                reached.setdefault(key, {}).setdefault(pair.rail, []).append(value)
    for (name, measure, under), by_rail in reached.items():
        rails = sorted(by_rail)
        yield Numbers(
            node=name,
            measure=measure,
            under=under,
            units=tuple(f"rail {rail}" for rail in rails),
            values=tuple(median(by_rail[rail]) for rail in rails),
        )
