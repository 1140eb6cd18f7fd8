"""Samples without iterations, judged: what the decoder finds in them, in the words of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.check import subject
from preflight.commands.judged import Judged
from preflight.commands.untold import untold, untold_words
from preflight.fabric.blame import Blame
from preflight.fabric.compare import Seen
from preflight.fabric.decoding import find
from preflight.fabric.measure import Summary
from preflight.fabric.subtle import subtle
from preflight.fabric.words import either
from preflight.fabric.yardstick import Bound
from preflight.ledger import Entry
from preflight.report.picture.accused import accused
from preflight.report.picture.ratios import cells
from preflight.verdict import Verdict, fail, flaky, not_run, ok, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight.fabric.culprit import Found, Symptom
    from preflight.fabric.observed import Observed
    from preflight.report.picture.ratios import Cell

CHECK = "fabric.allreduce"
"""Whose verdicts these are, as in a run."""

FINE = ok("as its peers")
STOPPED = not_run("it had no turn", stopped=True)
UNTIMED = not_run("none of its times is stored", stopped=True)

_SHARED = "one shared cause is likelier than that many faults; drain none for this"
_APART = "check what lies between {0}: cables, switch ports, routes; keep them in different jobs"
_TIMELESS = ("measured", "not_run")
"""States that say nothing good of a pair without its times."""
_FAILED: Mapping[Symptom, tuple[str, str]] = {
    "hung": ("all-reduces hung", "look at {0} for stopped or D-state processes and at its link"),
    "no_connect": ("no connection came about", "check firewall, route and interface of {0}"),
    "broken": ("all-reduces broke off", "look at the kernel log and the link of {0}"),
}


def judge_short(observed: Observed) -> Judged:
    """Decode, blame, and conclude on every pair that was tried."""
    findings = find(observed)
    failed = [_failed(one) for one in findings.found if one.symptom in _FAILED]
    seen = [_seen(cell) for cell in cells(observed)]
    blames = (*failed, *subtle(findings.found, observed, seen, failed))
    shared = f"{findings.systemic}: {_SHARED}"
    return Judged(
        entries=(*_entries(observed, blames), *_fallen(observed, blames)),
        blames=blames,
        accused=accused(blames, observed),
        notes=tuple(untold_words(observed)),
        systemic={CHECK: shared} if findings.systemic else {},
    )


def _failed(one: Found) -> Blame:
    """Say in words that operations failed outright, between whom, and what to do."""
    named = one.named
    is_path = named is not None and named.kind == "path"
    what, advice = _FAILED[one.symptom]
    rail = f" on rail {named.rail}" if named is not None and named.rail is not None else ""
    # Of several parts that may be meant, nodes are named: a person looks at nodes.
    names = tuple(dict.fromkeys(name for part in one.among for name in part.nodes))
    where = " and ".join(names) if is_path else either(names)
    count = f"{len(one.pairs)} pair{'s' * (len(one.pairs) != 1)}"
    return Blame(
        kind="unresolved" if named is None else named.kind,
        component=f"pair {'-'.join(names)}" if is_path else where,
        sentence=f"{what}{rail} in {count} of {where}",
        confidence=one.confidence,
        advice=(_APART if is_path else advice).format(where),
        pairs=tuple(f"{a}-{b}" for a, b in one.pairs),
        rail=named.rail if named is not None else None,
    )


def _seen(cell: Cell) -> Seen:
    """One pair against its peers, as the words for it want it."""
    speed, small = cell.bandwidth, cell.latency
    return Seen(
        a=cell.a,
        b=cell.b,
        rail=cell.rail,
        round=cell.round,
        state=cell.state,
        summary=Summary(cell.state, (), cell.error),
        at_bytes=speed.size_bytes if speed else 0,
        busbw_gbs=speed.value if speed else None,
        bound=Bound(peers_gbs=speed.peers if speed else None),
        latency_us=small.value if small else None,
        peers_latency_us=small.peers if small else None,
    )


def _entries(observed: Observed, blames: Sequence[Blame]) -> Iterator[Entry]:
    rest = {(one.a, one.b): STOPPED for one in observed.tried}
    rest |= {(one.a, one.b): UNTIMED for one in observed.tried if one.state == "measured"}
    rest |= {(one.a, one.b): FINE for one in observed.tried if one.state not in _TIMELESS}
    rest |= {(one.a, one.b): FINE for one in observed.digests}
    rest |= {(one.a, one.b): _not_run(one.error) for one in observed.tried if untold(one)}
    known = {f"{a}-{b}": (a, b) for a, b in rest}
    for blame in blames:
        verdict = _verdict(blame)
        if not blame.pairs:
            names = blame.culprits or (blame.component,)
            yield from (Entry(CHECK, subject((name,)), (name,), verdict) for name in names)
        for ends in (known[name] for name in blame.pairs):
            rest.pop(ends, None)
            yield Entry(CHECK, subject(ends), ends, verdict)
    yield from (Entry(CHECK, subject(ends), ends, verdict) for ends, verdict in rest.items())


def _not_run(error: str) -> Verdict:
    return not_run(error, stopped=True)


def _verdict(one: Blame) -> Verdict:
    whom, nodes, advice = one.component, one.culprits, one.advice
    if one.events:
        count, of = one.events, one.operations
        return flaky(count, of, one.sentence, advice=advice, blame=whom, culprits=nodes)
    return fail(one.sentence, advice=advice, blame=whom, culprits=nodes)


def _fallen(observed: Observed, blames: Sequence[Blame]) -> Iterator[Entry]:
    """Nodes that fell silent and are not blamed otherwise: what is missing is no pass."""
    named = {one.component for one in blames}
    for name, why in observed.silent.items():
        if name not in named:
            verdict = unknown(f"it fell out of the sweep: {why}", advice="look at it, sweep again")
            yield Entry(CHECK, subject((name,)), (name,), verdict)
