"""Joins the waves' reports into one report for the whole nightly run, as if it had been one run.

It also counts how much of the fabric was measured over the nights, and draws all waves together.
Waves share no node, so each has its own rows, and the same round of all waves is one column.
Colours compare a pair with those of all waves; the blames are those of each wave.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.check import FLEET
from preflight.core.command_line import EMPTY, FINE, FOUND, INTERRUPTED, UNCLEAR
from preflight.core.registry import Entry
from preflight.core.statistics import grouped
from preflight.errors import UsageError
from preflight.fabric.observed import Observed
from preflight.fabric.planner import UNTESTED
from preflight.fabric.stored import read_stored
from preflight.report.document import BlameRow, CoverageRow, FleetRow, PairRow, Report, VerdictRow
from preflight.report.fabric_page import fabric_section
from preflight.report.findings import Finding, findings, suspicions
from preflight.report.header import NumberRow, OffRow, Overrides
from preflight.report.page import wave_links
from preflight.report.ready import (
    MISSED_ROWS,
    Readiness,
    counts_as_failure,
    fleet_row,
    verdict_fields,
)
from preflight.report.since import entries_of, utc_time
from preflight.verdict import WORST_FIRST, Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.commands.nightly.state import Night, NightlyRun
    from preflight.report.hide import Hider


REACH_CHECK = "reach.answer"
"""The check that reports that a node was not checked at all: it comes before all others."""


def fleet_entries(reports: Mapping[int, Report]) -> Iterator[Entry]:
    """Yield one verdict for each check of the whole fleet; `reports` by the wave's number."""
    rows = grouped(
        (row.check, (number, row))
        for number, report in reports.items()
        for row in report.verdicts
        if row.subject == FLEET
    )
    for check, rows_of_check in rows.items():
        yield Entry(check, FLEET, (), _join_verdicts(rows_of_check, len(reports)))


def _join_verdicts(rows: Sequence[tuple[int, VerdictRow]], waves: int) -> Verdict:
    """Return a check's worst verdict on any wave, with the numbers of these waves."""
    worst = min((row.outcome for _, row in rows), key=WORST_FIRST.index)
    worst_rows = [(number, row) for number, row in rows if row.outcome is worst]
    first = worst_rows[0][1]
    by_sentence = grouped((row.sentence, number) for number, row in worst_rows)
    is_common = waves == 1 or (len(by_sentence) == 1 and len(worst_rows) == waves)
    with_waves = (f"{wave_words(numbers)}: {words}" for words, numbers in by_sentence.items())
    words = by_sentence if is_common else with_waves
    return Verdict(
        outcome=worst,
        sentence="; ".join(words),
        advice=first.advice,
        evidence=first.evidence if waves == 1 else {f"wave {n}": r.evidence for n, r in worst_rows},
        cause=first.cause,
        grant=first.grant,
        blame=first.blame if len(worst_rows) == 1 else "",
        culprits=tuple(dict.fromkeys(name for _, row in worst_rows for name in row.culprits)),
        suspects=tuple(dict.fromkeys(name for _, row in worst_rows for name in row.suspects)),
    )


def wave_words(numbers: Sequence[int]) -> str:
    """Name waves: "wave 3", or "waves 1, 3"."""
    return f"wave{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def joined_pairs(reports: Sequence[Report]) -> tuple[PairRow, ...]:
    """Return the pairs of all waves; rounds are numbered on, so that each number is one time."""
    rows: list[PairRow] = []
    rounds_before = 0
    for report in reports:
        rows += [replace(row, round=row.round + rounds_before) for row in report.pairs]
        rounds_before += max((row.round + 1 for row in report.pairs), default=0)
    return tuple(rows)


def joined_overrides(overrides: Sequence[Overrides]) -> Overrides:
    """Join waivers, disabled checks and custom limits, each once with all its nodes."""
    waivers = grouped(
        ((row.check, row.nodes, row.until, row.reason), row)
        for wave in overrides
        for row in wave.waivers
    )
    off_rows = grouped(((row.check, row.by), row) for wave in overrides for row in wave.off)
    numbers = grouped(
        ((row.name, row.value, row.by), row) for wave in overrides for row in wave.numbers
    )
    return Overrides(
        waivers=tuple(
            replace(rows[-1], verdicts=sum(row.verdicts for row in rows))
            for rows in waivers.values()
        ),
        off=tuple(replace(rows[0], nodes=_all_nodes(rows)) for rows in off_rows.values()),
        numbers=tuple(replace(rows[0], nodes=_all_nodes(rows)) for rows in numbers.values()),
    )


def _all_nodes(rows: Sequence[OffRow] | Sequence[NumberRow]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for row in rows for name in row.nodes))


def unite(
    nightly: NightlyRun,
    by_wave: Mapping[int, Report],
    missing: Mapping[str, Verdict],
    former: Iterable[Night] = (),
    *,
    interrupted: bool = False,
) -> tuple[Report, tuple[Finding, ...]]:
    """Join the waves' reports into one of the same schema, and their findings by cause.

    `by_wave`: the reports by the wave's number, counted from 1. `missing`: the verdicts on the
    nodes without a report, because their wave left none or did not run.
    """
    reports = [*by_wave.values()]
    entries = (
        *(entry for report in reports for entry in entries_of(report) if entry.nodes),
        *fleet_entries(by_wave),
        *(Entry(REACH_CHECK, name, (name,), verdict) for name, verdict in missing.items()),
    )
    systemic = suspicions(entries, len(nightly.nodes) - len(nightly.left_out))
    blames = tuple(row for report in reports for row in report.blames)
    rows = [row for report in reports for row in report.sensitivity]
    whole_report = Report(
        preflight=nightly.preflight,
        run=nightly.sweep,
        started=utc_time(nightly.started_s),
        seconds=round(nightly.spent_s, 3),
        tier=nightly.tier,
        exit=INTERRUPTED if interrupted else _exit(nightly, reports, entries, missing),
        interrupted=interrupted,
        fleet=_fleet(nightly, reports),
        **verdict_fields(entries),
        pairs=joined_pairs(reports),
        blames=blames,
        suspicions=(*systemic.values(), *_wave_suspicions(by_wave, systemic)),
        coverage=fabric_coverage(nightly, reports, former),
        # The least sensitive rows of all waves; one without a rate comes first.
        sensitivity=tuple(sorted(rows, key=lambda row: row.one_in or 0.0)[:MISSED_ROWS]),
        overrides=joined_overrides([report.overrides for report in reports]),
        measured_in=tuple(sorted({name for report in reports for name in report.measured_in})),
    )
    return whole_report, findings(entries, blames, systemic)


def _fleet(nightly: NightlyRun, reports: Sequence[Report]) -> FleetRow:
    """Return the fleet with each node as its wave judged it; a node in no wave is unjudged."""
    ready = {name for report in reports for name in report.fleet.ready}
    not_ready = {name for report in reports for name in report.fleet.not_ready}
    states = Readiness(
        ready=tuple(name for name in nightly.nodes if name in ready - not_ready),
        not_ready=tuple(name for name in nightly.nodes if name in not_ready),
        unjudged=tuple(name for name in nightly.nodes if name not in ready | not_ready),
        apart=tuple(pair for report in reports for pair in report.fleet.apart),
    )
    left_out = {name: nightly.left_out[name] for name in nightly.nodes if name in nightly.left_out}
    row = fleet_row(nightly.nodes, nightly.origin, states, nightly.leaves)
    return replace(row, left_out=left_out)


def _exit(
    nightly: NightlyRun,
    reports: Sequence[Report],
    entries: Sequence[Entry],
    missing: Collection[str],
) -> int:
    """Return the worst exit code of the waves, in the same order as for a run."""
    codes = {report.exit for report in reports}
    if codes <= {EMPTY} and not missing:
        return EMPTY
    faulty = any(counts_as_failure(entry, strict=nightly.strict) for entry in entries)
    if faulty or FOUND in codes:
        return FOUND
    return UNCLEAR if missing or codes - {FINE, EMPTY} else FINE


def _wave_suspicions(by_wave: Mapping[int, Report], systemic: Collection[str]) -> list[str]:
    """Return the waves' suspicions of a shared cause that the whole fleet does not repeat."""
    return [
        f"wave {number}, of {len(report.fleet.nodes)} nodes: {note}"
        for number, report in by_wave.items()
        for note in report.suspicions
        if note.partition(" ")[0] not in systemic
    ]


def fabric_coverage(
    nightly: NightlyRun, tonight: Sequence[Report], former: Iterable[Night]
) -> CoverageRow | None:
    """Count the measured pairs of the whole fleet; None where no wave measures pairs."""
    rows = [report.coverage for report in tonight if report.coverage is not None]
    if not rows:
        return None
    nodes, leaves = nightly.nodes, nightly.leaves
    measured, measured_tonight = _MeasuredPairs(nodes, leaves), _MeasuredPairs(nodes, leaves)
    for wave in (wave for night in former for wave in night if wave.whole):
        measured.add_pairs_of(wave.nodes)
    known_before = measured.count
    for row in (row for report in tonight for row in report.pairs if row.state not in UNTESTED):
        measured_tonight.add_pairs_of((row.a, row.b))
        measured.add_pairs_of((row.a, row.b))
    pairs = len(nodes) * (len(nodes) - 1) // 2
    new, unseen = measured.count - known_before, pairs - measured.count
    leaf_count = len({leaves[name] for name in nodes if name in leaves})
    shares = [row.measured_share for row in rows if row.measured_share is not None]
    return CoverageRow(
        rounds=sum(row.rounds for row in rows),
        rounds_total=sum(row.rounds_total for row in rows),
        seed=rows[0].seed,
        pairs=pairs,
        pairs_run=measured_tonight.count,
        pairs_known=measured.count,
        # How many nights with as many new pairs as this one are needed.
        runs_left=-(-unseen // new) if new > 0 else None if unseen else 0,
        topology=nightly.topology,
        leaf_pairs=leaf_count * (leaf_count - 1) // 2,
        leaf_pairs_run=measured_tonight.leaf_pairs,
        leaf_pairs_known=measured.leaf_pairs,
        repairs=sum(row.repairs for row in rows),
        retests=sum(row.retests for row in rows),
        measured_share=round(sum(shares) / len(shares), 3) if shares else None,
    )


class _MeasuredPairs:
    """Which pairs were measured: one row of bits per node, so thousands of nodes cost megabytes."""

    def __init__(self, nodes: Sequence[str], leaves: Mapping[str, str]) -> None:
        self._nodes, self._leaves = nodes, leaves
        self._index = {name: index for index, name in enumerate(nodes)}
        self._rows = [0] * len(nodes)

    def add_pairs_of(self, names: Iterable[str]) -> None:
        """Add every pair of these nodes; those that have left the fleet are skipped."""
        places = [self._index[name] for name in names if name in self._index]
        row_bits = sum(1 << index for index in places)
        for index in places:
            self._rows[index] |= row_bits & ~(1 << index)

    @property
    def count(self) -> int:
        """Number of pairs."""
        return sum(row.bit_count() for row in self._rows) // 2

    @property
    def leaf_pairs(self) -> int:
        """Number of pairs of different leaves."""
        members: defaultdict[str, int] = defaultdict(int)
        met: defaultdict[str, int] = defaultdict(int)
        for index, name in enumerate(self._nodes):
            if (leaf := self._leaves.get(name)) is not None:
                members[leaf] |= 1 << index
                met[leaf] |= self._rows[index]
        return sum(bool(met[a] & members[b]) for a in met for b in members if a < b)


def fabric_of_waves(
    waves: Sequence[Path], blames: Sequence[BlameRow], hider: Hider | None = None
) -> Callable[[int], str]:
    """Return a function that draws the fabric in at most so many bytes, below links to the waves.

    `hider`: a public page has no names and no links; `blames` are hidden already.
    """
    links = "" if hider else wave_links([folder.name for folder in waves])
    samples = join_samples(waves)
    if samples is None:
        return lambda _: links
    observed = hider.hide(samples) if hider else samples
    links_bytes = len(links.encode())
    return lambda limit: links + fabric_section(observed, blames, most=limit - links_bytes)


def join_samples(folders: Iterable[Path]) -> Observed | None:
    """Return the measurements of all these folders; None where there are none."""
    parts = [part for part in map(_samples_of, folders) if part is not None]
    if not parts:
        return None
    return Observed(
        nodes=tuple(name for part in parts for name in part.nodes),
        backend=parts[0].backend,
        tried=tuple(pair for part in parts for pair in part.tried),
        digests=tuple(digest for part in parts for digest in part.digests),
        leaves={name: leaf for part in parts for name, leaf in part.leaves.items()},
        silent={name: reason for part in parts for name, reason in part.silent.items()},
    )


def _samples_of(folder: Path) -> Observed | None:
    try:
        observed = read_stored(folder).observed
    except UsageError:
        return None  # it measured no pairs, or its folder was removed
    return observed if observed.tried else None
