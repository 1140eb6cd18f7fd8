"""Reads earlier runs from the history before a run, and adds the run to it afterwards.

The history never decides how a run ends: if it cannot be read or written, one line says so.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.burn.units import FAR, LOWER_IS_BETTER, conditions, series_of_node
from preflight.check import FLEET, Tier
from preflight.core.files import file_errors, open_folder, reason_of
from preflight.core.statistics import grouped, median
from preflight.core.text import size
from preflight.errors import UsageError
from preflight.fabric.pair_summary import LATENCY_BELOW, wire_from
from preflight.fabric.planner import add_run, coverage, pairs_tested
from preflight.fleet.nodeset import fold
from preflight.history import reading
from preflight.history.place import SWEEP, Place, create, exists, explain_refusal, parse_place
from preflight.history.run_record import (
    HistoryError,
    Machine,
    Night,
    NightFinding,
    Numbers,
    PairCoverage,
    Past,
    Slot,
    no_coverage_update,
)
from preflight.report.document import row_of
from preflight.report.ready import readiness
from preflight.verdict import NOT_FINE, UNSEEN, Outcome

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from preflight.core.registry import Entry
    from preflight.fabric.schedule import Pairing
    from preflight.facts.burn import Burned
    from preflight.facts.model import Facts
    from preflight.fleet.model import Fleet
    from preflight.history.run_record import CoverageUpdate, State
    from preflight.run.run import Run


_PEER_TO_PEER = "p2p_gbs"


def numbers_of(run: Run) -> tuple[Numbers, ...]:
    """All numbers of one run."""
    measured = run.judgement.measured
    return (*_burn_numbers(measured.burned, measured.facts), *_rail_numbers(run))


def _burn_numbers(burned: Mapping[str, Burned], facts: Mapping[str, Facts]) -> Iterable[Numbers]:
    for name, burn in burned.items():
        own = facts.get(name)
        by_measure: dict[str, dict[str, float]] = {}  # of a GPU's paths to others the slowest
        for raw in series_of_node(name, burn, own):
            if raw.peer_key.endswith(FAR):
                continue  # the near side has the same information
            unit = raw.name.partition(" to ")[0] if raw.measure == _PEER_TO_PEER else raw.name
            slowest = by_measure.setdefault(raw.measure, {})
            slower = max if raw.measure in LOWER_IS_BETTER else min
            slowest[unit] = slower(raw.best, slowest.get(unit, raw.best))
        for measure, values in by_measure.items():
            yield Numbers(
                node=name,
                measure=measure,
                under=conditions(burn, own),
                units=tuple(values),
                values=tuple(values.values()),
            )


def _rail_numbers(run: Run) -> Iterable[Numbers]:
    """Medians over each rail's pairs: bandwidth at the largest size, times at the smallest.

    A median over several partners describes the node: one bad partner does not change it much.
    """
    sweep = run.judgement.measured.sweep
    if sweep is None:
        return
    reached: dict[tuple[str, str, str], dict[int, list[float]]] = {}
    for pair, look in zip(sweep.pairs, run.judgement.sweep.judgements, strict=True):
        if look.state != "measured" or not look.sizes:
            continue
        small, large = look.sizes[0], look.sizes[-1]
        values = []
        if large.size_bytes >= wire_from(pair.backend):
            values.append(("allreduce_gbs", large.size_bytes, large.busbw_gbs))
        if small.size_bytes < LATENCY_BELOW:
            values.append(("allreduce_p50_us", small.size_bytes, small.p50_us))
            values.append(("allreduce_p99_us", small.size_bytes, small.p99_us))
        for measure, size_bytes, value in values:
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


_NO_SERIAL = frozenset(
    (
        *("none", "n/a", "null", "unknown", "empty", "oem", "o.e.m.", "serial"),
        *("not specified", "not available", "not applicable", "default string"),
        *("system serial number", "to be filled by o.e.m.", "to be filled by oem"),
        *("123456789", "0123456789", "1234567890"),
    )
)
"""Placeholders of boards that were given no serial number."""

_SHORTEST_SERIAL = 3


def night_of(run: Run, entries: Sequence[Entry], began_s: float, sweep: str = "") -> Night:
    """Turn a finished run into a night of the history. Readiness ignores --strict.

    `sweep`: the id of the sweep of which the run is a wave.
    """
    names = [host.name for host in run.fleet.hosts]
    return Night(
        run=run.nonce,
        started_s=began_s,
        seconds=round(run.seconds, 3),
        tier=run.settings.tier,
        leaves=run.fleet.leaves,
        machines=tuple(_machines(run, names, entries)),
        findings=tuple(report_findings(entries, frozenset(names))),
        fine=fine_subjects(entries, frozenset(names)),
        numbers=numbers_of(run),
        folded=fold(sorted(names)),
        sweep=sweep,
    )


def _machines(run: Run, names: Sequence[str], entries: Sequence[Entry]) -> Iterable[Machine]:
    ready = readiness(names, entries, strict=False)
    without_flaky = readiness(
        names, [row for row in entries if row.verdict.outcome is not Outcome.FLAKY], strict=False
    )
    states: dict[str, State] = dict.fromkeys(names, "ready")
    states |= dict.fromkeys(ready.unjudged, "unjudged")
    states |= dict.fromkeys(ready.not_ready, "flaky")
    states |= dict.fromkeys(without_flaky.not_ready, "not_ready")
    for name in names:
        facts = run.judgement.measured.facts.get(name)
        yield Machine(name=name, state=states[name], serial=serial_of(facts), gpus=_gpus(facts))


def serial_of(facts: Facts | None) -> str:
    """The serial number of a node's board; empty for none, or for a placeholder."""
    machine = facts.machine if facts is not None else None
    serial = ((machine.serial if machine is not None else "") or "").strip()
    letters = set(serial.replace("-", "").replace(".", "").replace(" ", "").lower())
    if serial.lower() in _NO_SERIAL or len(serial) < _SHORTEST_SERIAL or len(letters) <= 1:
        return ""
    return serial[:128]


def _gpus(facts: Facts | None) -> tuple[Slot, ...] | None:
    if facts is None or facts.gpus is None:
        return None
    return tuple(Slot(slot=gpu.index, uuid=gpu.uuid, model=gpu.name) for gpu in facts.gpus)


def report_findings(entries: Iterable[Entry], names: frozenset[str]) -> Iterable[NightFinding]:
    """What is not fine, once per check and component, with the sentence of the worst verdict."""
    groups = grouped(
        ((entry.check, about), entry)
        for entry in entries
        if entry.verdict.outcome in NOT_FINE
        for about in _components(entry)
    )
    for (check, about), group in groups.items():
        worst = min(group, key=lambda entry: NOT_FINE.index(entry.verdict.outcome))
        nodes = [name for entry in group for name in _at_fault(entry, about, names)]
        yield NightFinding(
            check=check,
            about=about[:600],
            outcome=str(worst.verdict.outcome),
            sentence=worst.verdict.sentence,
            nodes=tuple(dict.fromkeys(nodes)),
            is_node_or_pair=about in names or about.startswith("pair "),
        )


def _components(entry: Entry) -> tuple[str, ...]:
    """The components under which a verdict is stored: its culprits, else its subject."""
    return entry.verdict.culprits or (entry.verdict.blame or _subject(entry),)


def _subject(entry: Entry) -> str:
    return f"pair {entry.subject}" if len(entry.nodes) == _PAIR else entry.subject


def _at_fault(entry: Entry, about: str, names: Collection[str]) -> tuple[str, ...]:
    suspects = tuple(name for name in entry.verdict.suspects if name in names)
    return (about, *suspects) if about in names else suspects or entry.nodes


def fine_subjects(entries: Iterable[Entry], names: frozenset[str]) -> dict[str, frozenset[str]]:
    """By check, all subjects that are fine: nodes, pairs and their ends, the whole fleet.

    If a verdict on the fleet names culprits, all other nodes that it covers are fine.
    """
    fine: dict[str, set[str]] = {}
    for entry in entries:
        verdict = entry.verdict
        is_fine = verdict.outcome is Outcome.OK
        was_judged = verdict.outcome is Outcome.WARN or verdict.makes_not_ready
        if entry.nodes and is_fine:
            fine.setdefault(entry.check, set()).update((*entry.nodes, _subject(entry)))
        elif not entry.nodes and (is_fine or (verdict.culprits and was_judged)):
            in_doubt = {*verdict.culprits, *verdict.suspects, *verdict.evidence.get(UNSEEN, ())}
            others = names - in_doubt
            fine.setdefault(entry.check, set()).update(others, [FLEET] if is_fine else [])
    return {check: frozenset(subjects) for check, subjects in fine.items()}


_PAIR = 2
_BAD = (Outcome.FAIL, Outcome.FLAKY, Outcome.WAIVED)

FEW_NODES, MOST_NODES = 2, 32
"""In a group of up to FEW_NODES, parts may have no peers and are compared with their own past. It
is looked up for at most MOST_NODES nodes."""


@dataclass
class HistorySession:
    """One run's use of a history: the past of this fleet before the run, and after it."""

    place: Place
    nodes: tuple[str, ...]
    past: Past | None
    """None if it could not be read."""
    trouble: str = ""
    """Why it could not be read."""

    def remember(self, run: Run, entries: Sequence[Entry], began_s: float) -> str:
        """Add a run that reached at least one node; return what went wrong, "" if nothing did.

        The history is read again, as another run may have written it meanwhile.
        """
        if not run.judgement.measured.reach:
            return ""
        try:
            prepare_place(self.place)
            from preflight.history.writing import writing

            with writing(self.place) as writer:
                sweep = os.environ.get(SWEEP, "")[:64]
                night = night_of(run, entries, began_s, sweep)
                past = writer.add(night, _coverage_update(run, self.nodes))
        except Exception as error:  # noqa: BLE001  no error of preflight here may cost the report
            return f"{_reason(error)}; this run is not remembered"
        except KeyboardInterrupt:  # Ctrl-C while waiting for a lock must not cost the report
            return "interrupted while it was written; this run is not remembered"
        self.past = past
        return ""


def prepare_place(place: Place) -> None:
    """Make a missing folder and file of a history; HistoryError if that is refused."""
    if place.file is None:
        return
    try:
        with open_folder(place.file.parent, make=True) as folder:
            create(place, folder)
    except OSError as error:
        raise HistoryError(explain_refusal(place, reason_of(error))) from error


def open_history(text: str, working: Path, fleet: Fleet, tier: Tier) -> HistorySession:
    """Read what a history knows of a fleet.

    UsageError for what is neither a folder nor a database, and for a folder that other users may
    write to. If the history cannot be read, `trouble` says why, and the run goes on without it.
    """
    place = parse_place(text, working)
    nodes = tuple(host.name for host in fleet.hosts)
    _refuse_unsafe(place)
    try:
        past = _read_past(place, nodes, fleet, tier)
    except Exception as error:  # noqa: BLE001  no error of preflight here may cost the run
        return HistorySession(place, nodes, None, _reason(error))
    return HistorySession(place, nodes, past)


def _reason(error: Exception) -> str:
    if isinstance(error, UsageError):
        return str(error)
    return f"preflight's own fault ({type(error).__name__}: {error}): report it"


def _refuse_unsafe(place: Place) -> None:
    if place.file is None:
        return
    folder = place.file.parent
    with (
        file_errors(f"--preflight-history={folder}", "give a folder of your own"),
        suppress(FileNotFoundError),  # it is made when the run is added
        open_folder(folder, make=False),
    ):
        pass


def _read_past(place: Place, nodes: tuple[str, ...], fleet: Fleet, tier: Tier) -> Past:
    if not exists(place):
        return Past()
    with reading(place) as history:
        past = history.past(nodes, fleet.leaves)
        return replace(past, units=history.units(_without_peers(fleet), tier))


def _without_peers(fleet: Fleet) -> list[str]:
    """The nodes of groups so small that some of their parts may have no peers."""
    groups = grouped((host.group, host.name) for host in fleet.hosts)
    small = [name for names in groups.values() if len(names) <= FEW_NODES for name in names]
    return small[:MOST_NODES]


def _coverage_update(run: Run, nodes: tuple[str, ...]) -> CoverageUpdate:
    """Return a function that adds this run's rounds to those of earlier runs."""
    sweep, planned = run.judgement.measured.sweep, run.judgement.measured.planned
    if sweep is None or planned is None or not sweep.pairs:
        return no_coverage_update
    tested = pairs_tested(sweep)
    bad = sorted(_suspected(run) & tested)

    def add_coverage(past: Past) -> tuple[Past, PairCoverage | None]:
        new = add_run(
            past, planned, sweep, nodes,
            bad=bad, tier=run.settings.tier, seconds=run.swept_s,
        )  # fmt: skip
        now = coverage(planned, tested, nodes, new)
        pairs = {"pairs_known": now.pairs_known or 0, "leaf_pairs_known": now.leaf_pairs_known or 0}
        return new, row_of(PairCoverage, now, **pairs)

    return add_coverage


def _suspected(run: Run) -> set[Pairing]:
    """Pairs that measured bad, and those with a bad verdict."""
    bad = {ends for ends, pair in run.judgement.sweep.pairs.items() if pair.bad}
    for (_, names), verdict in run.judgement.verdicts().items():
        if len(names) == _PAIR and verdict.outcome in _BAD:
            bad.add((names[0], names[1]))
    return bad
