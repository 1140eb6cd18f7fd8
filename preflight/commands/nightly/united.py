"""One report for the whole sweep: what every wave found, as if it had been one run.

With it goes the fabric over the nights: how much of it was measured, and all waves in one drawing.
Waves share no node, so the rows of each are its own, and the same round of all is one column. Pairs
are held against those of all waves, as colours are for eyes: who is blamed, each wave has judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.check import FLEET
from preflight.commands.nightly.state import Sweep
from preflight.core.registry import Entry
from preflight.core.statistics import grouped
from preflight.errors import UsageError
from preflight.fabric.observed import Observed
from preflight.fabric.stored import read_stored
from preflight.fleet.nodeset import fold
from preflight.report.document import CoverageRow, FleetRow, Report
from preflight.report.fabric_grid import locate_blames
from preflight.report.fabric_page import fabric_section
from preflight.report.findings import Finding, findings, suspicions
from preflight.report.header import NumberRow, OffRow, Overrides, WaiverRow
from preflight.report.page import waves_of
from preflight.report.ready import counts_as_failure, of_entries
from preflight.report.since import entries_of
from preflight.verdict import WORST_FIRST, Outcome, Verdict, not_run

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from preflight.commands.nightly.choice import Night
    from preflight.report.document import BlameRow, PairRow, SensitivityRow, VerdictRow
    from preflight.report.hide import Hider


ASKED = "reach.answer"
"""The check under which it stands that a node was not judged at all: the first of all questions."""


def of_the_fleet(reports: Mapping[int, Report]) -> Iterator[Entry]:
    """One verdict for each check that judged every wave as a whole, by the number of the wave."""
    rows = grouped(
        (row.check, (number, row))
        for number, report in reports.items()
        for row in report.verdicts
        if row.subject == FLEET
    )
    for check, told in rows.items():
        yield Entry(check, FLEET, (), _joined(told, len(reports)))


def _joined(told: Sequence[tuple[int, VerdictRow]], waves: int) -> Verdict:
    """The worst that it said of any wave, and of which."""
    worst = min((row.outcome for _, row in told), key=WORST_FIRST.index)
    same = [(number, row) for number, row in told if row.outcome is worst]
    first = same[0][1]
    by_sentence = grouped((row.sentence, number) for number, row in same)
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


def least_sensitive(reports: Sequence[Report]) -> tuple[SensitivityRow, ...]:
    """The dullest looks of all; no rate at all is duller than any."""
    rows = [row for report in reports for row in report.sensitivity]
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

    sweep: Sweep
    owed: Mapping[str, Verdict]
    """Nodes to be looked at of which there is no report: missing, or stopped before their turn."""
    interrupted: bool
    coverage: CoverageRow | None


def owed_later(why: str) -> Verdict:
    """What stands for a node whose turn did not come."""
    return not_run(why, stopped=True)


def missing(why: str) -> Verdict:
    """What stands for a node whose wave left no report."""
    advice = "look into its wave's folder; to do it again: preflight nightly --resume"
    return Verdict(outcome=Outcome.MISSING, sentence=why, advice=advice)


def unite(whole: Whole, parts: Sequence[Part]) -> tuple[Report, tuple[Finding, ...]]:
    """Join the waves' reports into one of the same schema, and their findings by cause."""
    sweep, reports = whole.sweep, [part.report for part in parts]
    entries = _entries(whole, parts)
    suspected = suspicions(entries, len(sweep.nodes) - len(sweep.left_out))
    blames = tuple(row for report in reports for row in report.blames)
    united = Report(
        preflight=sweep.preflight,
        run=sweep.sweep,
        started=datetime.fromtimestamp(sweep.started_s, UTC).isoformat(timespec="seconds"),
        seconds=round(sweep.spent_s, 3),
        tier=sweep.tier,
        exit=_exit(whole, reports, entries),
        interrupted=whole.interrupted,
        fleet=_fleet(sweep, reports),
        **of_entries(entries),
        pairs=joined_pairs(reports),
        blames=blames,
        suspicions=(*suspected.values(), *_of_waves(parts, suspected)),
        coverage=whole.coverage,
        sensitivity=least_sensitive(reports),
        overrides=joined_overrides([report.overrides for report in reports]),
        measured_in=tuple(sorted({name for report in reports for name in report.measured_in})),
    )
    return united, findings(entries, blames, suspected)


def _entries(whole: Whole, parts: Sequence[Part]) -> tuple[Entry, ...]:
    """All verdicts: those on nodes and pairs as they are, those on each wave's whole as one."""
    own = [entry for part in parts for entry in entries_of(part.report) if entry.nodes]
    owed = [Entry(ASKED, name, (name,), verdict) for name, verdict in whole.owed.items()]
    return (*own, *of_the_fleet({part.number: part.report for part in parts}), *owed)


def _fleet(sweep: Sweep, reports: Sequence[Report]) -> FleetRow:
    """Every node stands where its wave put it; whoever is in none was not judged."""
    ready = {name for report in reports for name in report.fleet.ready}
    bad = {name for report in reports for name in report.fleet.not_ready}
    not_ready = tuple(name for name in sweep.nodes if name in bad)
    return FleetRow(
        nodes=sweep.nodes,
        folded=fold(sweep.nodes),
        origin=sweep.origin,
        ready=tuple(name for name in sweep.nodes if name in ready - bad),
        not_ready=not_ready,
        unjudged=tuple(name for name in sweep.nodes if name not in ready | bad),
        apart=tuple(pair for report in reports for pair in report.fleet.apart),
        exclude=fold(not_ready),
        left_out={name: sweep.left_out[name] for name in sweep.nodes if name in sweep.left_out},
        leaves=dict(sweep.leaves),
    )


def _exit(whole: Whole, reports: Sequence[Report], entries: Sequence[Entry]) -> int:
    """The worst of the waves, in the order that a run's own code has."""
    codes = {report.exit for report in reports}
    if whole.interrupted:
        return INTERRUPTED
    if codes <= {NOBODY} and not whole.owed:
        return NOBODY
    condemned = any(counts_as_failure(entry, strict=whole.sweep.strict) for entry in entries)
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


UNTRIED = ("not_run", "absent")
"""States of a pair that say nothing of it."""


def covered(
    nodes: Sequence[str],
    leaves: Mapping[str, str],
    topology: str,
    tonight: Sequence[Report],
    earlier: Iterable[Night],
) -> CoverageRow | None:
    """Count pairs of the whole fleet; `earlier`: former waves of which every pair was measured.

    None where no wave was to measure pairs.
    """
    rows = [report.coverage for report in tonight if report.coverage is not None]
    if not rows:
        return None
    now, before = _Met(nodes, leaves), _Met(nodes, leaves)
    for report in tonight:
        now.pairs((row.a, row.b) for row in report.pairs if row.state not in UNTRIED)
    for night in earlier:
        for wave in night:
            before.all_of(wave)
    known = now.joined(before)
    fresh = known.count - before.count
    unseen = len(nodes) * (len(nodes) - 1) // 2 - known.count
    leaf_count = len({leaves[name] for name in nodes if name in leaves})
    shares = [row.measured_share for row in rows if row.measured_share is not None]
    return CoverageRow(
        rounds=sum(row.rounds for row in rows),
        rounds_total=sum(row.rounds_total for row in rows),
        seed=rows[0].seed,
        pairs=len(nodes) * (len(nodes) - 1) // 2,
        pairs_run=now.count,
        pairs_known=known.count,
        # Nights that bring as many pairs as this one that no night had before.
        runs_left=-(-unseen // fresh) if fresh > 0 else None if unseen else 0,
        topology=topology,
        leaf_pairs=leaf_count * (leaf_count - 1) // 2,
        leaf_pairs_run=now.leaf_pairs,
        leaf_pairs_known=known.leaf_pairs,
        repairs=sum(row.repairs for row in rows),
        retests=sum(row.retests for row in rows),
        measured_share=round(sum(shares) / len(shares), 3) if shares else None,
    )


class _Met:
    """Who met whom: a row of bits for each node, so that thousands of nodes cost megabytes."""

    def __init__(self, nodes: Sequence[str], leaves: Mapping[str, str]) -> None:
        self._nodes, self._leaves = nodes, leaves
        self._at = {name: at for at, name in enumerate(nodes)}
        self._rows = [0] * len(nodes)

    def pairs(self, met: Iterable[tuple[str, str]]) -> None:
        """Enter single pairs; who is not of this fleet any more is passed over."""
        for a, b in met:
            if a in self._at and b in self._at:
                self._rows[self._at[a]] |= 1 << self._at[b]
                self._rows[self._at[b]] |= 1 << self._at[a]

    def all_of(self, wave: Iterable[str]) -> None:
        """Enter a wave in which everybody met everybody."""
        places = [self._at[name] for name in wave if name in self._at]
        together = sum(1 << at for at in places)
        for at in places:
            self._rows[at] |= together & ~(1 << at)

    def joined(self, other: _Met) -> _Met:
        """Both together."""
        both = _Met(self._nodes, self._leaves)
        both._rows = [a | b for a, b in zip(self._rows, other._rows, strict=True)]
        return both

    @property
    def count(self) -> int:
        """How many pairs."""
        return sum(row.bit_count() for row in self._rows) // 2

    @property
    def leaf_pairs(self) -> int:
        """How many pairs of different leaves."""
        members: dict[str, int] = {}
        for at, name in enumerate(self._nodes):
            if name in self._leaves:
                members[self._leaves[name]] = members.get(self._leaves[name], 0) | 1 << at
        met: dict[str, int] = {}
        for at, name in enumerate(self._nodes):
            if name in self._leaves:
                met[self._leaves[name]] = met.get(self._leaves[name], 0) | self._rows[at]
        return sum(bool(met[a] & members[b]) for a in met for b in members if a < b)


def fabric_of_waves(
    waves: Sequence[Path], blames: Iterable[BlameRow], hider: Hider | None = None
) -> Callable[[int], str]:
    """Draw it in at most so many bytes, under the way to each wave's own page.

    `hider`: for a public page nobody is named in it, and it leads nowhere; `blames` are hidden.
    """
    links = "" if hider else waves_of([folder.name for folder in waves])
    seen = seen_in(waves)
    if seen is None:
        return lambda _: links
    observed = hider.all_of(seen) if hider else seen
    found = locate_blames(blames, observed)
    room = len(links.encode())
    return lambda most: (
        links + fabric_section(observed, found, with_findings=False, most=most - room)
    )


def seen_in(waves: Iterable[Path]) -> Observed | None:
    """What was measured in all of these folders; None where nothing was, or nothing is left."""
    each = [one for one in map(_seen, waves) if one is not None]
    if not each:
        return None
    return Observed(
        nodes=tuple(name for one in each for name in one.nodes),
        backend=each[0].backend,
        tried=tuple(pair for one in each for pair in one.tried),
        digests=tuple(digest for one in each for digest in one.digests),
        leaves={name: leaf for one in each for name, leaf in one.leaves.items()},
        silent={name: why for one in each for name, why in one.silent.items()},
    )


def _seen(folder: Path) -> Observed | None:
    try:
        observed = read_stored(folder).observed
    except UsageError:
        return None  # it measured no pairs, or its folder was put away
    return observed if observed.tried else None
