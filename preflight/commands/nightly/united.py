"""One report for the whole sweep: what every wave found, as if it had been one run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.check import FLEET, Tier
from preflight.core.ledger import Entry
from preflight.fleet.nodeset import fold
from preflight.report.document import CoverageRow, FleetRow, Report
from preflight.report.findings import Finding, findings, suspicions
from preflight.report.header import NumberRow, OffRow, Overrides, WaiverRow
from preflight.report.ready import counts_as_failure, of_entries
from preflight.report.since import blame_of, entries_of
from preflight.verdict import WORST_FIRST, Outcome, Verdict, not_run

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from preflight.report.document import MissedRow, PairRow, VerdictRow


ASKED = "reach.answer"
"""The check under which it stands that a node was not judged at all: the first of all questions."""


def on_node(name: str, verdict: Verdict) -> Entry:
    """What stands for a node of which there is no report."""
    return Entry(ASKED, name, (name,), verdict)


def of_the_fleet(reports: Mapping[int, Report]) -> Iterator[Entry]:
    """One verdict for each check that judged every wave as a whole, by the number of the wave."""
    rows: dict[str, list[tuple[int, VerdictRow]]] = {}
    for number, report in reports.items():
        for row in report.verdicts:
            if row.subject == FLEET:
                rows.setdefault(row.check, []).append((number, row))
    for check, told in rows.items():
        yield Entry(check, FLEET, (), _joined(told, len(reports)))


def _joined(told: Sequence[tuple[int, VerdictRow]], waves: int) -> Verdict:
    """The worst that it said of any wave, and of which."""
    worst = min((row.outcome for _, row in told), key=WORST_FIRST.index)
    same = [(number, row) for number, row in told if row.outcome is worst]
    first = same[0][1]
    by_sentence: dict[str, list[int]] = {}
    for number, row in same:
        by_sentence.setdefault(row.sentence, []).append(number)
    alone = waves == 1 or (len(by_sentence) == 1 and len(same) == waves)
    words = by_sentence if alone else (_of(*one) for one in by_sentence.items())
    return Verdict(
        outcome=worst,
        sentence="; ".join(words),
        advice=first.advice,
        evidence=first.evidence if waves == 1 else {f"wave {n}": r.evidence for n, r in same},
        cause=first.cause,
        grant=first.grant,
        blame=first.blame if len(same) == 1 else "",
        culprits=tuple(dict.fromkeys(name for _, row in same for name in row.culprits)),
        suspects=tuple(dict.fromkeys(name for _, row in same for name in row.suspects)),
    )


def _of(sentence: str, waves: Sequence[int]) -> str:
    numbers = ",".join(map(str, waves))
    return f"{'waves' if len(waves) > 1 else 'wave'} {numbers}: {sentence}"


MOST_MISSED = 512
"""As in every report."""


def joined_pairs(reports: Sequence[Report]) -> tuple[PairRow, ...]:
    """All pairs; rounds are counted on, so that one number is one moment."""
    rows: list[PairRow] = []
    for report, before in _counted(reports):
        rows += [replace(row, round=row.round + before) for row in report.pairs]
    return tuple(rows)


def most_missed(reports: Sequence[Report]) -> tuple[MissedRow, ...]:
    """The dullest looks of all; no rate at all is duller than any."""
    rows = [row for report in reports for row in report.missed]
    return tuple(sorted(rows, key=lambda row: row.one_in or 0.0)[:MOST_MISSED])


def joined_overrides(told: Iterable[Overrides]) -> Overrides:
    """What the inventory laid over the checks, each of its lines once with all its nodes."""
    waivers: dict[object, WaiverRow] = {}
    off: dict[object, OffRow] = {}
    numbers: dict[object, NumberRow] = {}
    for one in told:
        for waiver in one.waivers:
            key = (waiver.check, waiver.nodes, waiver.until, waiver.reason)
            before = waivers[key].verdicts if key in waivers else 0
            waivers[key] = replace(waiver, verdicts=waiver.verdicts + before)
        for switch in one.off:
            known = off.setdefault((switch.check, switch.by), switch)
            off[switch.check, switch.by] = replace(known, nodes=_both(known.nodes, switch.nodes))
        for number in one.numbers:
            place = (number.name, number.value, number.by)
            held = numbers.setdefault(place, number)
            numbers[place] = replace(held, nodes=_both(held.nodes, number.nodes))
    return Overrides(
        waivers=tuple(waivers.values()), off=tuple(off.values()), numbers=tuple(numbers.values())
    )


def _both(one: Iterable[str], other: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*one, *other)))


def _counted(reports: Sequence[Report]) -> Iterator[tuple[Report, int]]:
    """Each report, and how many rounds there were before it."""
    before = 0
    for report in reports:
        yield report, before
        before += max((row.round + 1 for row in report.pairs), default=0)


NOBODY, INTERRUPTED, BROKE, CONDEMNED = 5, 2, 3, 1
"""Exit codes, as everywhere."""


class Part(Struct, frozen=True, kw_only=True):
    """One wave that left a report."""

    number: int
    """As a person counts: the first is 1."""
    report: Report


class Whole(Struct, frozen=True, kw_only=True):
    """What the waves do not know: the sweep around them."""

    sweep: str
    preflight: str
    started: str
    seconds: float
    tier: Tier
    strict: bool
    nodes: tuple[str, ...]
    origin: str
    leaves: Mapping[str, str] = {}
    left_out: Mapping[str, str]
    """Nodes that were not to be looked at, and why."""
    owed: Mapping[str, Verdict]
    """Nodes that were, and of which there is no report: `lost`, or stopped before their turn."""
    interrupted: bool
    coverage: CoverageRow | None


def owed_later(why: str) -> Verdict:
    """What stands for a node whose turn did not come."""
    return not_run(why, stopped=True)


def lost(why: str) -> Verdict:
    """What stands for a node whose wave left no report."""
    advice = "look into its wave's folder; to do it again: preflight sweep --resume"
    return Verdict(outcome=Outcome.LOST, sentence=why, advice=advice)


def unite(whole: Whole, parts: Sequence[Part]) -> tuple[Report, tuple[Finding, ...]]:
    """Join the waves' reports into one of the same schema, and their findings by cause."""
    reports = [part.report for part in parts]
    entries = _entries(whole, parts)
    suspected = suspicions(entries, len(whole.nodes) - len(whole.left_out))
    blames = tuple(row for report in reports for row in report.blames)
    united = Report(
        preflight=whole.preflight,
        run=whole.sweep,
        started=whole.started,
        seconds=round(whole.seconds, 3),
        tier=whole.tier,
        exit=_exit(whole, reports, entries),
        interrupted=whole.interrupted,
        fleet=_fleet(whole, reports),
        **of_entries(entries),
        pairs=joined_pairs(reports),
        blames=blames,
        suspicions=(*suspected.values(), *_of_waves(parts, suspected)),
        coverage=whole.coverage,
        missed=most_missed(reports),
        overrides=joined_overrides([report.overrides for report in reports]),
        measured_in=tuple(sorted({name for report in reports for name in report.measured_in})),
    )
    return united, findings(entries, tuple(map(blame_of, blames)), suspected)


def _entries(whole: Whole, parts: Sequence[Part]) -> tuple[Entry, ...]:
    """All verdicts: those on nodes and pairs as they are, those on each wave's whole as one."""
    own = [entry for part in parts for entry in entries_of(part.report) if entry.nodes]
    owed = [on_node(name, verdict) for name, verdict in whole.owed.items()]
    return (*own, *of_the_fleet({part.number: part.report for part in parts}), *owed)


def _fleet(whole: Whole, reports: Sequence[Report]) -> FleetRow:
    """Every node stands where its wave put it; whoever is in none was not judged."""
    ready = {name for report in reports for name in report.fleet.ready}
    bad = {name for report in reports for name in report.fleet.not_ready}
    not_ready = tuple(name for name in whole.nodes if name in bad)
    return FleetRow(
        nodes=whole.nodes,
        folded=fold(whole.nodes),
        origin=whole.origin,
        ready=tuple(name for name in whole.nodes if name in ready - bad),
        not_ready=not_ready,
        unjudged=tuple(name for name in whole.nodes if name not in ready | bad),
        apart=tuple(pair for report in reports for pair in report.fleet.apart),
        exclude=fold(not_ready),
        left_out={name: whole.left_out[name] for name in whole.nodes if name in whole.left_out},
        leaves=dict(whole.leaves),
    )


def _exit(whole: Whole, reports: Sequence[Report], entries: Sequence[Entry]) -> int:
    """The worst of the waves, in the order that a run's own code has."""
    codes = {report.exit for report in reports}
    if whole.interrupted:
        return INTERRUPTED
    if codes <= {NOBODY} and not whole.owed:
        return NOBODY
    condemned = any(counts_as_failure(entry, strict=whole.strict) for entry in entries)
    if condemned or CONDEMNED in codes:
        return CONDEMNED
    return BROKE if whole.owed or codes - {0, NOBODY} else 0


def _of_waves(parts: Sequence[Part], suspected: Collection[str]) -> list[str]:
    """What looked like one shared cause to a wave, where the fleet does not say so by itself."""
    return [
        f"wave {part.number}, of {len(part.report.fleet.nodes)} nodes: {note}"
        for part in parts
        for note in part.report.suspicions
        if note.partition(" ")[0] not in suspected
    ]
