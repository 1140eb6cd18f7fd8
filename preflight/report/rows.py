"""Rows of the report, from what the run holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.fabric.besides import turn_of
from preflight.fleet.nodeset import fold
from preflight.report.document import BlameRow, FleetRow, PairRow, SizeRow, VerdictRow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.fabric.besides import Turn
    from preflight.fabric.blame import Blame
    from preflight.fabric.compare import Seen
    from preflight.fabric.samples import PairSamples, Sweep
    from preflight.fabric.schedule import Pairing
    from preflight.ledger import Entry
    from preflight.report.ready import Readiness


def fleet_row(
    names: Sequence[str], origin: str, ready: Readiness, leaves: Mapping[str, str] | None = None
) -> FleetRow:
    """The fleet and who of it may be launched on; `leaves`: node → its leaf switch."""
    return FleetRow(
        nodes=tuple(names),
        folded=fold(names),
        origin=origin,
        ready=ready.ready,
        not_ready=ready.not_ready,
        unjudged=ready.unjudged,
        apart=ready.apart,
        exclude=fold(ready.not_ready),
        leaves=dict(leaves or {}),
    )


def verdict_row(entry: Entry) -> VerdictRow:
    """One verdict of the ledger."""
    verdict = entry.verdict
    return VerdictRow(
        check=entry.check,
        subject=entry.subject,
        outcome=verdict.outcome,
        sentence=verdict.sentence,
        advice=verdict.advice,
        evidence=verdict.evidence,
        blame=verdict.blame,
        culprits=verdict.culprits,
        suspects=verdict.suspects,
        cause=verdict.cause,
        grant=verdict.grant,
    )


def pair_rows(
    sweep: Sweep, seen: Sequence[Seen], scheduled: frozenset[Pairing]
) -> tuple[PairRow, ...]:
    """Every series of a pair on a rail, and why it was measured."""
    rows = zip(sweep.pairs, seen, strict=True)
    return tuple(_pair(pair, one, turn_of(pair, sweep, scheduled)) for pair, one in rows)


def _pair(pair: PairSamples, seen: Seen, turn: Turn) -> PairRow:
    measured = seen.summary
    return PairRow(
        a=pair.a,
        b=pair.b,
        rail=pair.rail,
        round=pair.round,
        backend=pair.backend,
        state=measured.state,
        sizes=tuple(
            SizeRow(
                size_bytes=size.size_bytes,
                iterations=size.iterations,
                busbw_gbs=size.busbw_gbs,
                p50_us=size.p50_us,
                p99_us=size.p99_us,
                max_us=size.max_us,
            )
            for size in measured.sizes
        ),
        turn=turn,
        slow=seen.slow or seen.once,
        peers_gbs=seen.bound.peers_gbs,
        limit_gbs=seen.bound.gbs,
        limit_origin=seen.bound.origin,
    )


def blame_row(one: Blame) -> BlameRow:
    """A component that is to blame."""
    return BlameRow(
        kind=one.kind,
        component=one.component,
        sentence=one.sentence,
        confidence=one.confidence,
        advice=one.advice,
        pairs=tuple(one.pairs),
        rail=one.rail,
        culprits=one.culprits,
    )
