"""Decides which nodes are ready, which must be excluded, and the exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.command_line import EMPTY, FINE, FOUND, INTERRUPTED, UNCLEAR
from preflight.core.thresholds import SHIPPED, Thresholds
from preflight.fabric.decoding.culprit import NODE_KINDS
from preflight.fabric.decoding.sensitivity import SensitivityRow, sensitivity
from preflight.fabric.schedule import Pairing, round_kind_of
from preflight.fleet.nodeset import fold, split_pair
from preflight.report.document import BlameRow, FleetRow, PairRow, SizeRow, VerdictRow, row_of
from preflight.report.findings import counts
from preflight.verdict import BUSY, UNSEEN, Outcome

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from preflight.core.registry import Entry
    from preflight.fabric.compare import PairJudgement
    from preflight.fabric.observed import Digest, Observed
    from preflight.fabric.phrases import Blame
    from preflight.fabric.samples import Sweep


_TWO = 2


class Readiness(Struct, frozen=True, kw_only=True):
    """Nodes in fleet order. `apart`: pairs whose path is bad although both nodes are fine."""

    ready: tuple[str, ...]
    not_ready: tuple[str, ...]
    unjudged: tuple[str, ...] = ()
    """No failure was found, but the run ended before it reached all of their expected verdicts."""
    apart: tuple[tuple[str, str], ...] = ()
    idle: tuple[str, ...] = ()
    """The unjudged nodes that are in no measured pair, although pairs were planned for them."""


def readiness(nodes: Sequence[str], entries: Sequence[Entry], *, strict: bool) -> Readiness:
    """Sort the nodes into ready, not ready and unjudged.

    A failed verdict makes its culprits and suspects not ready, else its subject. A pair that
    blames its path keeps its two nodes apart; a pair that blames neither node makes both not
    ready, as either may be at fault. A failure of the fleet as a whole makes no node not ready.
    """
    not_ready: set[str] = set()
    unjudged: set[str] = set()
    apart: dict[tuple[str, str], None] = {}
    fleet = frozenset(nodes)
    seen: set[str] = set()
    for entry in entries:
        # A verdict on the fleet covers all nodes but those that it names as unseen.
        seen.update(entry.nodes or fleet - _listed(entry, UNSEEN))
        if is_open(entry):
            unjudged.update(entry.nodes or nodes)
        if not counts_as_failure(entry, strict=strict):
            continue
        pair = _blamed_path(entry, fleet)
        if at_fault := (*entry.verdict.culprits, *entry.verdict.suspects):
            not_ready |= fleet.intersection(at_fault)
        elif entry.verdict.blame in fleet:
            not_ready.add(entry.verdict.blame)
        elif pair is not None:
            apart[pair] = None
        else:
            not_ready.update(entry.nodes)
    unjudged |= fleet - seen
    if not any(map(_was_judged, entries)):
        unjudged = set(nodes)
    idle = _untested(nodes, entries, not_ready)
    unjudged = (unjudged | idle) - not_ready
    return Readiness(
        ready=tuple(name for name in nodes if name not in not_ready and name not in unjudged),
        not_ready=tuple(name for name in nodes if name in not_ready),
        unjudged=tuple(name for name in nodes if name in unjudged),
        apart=tuple(pair for pair in apart if not_ready.isdisjoint(pair)),
        idle=tuple(name for name in nodes if name in idle and name not in not_ready),
    )


def _untested(
    nodes: Sequence[str], entries: Iterable[Entry], not_ready: Collection[str]
) -> set[str]:
    """Nodes none of whose pairs was judged, although others' were: their network is untested.

    Not a node that has no ready partner, nor one of which no pair was selected.
    """
    pairs = [entry for entry in entries if len(entry.nodes) == _TWO]
    measured = {name for entry in pairs if _was_judged(entry) for name in entry.nodes}
    busy = {name for entry in pairs for name in _listed(entry, BUSY)}
    if not measured:
        return busy
    in_pairs = {name for entry in pairs for name in entry.nodes}
    ready = {name for name in nodes if name not in not_ready}
    return busy | {name for name in ready & in_pairs if name not in measured and len(ready) > 1}


def _listed(entry: Entry, key: str) -> set[str]:
    """The nodes in the evidence, which may have any type in a report that is read again."""
    value = entry.verdict.evidence.get(key)
    names = value if isinstance(value, list | tuple | dict) else ()
    return {name for name in names if isinstance(name, str)}


def _was_judged(entry: Entry) -> bool:
    return entry.verdict.outcome not in (Outcome.NOT_RUN, Outcome.BROKEN, Outcome.MISSING)


def _blamed_path(entry: Entry, nodes: frozenset[str]) -> tuple[str, str] | None:
    """The pair that a verdict blames as "pair a-b": its own, else two nodes (names hold dashes)."""
    blame = entry.verdict.blame
    if len(entry.nodes) == _TWO and blame == f"pair {'-'.join(entry.nodes)}":
        return entry.nodes[0], entry.nodes[1]
    if not blame.startswith("pair "):
        return None
    return split_pair(blame.removeprefix("pair "), nodes)


def is_open(entry: Entry) -> bool:
    """Whether a subject is still unjudged: missing, broken, or the run stopped before it."""
    outcome = entry.verdict.outcome
    stopped = outcome is Outcome.NOT_RUN and entry.verdict.evidence.get("stopped") is True
    return stopped or outcome in (Outcome.BROKEN, Outcome.MISSING)


def counts_as_failure(entry: Entry, *, strict: bool) -> bool:
    """Whether a verdict makes its subject not ready; `strict` adds warnings and missing grants."""
    by_strictness = strict and entry.verdict.outcome in (Outcome.WARN, Outcome.UNKNOWN)
    return entry.verdict.makes_not_ready or by_strictness


class Ending(Struct, frozen=True, kw_only=True):
    """What decides the exit code of a run besides its verdicts."""

    strict: bool = False
    need: int | None = None
    """Ready nodes that are enough."""
    interrupted: bool = False
    broke: bool = False
    strangers_failed: bool = False
    """An ordinary test that ran beside the checks failed, which is never 0."""


_USUAL = Ending()


def exit_code(entries: Sequence[Entry], ready: Readiness, ending: Ending = _USUAL) -> int:
    """Map a finished run to its exit code.

    0 ready; 1 something failed, is flaky or unknown; 2 interrupted; 3 preflight broke or verdicts
    are missing, and nothing failed; 5 nothing to check, as no check applied. With `need`, enough
    ready nodes are 0, unless the fleet as a whole has failed.
    """
    need, broke, strangers_failed = ending.need, ending.broke, ending.strangers_failed
    if ending.interrupted:
        return INTERRUPTED
    has_open = any(map(is_open, entries))
    if not has_open and not ready.idle and not any(map(_was_judged, entries)):
        return UNCLEAR if broke else FOUND if strangers_failed else EMPTY
    failures = [entry for entry in entries if counts_as_failure(entry, strict=ending.strict)]
    if failures:
        enough = need is not None and len(launchable(ready)) >= need
        # Where the fleet as a whole has failed, leaving nodes out may not help.
        of_fleet = any(not (e.nodes or e.verdict.culprits or e.verdict.blame) for e in failures)
        return FINE if enough and not (of_fleet or broke or strangers_failed) else FOUND
    if broke or has_open or (ready.idle and need is None):
        return UNCLEAR
    too_few = need is not None and len(launchable(ready)) < need
    return FOUND if too_few or strangers_failed else FINE


def fleet_row(
    names: Sequence[str], origin: str, ready: Readiness, leaves: Mapping[str, str]
) -> FleetRow:
    """The nodes of the fleet by state; `leaves`: node → its leaf switch."""
    return row_of(
        FleetRow,
        ready,
        nodes=tuple(names),
        folded=fold(names),
        origin=origin,
        exclude=fold(ready.not_ready),
        leaves=dict(leaves),
    )


def verdict_row(entry: Entry) -> VerdictRow:
    """The row of one verdict."""
    return row_of(VerdictRow, entry, entry.verdict)


def verdict_fields(entries: Sequence[Entry]) -> dict[str, Any]:
    """The fields of a report that depend on the verdicts alone."""
    by_outcome = counts(entries)
    return {
        "expected": len(entries),
        "missing": by_outcome[Outcome.MISSING],
        "counts": {str(outcome): number for outcome, number in by_outcome.items()},
        "verdicts": tuple(map(verdict_row, entries)),
    }


def pair_rows(
    sweep: Sweep, judgements: Sequence[PairJudgement], scheduled: frozenset[Pairing]
) -> tuple[PairRow, ...]:
    """A row for every measurement of a pair on a rail, with the reason why it was measured."""
    return tuple(
        row_of(
            PairRow,
            pair,
            judgement,
            sizes=tuple(map(_size_row, judgement.sizes)),
            turn=round_kind_of(pair, sweep, scheduled),
            slow=judgement.slow or judgement.once,
            peers_gbs=judgement.bound.peers_gbs,
            limit_gbs=judgement.bound.gbs,
            limit_origin=judgement.bound.origin,
        )
        for pair, judgement in zip(sweep.pairs, judgements, strict=True)
    )


def _size_row(digest: Digest) -> SizeRow:
    busbw_gbs, number, longest_us = digest.busbw_gbs, digest.operations, digest.most_us
    return row_of(SizeRow, digest, busbw_gbs=busbw_gbs, iterations=number, max_us=longest_us)


def blame_row(blame: Blame) -> BlameRow:
    """The row of one blame."""
    pairs = tuple("-".join(ends) for ends in blame.pairs)
    return row_of(BlameRow, blame, component=blame.component, pairs=pairs, culprits=blame.culprits)


MISSED_ROWS = 512


def sensitivity_rows(
    observed: Observed | None, blames: Iterable[BlameRow] = (), limits: Thresholds = SHIPPED
) -> tuple[SensitivityRow, ...]:
    """The least tested rails first, on which only frequent events would have been found.

    Measurements with blamed nodes do not count.
    """
    if observed is None:
        return ()
    blamed = frozenset(blame.component for blame in blames if blame.kind in NODE_KINDS)
    healthy = replace(
        observed,
        nodes=tuple(name for name in observed.nodes if name not in blamed),
        tried=tuple(pair for pair in observed.tried if blamed.isdisjoint((pair.a, pair.b))),
        digests=tuple(pair for pair in observed.digests if blamed.isdisjoint((pair.a, pair.b))),
    )
    return sensitivity(healthy, MISSED_ROWS, limits)


def excluded(fleet: FleetRow) -> str:
    """Fold the nodes to exclude: those not ready, and one of each pair that must stay apart."""
    dropped = {*fleet.not_ready, *fleet.ready} - {*launchable(fleet)}
    return fold([name for name in fleet.nodes if name in dropped])


def launchable(fleet: FleetRow | Readiness) -> tuple[str, ...]:
    """The ready nodes, without the later one of each pair that must stay apart."""
    dropped: set[str] = set()
    for a, b in fleet.apart:
        if a not in dropped:
            dropped.add(b)
    return tuple(name for name in fleet.ready if name not in dropped)
