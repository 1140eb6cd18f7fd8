"""Choose the rounds of a run, the longest untested first, and count what all runs have measured.

Pure: from a fleet's numbered rounds and a plain `Past` to the rounds of this run. The seed only
breaks ties, so that the same seed and the same past give the same rounds in the same order.

A pair that was not measured does not count as good, and the report says so.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from preflight.core.statistics import grouped, median
from preflight.core.text import first_few
from preflight.fabric.pair_summary import joint_state
from preflight.fabric.schedule import (
    Planned,
    Rounds,
    circle,
    cover_unpaired,
    default_rounds,
    fill,
    frame_of,
    ordered,
    rounds_among,
)
from preflight.facts.basics import Count
from preflight.history.run_record import Cost, Past, RoundRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from preflight.fabric.samples import Sweep
    from preflight.fabric.schedule import Frame, Pairing


IN_LEAF, IN_LEAF_SHARE = 2, 3
"""Rounds inside leaves per run, and at most one in three: they separate a node from its uplink."""


def choose(frame: Frame, past: Past, rounds: int, seed: int) -> tuple[int, ...]:
    """Choose rounds by number: one with a suspected pair, some inside leaves, then the oldest.

    Of equally old rounds those come first that join the leaves joined longest ago; then by seed.
    """
    queue = _Queue(frame, past, seed)
    chosen = queue.take_suspected(past) if rounds else []
    chosen += queue.take(min(inside_rounds(frame, rounds), rounds - len(chosen)), {-1})
    return (*chosen, *queue.take(rounds - len(chosen)))


def inside_rounds(frame: Frame, rounds: int) -> int:
    """Return the least number of a run's rounds that are inside leaves."""
    across = len(frame.numbers) - frame.in_leaf
    return min(IN_LEAF, rounds // IN_LEAF_SHARE, frame.in_leaf) if across else 0


class _Queue:
    """Rounds not yet chosen, the oldest of each span of leaves in front."""

    def __init__(self, frame: Frame, past: Past, seed: int) -> None:
        self._frame = frame
        self._this_run = past.runs + 1
        self._age = dict.fromkeys(frame.numbers, 0)
        self._age.update((n, past.done[n].run) for n in frame.numbers if n in past.done)
        shuffled = list(frame.numbers)
        random.Random(seed).shuffle(shuffled)  # noqa: S311  a repeatable order, not a secret
        self._shuffled = {number: at for at, number in enumerate(shuffled)}
        self._spans: dict[int, list[int]] = {}
        self._last_joined: dict[int, int] = {}
        for number in sorted(frame.numbers, key=self._age_order, reverse=True):
            span = frame.span(number)
            self._spans.setdefault(span, []).append(number)
            self._last_joined[span] = max(self._last_joined.get(span, 0), self._age[number])

    def _age_order(self, number: int) -> tuple[int, int]:
        return self._age[number], self._shuffled[number]

    def take(self, count: int, only: set[int] | None = None) -> list[int]:
        """Take the longest untested rounds; `only` from these spans."""
        numbers: list[int] = []
        for _ in range(count):
            heads = [
                (self._age[rounds[-1]], self._last_joined[span], self._shuffled[rounds[-1]], span)
                for span, rounds in self._spans.items()
                if rounds and (only is None or span in only)
            ]
            if not heads:
                break
            span = min(heads)[-1]
            numbers.append(self._spans[span].pop())
            self._last_joined[span] = self._this_run
        return numbers

    def take_suspected(self, past: Past) -> list[int]:
        """Take the longest untested round with a suspected pair, if there is one."""
        counts: dict[int, int] = {}
        for a, b in past.suspects:
            try:
                number = self._frame.round_of(a, b)
            except KeyError:
                continue  # a name that is not in this fleet
            if a != b and number in self._age:
                counts[number] = counts.get(number, 0) + 1
        if not counts:
            return []
        number = min(counts, key=lambda n: (self._age[n], -counts[n], self._shuffled[n]))
        span = self._frame.span(number)
        self._spans[span].remove(number)
        self._last_joined[span] = self._this_run
        return [number]


MARGIN = 0.9
"""The planned share of a budget: a sweep that ends too late leaves pairs unmeasured."""

_SHORTEST_ROUND_S = 0.01

Extent = int | Literal["auto", "exhaustive"]
"""The requested extent: a number of rounds, all of them, or what fits."""


def plan(
    nodes: Sequence[str],
    leaves: Mapping[str, str],
    *,
    extent: Extent,
    seed: int,
    past: Past | None,
    budget_s: float,
    cost: Cost,
    topology: str = "",
) -> Planned:
    """Choose and lay out the rounds of one run. `nodes` is the fleet in order.

    `auto` is what fits into the budget, given the `cost` of a round and of the rest; without a past
    at most the usual number.
    """
    frame, all_rounds = frame_of(nodes, leaves), rounds_among(len(nodes))
    most = all_rounds if past is not None else default_rounds(len(nodes))
    count = rounds_wanted(extent, all_rounds, affordable=min(most, rounds_that_fit(budget_s, cost)))
    earlier = past or Past()
    numbers: tuple[int, ...] = ()
    if count >= all_rounds:
        # One circle of all nodes needs the fewest rounds, whatever the sizes of the leaves.
        one_circle = circle(sorted(nodes), nodes)
        tested = earlier if frame.in_leaf == len(frame.numbers) else Past()
        rounds = tuple(map(one_circle.pairs, choose(one_circle, tested, all_rounds, seed)))
    else:
        numbers = choose(frame, earlier, count, seed)
        rounds = cover_unpaired(fill(tuple(map(frame.pairs, numbers)), nodes), nodes)
    return Planned(
        rounds=rounds,
        numbers=numbers,
        total=len(frame.numbers) if count < all_rounds else all_rounds,
        seed=seed,
        leaves=dict(leaves),
        topology=topology,
        earlier=dict(earlier.speeds) if count >= all_rounds else {},
        units=dict(earlier.units),
    )


def rounds_wanted(extent: Extent, all_rounds: int, *, affordable: int) -> int:
    """Return how many rounds: as requested, else what fits; at least one if there are any."""
    if extent == "exhaustive":
        return all_rounds
    return max(min(affordable if extent == "auto" else extent, all_rounds), min(1, all_rounds))


def rounds_that_fit(budget_s: float, cost: Cost) -> int:
    """Return how many rounds fit into a budget beside the rest; at least 1."""
    left_s = budget_s * MARGIN - cost.other_s
    return max(1, int(left_s / max(cost.round_s, _SHORTEST_ROUND_S)))


def restrict_rounds(rounds: Rounds, nodes: Sequence[str]) -> Rounds:
    """Keep only the pairs of these nodes, in their order, of another run's rounds."""
    place = {name: at for at, name in enumerate(nodes)}
    return tuple(
        tuple(ordered(pair, place.__getitem__) for pair in round_pairs if place.keys() >= {*pair})
        for round_pairs in rounds
    )


MOST_SUSPECTS = 4096
WITHOUT_PEERS, KEPT_RUNS = 3, 8
"""Largest fleet in which no pair has peers (pairs of two other nodes); runs remembered."""
_FASTEST_GBS = 1e6
UNTESTED = ("not_run", "absent")
"""States of a pair that was not measured."""
_MOST_NAMED = 8


class Coverage(Struct, frozen=True, kw_only=True):
    """Pairs of nodes, and of leaf switches, measured. `*_known`: earlier runs included."""

    rounds: Count
    rounds_total: Count
    """So many rounds hold every pair."""
    seed: Count
    pairs: Count
    pairs_run: Count
    pairs_known: Count | None
    """None without history."""
    runs_left: Count | None
    """Runs like this one until every pair is measured; None if unknown, or if never."""
    topology: str
    """Source of the leaf switches; "" if they are unknown."""
    leaf_pairs: Count
    leaf_pairs_run: Count
    leaf_pairs_known: Count | None


def pairs_tested(sweep: Sweep) -> frozenset[Pairing]:
    """Return the pairs with a result in a sweep, good or bad."""
    return frozenset(pair.nodes for pair in sweep.pairs if joint_state(pair) not in UNTESTED)


def unread_words(sweep: Sweep) -> tuple[str, ...]:
    """Say which counters were not checked, by reason: nodes, rails, and from which round on."""
    turns = grouped(
        (why, (end.node, pair.rail, pair.round))
        for pair in sweep.pairs
        for end in pair.ends
        if end.unread
        for why in end.unread.split("; ")
    )
    return tuple(_unread_line(why, places) for why, places in turns.items())


def _unread_line(why: str, turns: Sequence[tuple[str, int, int]]) -> str:
    names = list(dict.fromkeys(node for node, _, _ in turns))
    rails = ", ".join(map(str, sorted({rail for _, rail, _ in turns})))
    since = min(number for _, _, number in turns) + 1
    where = f"{first_few(names, _MOST_NAMED)} (rail {rails}, from round {since} on)"
    return f"not checked on {where}: {why}"


def coverage(
    planned: Planned, tested: Collection[Pairing], nodes: Sequence[str], past: Past | None = None
) -> Coverage:
    """Count what a run measured; with `past`, which includes this run, what all runs have."""
    pairs = len(nodes) * (len(nodes) - 1) // 2
    leaves = {name: leaf for name, leaf in planned.leaves.items() if name in set(nodes)}
    count = len(set(leaves.values()))
    pairs_run, joined = len(tested), len(_count_leaf_pairs(tested, leaves))
    pairs_known = runs_left = leaf_pairs_known = None
    if past is not None:
        frame = frame_of(nodes, planned.leaves)
        known = sum(past.done[number].pairs for number in frame.numbers if number in past.done)
        pairs_known = min(max(known, pairs_run), pairs)
        runs_left = _runs_left(frame, past, len(planned.numbers or planned.rounds))
        leaf_pairs_known = max(joined, _leaf_pairs_known(frame, past, leaves))
    return Coverage(
        rounds=len(planned.rounds),
        rounds_total=planned.total,
        seed=planned.seed,
        pairs=pairs,
        pairs_run=pairs_run,
        pairs_known=pairs_known,
        runs_left=runs_left,
        topology=planned.topology,
        leaf_pairs=count * (count - 1) // 2,
        leaf_pairs_run=joined,
        leaf_pairs_known=leaf_pairs_known,
    )


def add_run(
    past: Past,
    planned: Planned,
    sweep: Sweep,
    nodes: Sequence[str],
    *,
    bad: Iterable[Pairing],
    tier: str,
    seconds: float,
) -> Past:
    """Add one run to the past. `seconds`: from its start to the end of its sweep.

    A round of which less than half was measured (the time was up) does not count.
    """
    frame, tested = frame_of(nodes, planned.leaves), pairs_tested(sweep)
    run = past.runs + 1
    counts = Counter(frame.round_of(*pair) for pair in tested)
    done = dict(past.done)
    for number in planned.numbers or counts:
        if counts[number] * 2 >= len(frame.pairs(number)):
            earlier = done[number].pairs if number in done else 0
            # A node that is down tonight may have been measured before.
            done[number] = RoundRecord(run, max(counts[number], earlier))
    untested = [pair for pair in past.suspects if pair not in tested]
    suspects = tuple(dict.fromkeys([*bad, *untested]))[:MOST_SUSPECTS]
    cost = _cost(sweep, seconds)
    costs = past.costs if cost is None else {**past.costs, tier: cost}
    speeds = _speeds(past, sweep, set(suspects)) if len(nodes) <= WITHOUT_PEERS else {}
    return Past(runs=run, done=done, suspects=suspects, costs=costs, speeds=speeds)


def _speeds(past: Past, sweep: Sweep, bad: Collection[Pairing]) -> dict[str, tuple[float, ...]]:
    """Add what good pairs reached at the largest size; keep the latest runs."""
    # A hook loads plans, and compares nothing.
    from preflight.fabric.compare import speed_key
    from preflight.fabric.observed import digests, ladder

    speeds = dict(past.speeds)
    for pair in sweep.pairs:
        sizes = ladder(digests(pair)) if joint_state(pair) == "measured" else ()
        if sizes and pair.nodes not in bad:
            largest = sizes[-1]
            key = speed_key(pair, largest.size_bytes)
            if 0 < largest.busbw_gbs <= _FASTEST_GBS:
                speeds[key] = (*speeds.get(key, ()), largest.busbw_gbs)[-KEPT_RUNS:]
    return speeds


def _cost(sweep: Sweep, seconds: float) -> Cost | None:
    """Return what a round took, by each node's own clock from its first to its last round."""
    turns_by_node = grouped(
        (end.node, (pair.round, end.started_s))
        for pair in sweep.pairs
        for end in pair.ends
        if end.state == "measured"
    )
    rates = []
    for turns in turns_by_node.values():
        (first, began_s), (last, ended_s) = min(turns), max(turns)
        if last > first:
            rates.append((ended_s - began_s) / (last - first))
    round_s = median(rates) if rates else 0.0
    rounds = {number for turns in turns_by_node.values() for number, _ in turns}
    spent_s = round_s * len(rounds)
    # A clock that was set meanwhile is not used.
    return Cost(round_s, seconds - spent_s) if round_s > 0 and spent_s <= seconds else None


def _count_leaf_pairs(pairs: Iterable[Pairing], leaves: Mapping[str, str]) -> Counter[Pairing]:
    """Count the pairs that join each two leaves."""
    return Counter(
        (min(leaves[a], leaves[b]), max(leaves[a], leaves[b]))
        for a, b in pairs
        if a in leaves and b in leaves and leaves[a] != leaves[b]
    )


def _leaf_pairs_known(frame: Frame, past: Past, leaves: Mapping[str, str]) -> int:
    """Count leaf pairs that rounds surely joined, even if all missing pairs were of one."""
    best: dict[int, int] = {}
    for number in frame.numbers[frame.in_leaf :]:
        if number in past.done:
            span = frame.span(number)
            before = best.get(span, number)
            best[span] = max(number, before, key=lambda n: past.done[n].pairs)
    count = 0
    for number in best.values():
        pairs = frame.pairs(number)
        joined = _count_leaf_pairs(pairs, leaves)
        unmeasured = len(pairs) - past.done[number].pairs
        count += max(0, len(joined) - unmeasured // min(joined.values(), default=1))
    return count


def _runs_left(frame: Frame, past: Past, rounds: int) -> int | None:
    """Return how many runs like this one it takes until each round is measured once."""
    untested = [number for number in frame.numbers if number not in past.done]
    across = sum(number >= frame.in_leaf for number in untested)
    per_run = rounds - bool(past.suspects)
    if not untested:
        return 0
    if per_run < 1:
        return None
    elsewhere = per_run - inside_rounds(frame, rounds)
    return max(-(-len(untested) // per_run), -(-across // elsewhere) if elsewhere > 0 else 0)
