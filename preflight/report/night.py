"""What one run leaves for the next ones to compare with: few enough bytes to keep and read many."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from preflight.stats.quantiles import median, nearest_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.report.document import Report
    from preflight.report.findings import Finding

MOST_BAD = 20_000
"""Subjects that are kept; a fleet of which more are bad has another question than which are new."""

_ABOUT = 5
"""Fleets grow and shrink: up to a fifth more or fewer nodes are about as many."""

Name = Annotated[str, Meta(max_length=512)]
Number = Annotated[int, Meta(ge=0, le=1 << 40)]


class Bad(Struct, frozen=True, array_like=True, order=True):
    """One thing that was condemned: a node, an endpoint or a path, and by which check."""

    check: Name
    subject: Name


class Night(Struct, frozen=True, kw_only=True):
    """One run in a few numbers and names."""

    run: Name
    started: Name
    seconds: float
    tier: Name
    exit: Annotated[int, Meta(ge=0, le=5)]
    nodes: Number
    ready: Number
    not_ready: Annotated[tuple[Name, ...], Meta(max_length=MOST_BAD)]
    lost: Number
    bad: Annotated[tuple[Bad, ...], Meta(max_length=MOST_BAD)]
    busbw_p50_gbs: float | None = None
    busbw_p5_gbs: float | None = None
    """Of all pairs at the largest size of the sweep: the typical one and the slow ones."""


def at(seconds: float) -> str:
    """Write when a run began, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def night_of(report: Report, found: Sequence[Finding]) -> Night:
    """Sum up a run."""
    bad = {Bad(one.check, name) for one in found if one.condemns for name in one.subjects}
    speeds = _speeds(report)
    return Night(
        run=report.run,
        started=report.started,
        seconds=report.seconds,
        tier=report.tier,
        exit=report.exit,
        nodes=len(report.fleet.nodes),
        ready=len(report.fleet.ready),
        not_ready=report.fleet.not_ready[:MOST_BAD],
        lost=report.lost,
        bad=tuple(sorted(bad)[:MOST_BAD]),
        busbw_p50_gbs=median(speeds) if speeds else None,
        busbw_p5_gbs=nearest_rank(speeds, 0.05) if speeds else None,
    )


def alike(earlier: Sequence[Night], now: Night) -> tuple[Night, ...]:
    """Those of the same tier and of about as many nodes: a look at two nodes is no night."""
    return tuple(
        one
        for one in earlier
        if one.tier == now.tier and abs(one.nodes - now.nodes) * _ABOUT <= now.nodes
    )


def before(earlier: Sequence[Night], now: Night) -> Night | None:
    """The run that this one is held against: the last that is alike, else the last one."""
    ran = alike(earlier, now) or earlier
    return ran[-1] if ran else None


def _speeds(report: Report) -> list[float]:
    sizes = [(size.size_bytes, size.busbw_gbs) for pair in report.pairs for size in pair.sizes]
    largest = max((size for size, speed in sizes if speed is not None), default=0)
    return sorted(speed for size, speed in sizes if size == largest and speed is not None)
