"""Find the parts of a fabric at fault from all its samples, hard failures before statistics.

Scheduled rounds and retests count together: with a retry until green, a cable with rare spikes
would pass every time.

One round does not prove a path at fault: a host's pause is several events in it. Only a few paths
are retested, and their further rounds are a separate test, so they need less proof than a search.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import astuple, replace

from preflight.core.statistics import grouped, shared_cause
from preflight.core.thresholds import SHIPPED, Thresholds
from preflight.fabric.decoding.culprit import (
    EVENTS,
    SHIFTS,
    Component,
    Culprit,
    explains_path,
    is_explained,
    is_within,
)
from preflight.fabric.decoding.greedy_search import DOUBT, MOST_PARTS, Fault, SearchResult, explain
from preflight.fabric.decoding.hard_failures import bad_by_themselves, without_effects
from preflight.fabric.decoding.parts import (
    ALL_RAILS,
    SYMPTOM_SHARE,
    Exposures,
    Key,
    Parts,
    Place,
    Trials,
    read_meetings,
)
from preflight.fabric.decoding.rare_events import EventCounts, Rates, count_events, rates_of
from preflight.fabric.decoding.shifts import LogTimes, Shifts, shifts_of
from preflight.fabric.samples import gc_paused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from preflight.fabric.compare import PairJudgement
    from preflight.fabric.decoding.culprit import RetestDoubt, Symptom
    from preflight.fabric.decoding.parts import Meetings
    from preflight.fabric.observed import Observed

    Limit = Callable[[str], float]


class Findings(Struct, frozen=True, kw_only=True):
    """The faults of a fabric, worst first within each kind of symptom."""

    culprits: tuple[Culprit, ...] = ()
    systemic: str = ""
    """Why so many faults at once probably have one cause; "" if there are few."""
    doubted: tuple[Component, ...] = ()
    """Parts that are suspected without proof: worth a retest."""

    @property
    def nodes(self) -> frozenset[str]:
        """Every node that is named, or whose rail is."""
        return frozenset(culprit.node for culprit in self.culprits if culprit.node)

    @property
    def lossy(self) -> frozenset[str]:
        """Nodes that are named for lost or delayed data: all their pairs may suffer."""
        return frozenset(
            culprit.node for culprit in self.culprits if culprit.node and culprit.symptom in EVENTS
        )


@gc_paused()
def find(
    observed: Observed,
    thresholds: Thresholds = SHIPPED,
    judgements: Sequence[PairJudgement] | None = None,
) -> Findings:
    """Name the parts at fault, or the sets among which they lie: outright failures come first.

    `judgements`: of every pair by itself; a pair that is slow beyond doubt then counts as failed.
    """
    limit = thresholds.for_backend(observed.backend)
    meetings = read_meetings(observed)
    searches = list(_searches(observed, meetings, limit))
    outright = bad_by_themselves(
        observed.tried if judgements is None else judgements, observed.silent
    )
    culprits = _add_culprits(outright, searches)
    doubted = [
        search.parts.component(key) for search in searches for key in search.explained.doubted
    ]
    if observed.retested:
        culprits = _without_cleared(culprits, observed, meetings, limit)
    suspected = {name for culprit in culprits for part in culprit.among for name in part.nodes}
    blamed = {culprit.node for culprit in culprits if culprit.node}
    trials = Trials(observed, suspected=suspected, blamed=blamed)
    culprits = [
        culprit
        if judgements is not None and culprit in outright
        else _with_pairs(check_partners(culprit, observed, trials), trials)
        for culprit in culprits
    ]
    if judgements is not None:
        culprits = without_effects(culprits, judgements)
    return Findings(
        culprits=tuple(culprits),
        systemic=_systemic(culprits, observed),
        doubted=tuple(dict.fromkeys(doubted)),
    )


def _searches(observed: Observed, meetings: Meetings, limit: Limit) -> Iterator[_Search]:
    """Search for wrong sums, shifts, then events: earlier findings explain later ones."""
    sums = _wrong_sums(observed)
    yield _run_search("corrupt", sums, observed, Rates(sums, never=True), math.inf)
    for symptom in SHIFTS:
        model = shifts_of(meetings, observed, symptom, limit)
        yield _run_search(symptom, model.timed, observed, model)
    yield from _events(count_events(meetings, limit("spike_us")), observed, limit)


def _events(counts: EventCounts, observed: Observed, limit: Limit) -> Iterator[_Search]:
    """Search late hosts first: their partners wait, which can look like the wire's fault."""
    late = rates_of(counts.late, limit, alone=True)
    yield _run_search("late", counts.late, observed, late)
    yield _run_search("spikes", counts.wire, observed, rates_of(counts.wire, limit))


class _Search(NamedTuple):
    """What one model found, and the counts if it counts events."""

    symptom: Symptom
    explained: SearchResult
    parts: Parts
    counted: Exposures | None = None


def _run_search(
    symptom: Symptom,
    rows: Exposures | LogTimes,
    observed: Observed,
    model: Rates | Shifts,
    false_alarm: float = SYMPTOM_SHARE,
) -> _Search:
    parts = Parts(rows.places, observed.leaves)
    explained = explain(parts, parts.suspects(model.outliers()), model, false_alarm)
    return _Search(symptom, explained, parts, rows if isinstance(rows, Exposures) else None)


def _wrong_sums(observed: Observed) -> Exposures:
    """Count wrong sums per pair, rail and round that was measured."""
    results = [result for result in observed.tried if result.state in ("measured", "corrupt")]
    if all(result.state == "measured" for result in results):
        return Exposures()
    return Exposures(
        places=[Place(result.a, result.b, result.rail) for result in results],
        operations=[1] * len(results),
        loaded_s=[0.0] * len(results),
        events=[int(result.state == "corrupt") for result in results],
        worst_us=[0.0] * len(results),
    )


def _add_culprits(culprits: list[Culprit], searches: Iterable[_Search]) -> list[Culprit]:
    """Add the culprits of these searches that earlier culprits do not explain."""
    for search in searches:
        for fault in search.explained.accepted:
            culprit = _culprit(search, fault)
            culprits = [other for other in culprits if not explains_path(culprit, other)]
            if not is_explained(culprit, culprits):
                culprits.append(culprit)
    return culprits


def _culprit(search: _Search, fault: Fault) -> Culprit:
    parts, exposures = search.parts, search.counted
    culprit = Culprit(
        among=tuple(parts.component(key) for key in (fault.key, *fault.ties)),
        symptom=search.symptom,
        confidence=round(1 - math.exp(-max(0.05, fault.margin)), 3),
        pairs=parts.pairs(fault.through),
        strength=fault.strength,
    )
    if exposures is None:
        return culprit
    events = sum(exposures.events[row] for row in fault.through)
    operations = sum(exposures.operations[row] for row in fault.through)
    others = sum(exposures.operations) - operations
    return replace(
        culprit,
        events=events,
        operations=operations,
        worst_us=max(exposures.worst_us[row] for row in fault.through),
        elsewhere=(sum(exposures.events) - events) / max(1, others),
    )


def _without_cleared(
    culprits: Sequence[Culprit], observed: Observed, meetings: Meetings, limit: Limit
) -> list[Culprit]:
    """Keep the events of the scheduled rounds, unless a retest has cleared them."""
    comparison = RetestComparison(observed, meetings, limit("spike_us"))
    current = list(culprits)
    # With these events the scheduled rounds alone would have named a part.
    for culprit in _add_culprits([], _events(comparison.first, observed, limit)):
        remaining, among = comparison.remaining(culprit), set(culprit.among)
        if remaining is None:
            current = [
                other
                for other in current
                if other.component
                or other.symptom != culprit.symptom
                or not among.issuperset(other.among)
            ]
        elif not is_explained(remaining, current) and not any(
            _same_events(culprit, other) for other in current
        ):
            current = [other for other in current if not explains_path(remaining, other)]
            current.append(remaining)
    return current + [
        culprit
        for culprit in _repeated_events(comparison, observed, limit)
        if not is_explained(culprit, current)
    ]


def _same_events(culprit: Culprit, other: Culprit) -> bool:
    """Whether all rounds together already suspect the same part, or one within it."""
    if culprit.symptom != other.symptom:
        return False
    inner = other.component
    return any(part in other.among or (inner and is_within(inner, part)) for part in culprit.among)


POWER = 0.99
"""The probability with which the retest would have shown a fault of the rate first seen."""


class _Counts(NamedTuple):
    """The events, and the load, that went through one part."""

    events: int
    operations: int
    loaded_s: float


class RetestComparison:
    """Compares the scheduled rounds of a fabric with its retests."""

    def __init__(self, observed: Observed, meetings: Meetings, least_us: float) -> None:
        """`meetings`: of both, since all operations of both decide what a spike is."""
        self._observed = observed
        scheduled, retests = meetings.split(observed.retested)
        self.first = count_events(scheduled, least_us)
        """The events of the scheduled rounds, before any part was retested."""
        self.retests = count_events(retests, least_us)

    def remaining(self, culprit: Culprit) -> Culprit | None:
        """Judge a culprit that has events by its retest, too; None if the retest clears it.

        A retest clears it only if it clears all suspects: none is named because others are cleared.
        """
        doubts = [self._doubt(part, culprit) for part in culprit.among]
        if not any(doubts):
            return None
        counts = [self._count_both(part, culprit) for part in culprit.among]
        first, retests = max(counts, key=lambda both: both[0].events)
        return replace(
            culprit,
            events=first.events + retests.events,
            operations=first.operations + retests.operations,
            second_look=next(doubt for doubt in doubts if doubt),
        )

    def _doubt(self, part: Component, culprit: Culprit) -> RetestDoubt:
        """Say why a part's retest does not clear it; "" if it does."""
        first, retests = self._count_both(part, culprit)
        if not retests.operations or not first.operations:
            return "none"
        if self._counter_moved(part):
            return "counter_moved"
        share = max(0.0, first.events / first.operations - culprit.elsewhere)
        expected = share * min(
            retests.operations,
            first.operations * retests.loaded_s / first.loaded_s if first.loaded_s else math.inf,
        )
        return "" if _at_most(retests.events, expected) <= 1 - POWER else "too_short"

    def _count_both(self, part: Component, culprit: Culprit) -> tuple[_Counts, _Counts]:
        late = culprit.symptom == "late"
        return _count(self.first, part, late=late), _count(self.retests, part, late=late)

    def _counter_moved(self, part: Component) -> bool:
        return any(
            moved.proves
            for result in self._observed.tried
            if result.round >= self._observed.retested and part.rail in (None, result.rail)
            for name in result.nodes
            if name in part.nodes
            for moved in result.end(name).moved
        )


def _count(counts: EventCounts, part: Component, *, late: bool) -> _Counts:
    exposures = counts.late if late else counts.wire
    paths = (Component("path", place[:2], place.rail) for place in exposures.places)
    rows = [row for row, path in enumerate(paths) if is_within(path, part)]
    single = [row for row in rows if exposures.places[row].rail != ALL_RAILS]
    return _Counts(
        sum(exposures.events[row] for row in rows),
        sum(exposures.operations[row] for row in single),
        sum(exposures.loaded_s[row] for row in single),
    )


def _at_most(events: int, mean: float) -> float:
    """P(X <= events) of Poisson's law."""
    if mean <= 0:
        return 1.0
    return math.fsum(
        math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
        for count in range(events + 1)
    )


def _repeated_events(compared: RetestComparison, observed: Observed, limit: Limit) -> list[Culprit]:
    """Return paths whose events came again in their retests."""
    columns = zip(astuple(compared.first.wire), astuple(compared.retests.wire), strict=True)
    exposures = Exposures(*(scheduled + retests for scheduled, retests in columns))
    rates, parts = rates_of(exposures, limit), Parts(exposures.places, observed.leaves)
    accepted = paths_proven_by_retests(parts, rates, len(compared.first.wire.places))
    return _add_culprits([], [_Search("spikes", SearchResult(accepted, []), parts, exposures)])


def paths_proven_by_retests(parts: Parts, rates: Rates, first_retest: int) -> list[Fault]:
    """Return paths proven by their retests, strongest first; `first_retest`: that row."""
    suspects = parts.suspects(rates.outliers())
    doubted = [
        (key, through)
        for key, through in suspects.items()
        if key.kind == "path" and through[-1] >= first_retest > through[0]
    ]
    rates.exclude({row for _, through in doubted for row in through})
    proven: list[Fault] = []
    for key, through in doubted:
        first = [row for row in through if row < first_retest]
        if rates.uncapped_gain(first) - parts.penalty(key) <= DOUBT:
            continue
        later = [row for row in through if row >= first_retest]
        strength, gain = rates.fit(later)
        margin = gain - math.log(MOST_PARTS / SYMPTOM_SHARE)
        if margin <= 0 or not rates.matters(strength, later):
            continue
        ends = (suspects[Key("node", name)] for name in (key.name, key.partner))
        if all(_is_fine(rows, through, strength, rates) for rows in ends):
            proven.append(Fault(key, through, (), strength, gain, margin))
    return sorted(proven, key=lambda fault: -fault.gain)


def _is_fine(end: Sequence[int], path: Sequence[int], strength: float, rates: Rates) -> bool:
    """Whether an end of a path does not show the path's fault with other nodes."""
    others = sorted(set(end).difference(path))
    fits_fault = rates.fits_fault(others, strength, end)
    return bool(others) and rates.fit(others)[1] <= DOUBT and not fits_fault


_UNPROVEN = 0.3


def check_partners(culprit: Culprit, observed: Observed, trials: Trials) -> Culprit:
    """Count a culprit's cleared partners; if these are too few, suspect partners and paths, too.

    A partner is cleared if it was fine with another node that has no fault.
    """
    part, name = culprit.component, culprit.node
    if part is None or not name or culprit.symptom == "late":
        return culprit
    partners = {trial.partner(name) for trial in trials.of_node(name, part.rail)}
    good = trials.good_nodes(part.rail)
    cleared = partners & good
    if name in observed.silent or (len(partners) > 1 and cleared):
        return replace(culprit, cleared_partners=len(cleared))
    others = [Component(part.kind, (partner,), part.rail) for partner in sorted(partners - good)]
    paths = [Component("path", (name, partner), part.rail) for partner in sorted(partners)]
    among = (part, *others, *paths) if len(partners) <= 1 else (part, *others)
    return replace(culprit, among=among, confidence=_UNPROVEN, cleared_partners=len(cleared))


def _with_pairs(culprit: Culprit, trials: Trials) -> Culprit:
    """Add a late host's pairs: it is found by its own clock, and its partners waited for it."""
    if culprit.pairs:
        return culprit
    waited = {
        trial.nodes: None
        for part in culprit.among
        for name in part.nodes
        for trial in trials.of_node(name, part.rail)
    }
    return replace(culprit, pairs=tuple(waited))


def _systemic(culprits: Sequence[Culprit], observed: Observed) -> str:
    """Say if too many nodes are at fault; nodes count, since one slow host makes many pairs bad."""
    by_symptom = grouped((culprit.symptom, culprit.node) for culprit in culprits if culprit.node)
    total = len(observed.nodes)
    for blamed in (len(set(nodes)) for nodes in by_symptom.values()):
        if shared_cause(blamed, total):
            return f"{blamed} of {total} nodes are blamed at once"
    return ""
