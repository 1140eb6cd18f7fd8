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

from preflight.core.statistics import shared_cause
from preflight.core.thresholds import SHIPPED, Thresholds
from preflight.fabric.decoding.culprit import (
    EVENTS,
    SHIFTS,
    Component,
    Culprit,
    due_to,
    known,
    within,
)
from preflight.fabric.decoding.greedy_search import DOUBT, FEW, Fault, SearchResult, explain
from preflight.fabric.decoding.hard_failures import bad_by_themselves, without_effects
from preflight.fabric.decoding.parts import (
    ALL_RAILS,
    SHARE,
    Exposures,
    Key,
    Parts,
    Place,
    Trials,
    meetings,
)
from preflight.fabric.decoding.rare_events import EventCounts, Rates, rates_of, watch
from preflight.fabric.decoding.shifts import LogTimes, Shifts, shifts_of
from preflight.fabric.samples import gc_paused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from preflight.fabric.compare import PairJudgement
    from preflight.fabric.decoding.culprit import RetestDoubt, Symptom
    from preflight.fabric.decoding.parts import Meetings
    from preflight.fabric.observed import Observed

    Limit = Callable[[str], float]


POWER = 0.99
"""The probability with which the retest would have shown a fault of the rate first seen."""


class _Look(NamedTuple):
    """What went through one part."""

    events: int
    operations: int
    loaded_s: float


class RetestComparison:
    """Compares the scheduled rounds of a fabric with its retests."""

    def __init__(self, observed: Observed, met: Meetings, least_us: float) -> None:
        """`met`: the meetings of both, with which all operations are compared."""
        self._observed = observed
        border = observed.retested
        self.first = watch(met.only(again=False, border=border), least_us)
        """What was seen before any part was retested."""
        self.again = watch(met.only(again=True, border=border), least_us)

    def remaining(self, culprit: Culprit) -> Culprit | None:
        """Return a culprit by events, judged by all samples; None: the retest clears it.

        A retest clears it only if it clears all suspects: none is named because others are cleared.
        """
        doubts = [self._doubt(part, culprit) for part in culprit.among]
        if not any(doubts):
            return None
        looks = [self._looks(part, culprit) for part in culprit.among]
        first, again = max(looks, key=lambda look: look[0].events)
        return replace(
            culprit,
            events=first.events + again.events,
            operations=first.operations + again.operations,
            second_look=next(doubt for doubt in doubts if doubt),
        )

    def _doubt(self, part: Component, culprit: Culprit) -> RetestDoubt:
        """Say why its retest does not clear it; "" if it does."""
        first, again = self._looks(part, culprit)
        if not again.operations or not first.operations:
            return "none"
        if self._counter_moved(part):
            return "counter_moved"
        share = max(0.0, first.events / first.operations - culprit.elsewhere)
        expected = share * min(
            again.operations,
            first.operations * again.loaded_s / first.loaded_s if first.loaded_s else math.inf,
        )
        return "" if _at_most(again.events, expected) <= 1 - POWER else "too_short"

    def _looks(self, part: Component, culprit: Culprit) -> tuple[_Look, _Look]:
        late = culprit.symptom == "late"
        return _look(self.first, part, late=late), _look(self.again, part, late=late)

    def _counter_moved(self, part: Component) -> bool:
        return any(
            moved.proves
            for result in self._observed.tried
            if result.round >= self._observed.retested and part.rail in (None, result.rail)
            for name in result.nodes
            if name in part.nodes
            for moved in result.end(name).moved
        )


def _look(watched: EventCounts, part: Component, *, late: bool) -> _Look:
    exposures = watched.late if late else watched.wire
    rows = [row for row, place in enumerate(exposures.places) if _through(place, part)]
    single = [row for row in rows if exposures.places[row].rail != ALL_RAILS]
    return _Look(
        sum(exposures.events[row] for row in rows),
        sum(exposures.operations[row] for row in single),
        sum(exposures.loaded_s[row] for row in single),
    )


def _through(place: Place, part: Component) -> bool:
    ends = {place.a, place.b}
    if part.rail is not None and place.rail != part.rail:
        return False
    return ends == set(part.nodes) if part.kind == "path" else not ends.isdisjoint(part.nodes)


def _at_most(events: int, mean: float) -> float:
    """P(X <= events) of Poisson's law."""
    if mean <= 0:
        return 1.0
    terms: Sequence[float] = [
        math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
        for count in range(events + 1)
    ]
    return math.fsum(terms)


def joined(first: Exposures, again: Exposures) -> Exposures:
    """Join the scheduled rounds and the retests."""
    columns = zip(astuple(first), astuple(again), strict=True)
    return Exposures(*(column + more for column, more in columns))


def hot_again(parts: Parts, rates: Rates, border: int) -> list[Fault]:
    """Return paths proven by their retests, strongest first; `border`: the first retest."""
    suspects = parts.suspects(rates.hot())
    doubted = [
        (key, through)
        for key, through in suspects.items()
        if key.kind == "path" and through[-1] >= border > through[0]
    ]
    rates.leave_out({row for _, through in doubted for row in through})
    proven: list[Fault] = []
    for key, through in doubted:
        first = [row for row in through if row < border]
        if rates.hunch(first) - parts.penalty(key) <= DOUBT:
            continue
        later = [row for row in through if row >= border]
        strength, gain = rates.fit(later)
        margin = gain - math.log(FEW / SHARE)
        if margin <= 0 or not rates.enough(strength, later):
            continue
        ends = (suspects[Key("node", name)] for name in (key.one, key.other))
        if all(_fine(own, through, strength, rates) for own in ends):
            proven.append(Fault(key, through, (), strength, gain, margin))
    return sorted(proven, key=lambda fault: -fault.gain)


def _fine(own: Sequence[int], path: Sequence[int], strength: float, rates: Rates) -> bool:
    """Whether an end of a path does not show the path's fault with other nodes."""
    others = sorted(set(own).difference(path))
    return bool(others) and rates.fit(others)[1] <= DOUBT and not rates.shows(others, strength, own)


_UNPROVEN = 0.3


def proven(culprit: Culprit, observed: Observed, trials: Trials) -> Culprit:
    """Count its cleared partners; with fewer than two partners, or none cleared, name the set.

    A partner is cleared if it was fine with another node that has no fault.
    """
    part, name = culprit.component, culprit.node
    if part is None or not name or culprit.symptom == "late":
        return culprit
    partners = {trial.partner(name) for trial in trials.of(name, part.rail)}
    fine = trials.fine(part.rail)
    cleared = partners & fine
    if name in observed.silent or (len(partners) > 1 and cleared):
        return replace(culprit, cleared_partners=len(cleared))
    others = [Component(part.kind, (partner,), part.rail) for partner in sorted(partners - fine)]
    paths = [Component("path", (name, partner), part.rail) for partner in sorted(partners)]
    among = (part, *others, *paths) if len(partners) <= 1 else (part, *others)
    return replace(culprit, among=among, confidence=_UNPROVEN, cleared_partners=len(cleared))


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

    `seen`: every pair, judged by itself; a pair that is slow beyond doubt then counts as failed.
    """
    limit = thresholds.of(observed.backend)
    met = meetings(observed)
    searches = list(_searches(observed, met, limit))
    outright = bad_by_themselves(
        observed.tried if judgements is None else judgements, observed.silent
    )
    culprits = _add_culprits(outright, searches)
    doubted = [
        search.parts.component(key) for search in searches for key in search.explained.doubted
    ]
    if observed.retested:
        culprits = _without_cleared(culprits, observed, met, limit)
    trials = _trials(culprits, observed)
    culprits = [
        culprit
        if judgements is not None and culprit in outright
        else _with_pairs(proven(culprit, observed, trials), trials)
        for culprit in culprits
    ]
    if judgements is not None:
        culprits = without_effects(culprits, judgements)
    return Findings(
        culprits=tuple(culprits),
        systemic=_systemic(culprits, observed),
        doubted=tuple(dict.fromkeys(doubted)),
    )


def _without_cleared(
    culprits: Sequence[Culprit], observed: Observed, met: Meetings, limit: Limit
) -> list[Culprit]:
    """Keep the events of the scheduled rounds, unless a retest has cleared them."""
    second = RetestComparison(observed, met, limit("spike_us"))
    current = list(culprits)
    # With these events the scheduled rounds alone would have named a part.
    for culprit in _add_culprits([], _events(second.first, observed, limit)):
        remaining, among = second.remaining(culprit), set(culprit.among)
        if remaining is None:
            current = [
                other
                for other in current
                if other.component
                or other.symptom != culprit.symptom
                or not among.issuperset(other.among)
            ]
        elif not known(remaining, current) and not any(
            _same_events(culprit, other) for other in current
        ):
            current = [other for other in current if not due_to(remaining, other)]
            current.append(remaining)
    return current + [
        culprit
        for culprit in _repeated_events(second, observed, limit)
        if not known(culprit, current)
    ]


def _same_events(culprit: Culprit, other: Culprit) -> bool:
    """Whether all rounds together already suspect the same part, or one within it."""
    if culprit.symptom != other.symptom:
        return False
    inner = other.component
    return any(part in other.among or (inner and within(inner, part)) for part in culprit.among)


def _repeated_events(second: RetestComparison, observed: Observed, limit: Limit) -> list[Culprit]:
    """Return paths whose events came again in their retests."""
    exposures = joined(second.first.wire, second.again.wire)
    rates, parts = rates_of(exposures, limit), Parts(exposures.places, observed.leaves)
    accepted = hot_again(parts, rates, len(second.first.wire.places))
    return _add_culprits([], [_Search("spikes", SearchResult(accepted, []), parts, exposures)])


def _add_culprits(culprits: list[Culprit], searches: Iterable[_Search]) -> list[Culprit]:
    """Add the culprits of these searches that earlier culprits do not explain."""
    for search in searches:
        for fault in search.explained.accepted:
            fresh = _culprit(search, fault)
            culprits = [culprit for culprit in culprits if not due_to(fresh, culprit)]
            if not known(fresh, culprits):
                culprits.append(fresh)
    return culprits


def _trials(culprits: Sequence[Culprit], observed: Observed) -> Trials:
    return Trials(
        observed,
        suspected={name for culprit in culprits for part in culprit.among for name in part.nodes},
        blamed={culprit.node for culprit in culprits if culprit.node},
    )


def _with_pairs(culprit: Culprit, trials: Trials) -> Culprit:
    """Add a late host's pairs: it is found by its own clock, and its partners waited for it."""
    if culprit.pairs:
        return culprit
    waited = {
        trial.nodes: None
        for part in culprit.among
        for name in part.nodes
        for trial in trials.of(name, part.rail)
    }
    return replace(culprit, pairs=tuple(waited))


class _Search(NamedTuple):
    """What one model found, and the counts if it counts events."""

    symptom: Symptom
    explained: SearchResult
    parts: Parts
    counted: Exposures | None = None


def _searches(observed: Observed, met: Meetings, limit: Limit) -> Iterator[_Search]:
    """Search for wrong sums, shifts, then events: earlier findings explain later ones."""
    wrong = _wrong(observed)
    yield _run_search("corrupt", wrong, observed, Rates(wrong, never=True), math.inf)
    for symptom in SHIFTS:
        model = shifts_of(met, observed, symptom, limit)
        yield _run_search(symptom, model.timed, observed, model)
    yield from _events(watch(met, limit("spike_us")), observed, limit)


def _events(watched: EventCounts, observed: Observed, limit: Limit) -> Iterator[_Search]:
    """Search late hosts first: their partners wait, which can look like the wire's fault."""
    late = rates_of(watched.late, limit, alone=True)
    yield _run_search("late", watched.late, observed, late)
    yield _run_search("spikes", watched.wire, observed, rates_of(watched.wire, limit))


def _run_search(
    symptom: Symptom,
    rows: Exposures | LogTimes,
    observed: Observed,
    model: Rates | Shifts,
    false_alarm: float = SHARE,
) -> _Search:
    parts = Parts(rows.places, observed.leaves)
    explained = explain(parts, parts.suspects(model.hot()), model, false_alarm)
    return _Search(symptom, explained, parts, rows if isinstance(rows, Exposures) else None)


def _wrong(observed: Observed) -> Exposures:
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


def _systemic(culprits: Sequence[Culprit], observed: Observed) -> str:
    """Say if too many nodes are at fault; nodes count, since one slow host makes many pairs bad."""
    causes: dict[str, set[str]] = {}
    for culprit in culprits:
        if culprit.node:
            causes.setdefault(culprit.symptom, set()).add(culprit.node)
    everyone = len(observed.nodes)
    for nodes in causes.values():
        if shared_cause(len(nodes), everyone):
            return f"{len(nodes)} of {everyone} nodes are blamed at once"
    return ""
