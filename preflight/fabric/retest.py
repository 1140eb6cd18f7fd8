"""Retests: which suspects are measured again, with which partners, and what the results decide.

The nodes' agents and ranks wait after the last scheduled round, so a retest costs no start-up. No
measurement is replaced: retests are further rounds, numbered after the scheduled ones.

A slow path stays slow; a machine that was busy for half a second does not.

One measurement of a path cannot exclude a busy moment; two ends that were measured only with each
other cannot be separated. A few more rounds in the same launch settle both.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.core.statistics import grouped
from preflight.core.text import first_few
from preflight.core.thresholds import SHIPPED
from preflight.fabric.compare import PairJudgement, compare
from preflight.fabric.decoding.culprit import EVENTS, FAILURES, NODE_KINDS, SHIFTS, Component
from preflight.fabric.decoding.find import Findings, find
from preflight.fabric.decoding.greedy_search import MOST_PARTS
from preflight.fabric.decoding.hard_failures import decode
from preflight.fabric.observed import Observed, observe
from preflight.fabric.schedule import Pairing, Rounds, ordered

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from preflight.fabric.phrases import Blame
    from preflight.fabric.roster import Roster
    from preflight.fabric.samples import Rung, Sweep
    from preflight.fabric.sweep_plan import SweepPlan


MOST_ROUNDS = 16
"""Most retest rounds of one sweep."""

RETEST_TIMES = 4
"""A retest has this multiple of a scheduled round's iterations and time, for each size."""


def add_rounds(roster: Roster, plan: SweepPlan, rounds: Rounds) -> Roster:
    """Return the launch with more rounds, which have more iterations and more time."""
    (ladder, soak), limits = plan.sizes(roster.backend), plan.limits(roster.backend)
    limits = replace(
        limits,
        box_s=limits.box_s * RETEST_TIMES,
        soak_s=limits.soak_s * RETEST_TIMES,
        pair_s=limits.pair_s + limits.box_s * (RETEST_TIMES - 1) * len(ladder),
    )
    ladder, soak = tuple(map(_longer, ladder)), soak and _longer(soak)
    return replace(roster, rounds=roster.rounds + rounds, ladder=ladder, soak=soak, limits=limits)


def _longer(rung: Rung) -> Rung:
    return replace(rung, iterations=rung.iterations * RETEST_TIMES)


def slow_parts(sweep: Sweep, observed: Observed) -> list[Component]:
    """Return paths that are slower than their peers while both ends are fine with others.

    And all nodes of a set that contains a slow one: with other partners they can be separated.
    """
    judgements = compare(sweep, observed, thresholds=SHIPPED)
    slow = {pair.nodes for pair in judgements if pair.slow}
    return [
        part
        for culprit in decode(judgements, sweep.troubles)
        if not culprit.node and set(culprit.pairs) <= slow
        for part in culprit.among
        if part.kind == ("path" if culprit.component else "node")
    ]


def cleared_by_retests(
    judgements: Sequence[PairJudgement], observed: Observed
) -> tuple[PairJudgement, ...]:
    """Withdraw slowness or a hang if every retest of that pair was good and no counter moved.

    A bad path stays bad; a busy moment and a lost operation do not.
    """
    if not observed.retested:
        return tuple(judgements)
    first, moved = observed.retested, retested_counters(observed)
    retests = grouped((pair.path, pair.good) for pair in judgements if pair.round >= first)
    cleared = {path for path, good in retests.items() if path not in moved and all(good)}
    return tuple(_withdraw(pair) if pair.path in cleared else pair for pair in judgements)


def retested_counters(observed: Observed) -> dict[tuple[str, str, int], dict[str, None]]:
    """Return, by path, the error counters that moved in any measurement of a retested path."""
    retested = {result.path for result in observed.tried if 0 < observed.retested <= result.round}
    moved: dict[tuple[str, str, int], dict[str, None]] = {}
    for result in observed.tried:
        for counter in (*result.first.moved, *result.second.moved):
            if result.path in retested and counter.proves:
                moved.setdefault(result.path, {})[counter.name] = None
    return moved


def _withdraw(pair: PairJudgement) -> PairJudgement:
    if pair.state == "hung":
        return replace(pair, hung_once=True)
    return replace(pair, slow="", once=pair.slow) if pair.slow else pair


PARTNERS = 2
"""How many cleared nodes each suspect is retested with, and how often a path is retested."""


def suspects(sweep: Sweep) -> Rounds:
    """Return the pairs to measure again, round by round; none after a retest, or without suspects.

    A part that is proven is not retested: a clean retest would not clear it. A path that was slow
    in its only round is not proven.
    """
    if sweep.retested:
        return ()
    observed = observe(sweep)
    findings = find(observed)
    if findings.systemic:
        return ()
    unresolved = [
        part
        for culprit in findings.culprits
        if culprit.component is None and culprit.symptom in (*SHIFTS, *EVENTS)
        for part in culprit.among
    ]
    candidates = list(dict.fromkeys([*unresolved, *findings.doubted]))
    blamed = findings.nodes
    parts = [part for part in candidates if blamed.isdisjoint(part.nodes)]
    # A worker that failed once was replaced: its other pairs can be measured normally.
    slow = [part for part in slow_parts(sweep, observed) if findings.lossy.isdisjoint(part.nodes)]
    parts = _unique_paths([*parts, *slow, *_paths_of_one_round(findings, observed)])
    parts, further = parts[:MOST_PARTS], parts[MOST_PARTS:]
    doubtful = {name for part in parts for name in part.nodes}
    cleared = [name for name in observed.nodes if name not in doubtful | blamed]
    rounds = _rounds([list(_pairs(part, cleared, observed.nodes)) for part in parts])
    paths = [ordered(part.nodes, observed.nodes.index) for part in further if part.kind == "path"]
    return _add_to_free_rounds(rounds, paths)


def _paths_of_one_round(findings: Findings, observed: Observed) -> list[Component]:
    """Return paths that are named as slow, or that hung in their only round.

    If a hang may also be of one of the ends, retesting the path shows whether it comes again.
    """
    hung = {result.nodes for result in observed.tried if result.state == "hung"}
    paths = [
        part
        for culprit in findings.culprits
        if (culprit.symptom in SHIFTS and culprit.component)
        or (culprit.symptom in FAILURES and not hung.isdisjoint(culprit.pairs))
        for part in culprit.among
        if part.kind == "path"
    ]
    rounds: dict[frozenset[str], set[int]] = {frozenset(part.nodes): set() for part in paths}
    for result in observed.tried:
        rounds.get(frozenset(result.nodes), set()).add(result.round)
    blamed = findings.nodes
    return [
        part
        for part in paths
        if len(rounds[frozenset(part.nodes)]) == 1 and blamed.isdisjoint(part.nodes)
    ]


def _unique_paths(parts: Sequence[Component]) -> list[Component]:
    """Keep one of the paths between two nodes: a round measures all rails."""
    by_key: dict[tuple[object, ...], Component] = {}
    for part in parts:
        key = ("path", frozenset(part.nodes)) if part.kind == "path" else (part,)
        by_key.setdefault(key, part)
    return list(by_key.values())


def _add_to_free_rounds(rounds: Rounds, paths: Sequence[Pairing]) -> Rounds:
    """Add retests of paths to rounds in which their nodes would be idle."""
    full = [list(round_pairs) for round_pairs in rounds]
    for pair in dict.fromkeys(paths):
        free = [round_pairs for round_pairs in full if _is_free(round_pairs, pair)]
        for round_pairs in free[:PARTNERS] if len(free) >= PARTNERS else ():
            round_pairs.append(pair)
    return tuple(tuple(round_pairs) for round_pairs in full)


def _pairs(part: Component, cleared: Sequence[str], nodes: Sequence[str]) -> Iterator[Pairing]:
    if part.kind == "path":
        yield from [ordered(part.nodes, nodes.index)] * PARTNERS
    elif part.kind in NODE_KINDS:
        # Spread over the fleet, so that suspects do not share partners.
        index = nodes.index(part.nodes[0])
        rotated = sorted(cleared, key=lambda name: (nodes.index(name) - index) % len(nodes))
        for partner in rotated[:PARTNERS]:
            yield ordered((part.nodes[0], partner), nodes.index)


def _rounds(pairs_by_part: Sequence[Sequence[Pairing]]) -> Rounds:
    """Lay out the pairs of all parts so that no node is in two pairs of a round."""
    rounds: list[list[Pairing]] = []
    for round_pairs in zip_longest(*pairs_by_part):
        for pair in filter(None, round_pairs):
            free_round = next((pairs for pairs in rounds if _is_free(pairs, pair)), None)
            if free_round is None:
                rounds.append(free_round := [])
            free_round.append(pair)
    return tuple(tuple(pairs) for pairs in rounds)


def _is_free(round_pairs: Sequence[Pairing], pair: Pairing) -> bool:
    return all(set(pair).isdisjoint(other) for other in round_pairs)


def unsettled_words(sweep: Sweep) -> str:
    """Say which pairs should have been measured again and were not; "" if all were."""
    names = [f"{a}-{b}" for a, b in sweep.unsettled]
    if not names:
        return ""
    listed = first_few(names, MOST_PARTS)
    return f"not measured again for lack of time: {listed}; give --preflight-budget=SECONDS"


def doubts(
    blames: Iterable[Blame], judgements: Sequence[PairJudgement], sweep: Sweep
) -> dict[Pairing, str]:
    """Return, by pair, why a path that was slow in its only round cannot be judged."""
    slow = [blame for blame in blames if blame.kind == "path" and not blame.events]
    readings = grouped((pair.nodes, pair) for pair in judgements if pair.state != "not_run")
    reasons: dict[Pairing, str] = {}
    for blame in slow:
        results = [pair for ends in blame.pairs for pair in readings.get(ends, ())]
        results = [pair for pair in results if blame.rail in (None, pair.rail)]
        sizes = [size for pair in results for size in pair.sizes[-1:]]
        # It has no other fault, and only one round.
        single_round = len({pair.round for pair in results}) == 1
        if sizes and single_round and all(pair.state == "measured" for pair in results):
            waiting = set(sweep.unsettled).issuperset(blame.pairs)
            why = "no time to look again" if waiting else "not measured again"
            often = f"slow once in {sizes[0].operations} operations"
            reasons |= dict.fromkeys(blame.pairs, f"{often}, {why}: {blame.sentence}")
    return reasons


def without_doubts(blames: Iterable[Blame], doubted: Collection[Pairing]) -> list[Blame]:
    """Return the blames that are not only a doubt about a path."""
    return [
        blame for blame in blames if blame.kind != "path" or set(doubted).isdisjoint(blame.pairs)
    ]
