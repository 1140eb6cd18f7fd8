"""How much of a fabric was looked at: an unseen pair is not a good one, and the report says so."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.statistics import median
from preflight.core.text import first_few
from preflight.fabric.compare import speed_key
from preflight.fabric.measure import joint_state, summarise
from preflight.fabric.planner import frame_of_fleet, reserved
from preflight.history.run_record import Cost, Done, Past

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from preflight.fabric.planner import Planned
    from preflight.fabric.samples import Sweep
    from preflight.fabric.schedule import Frame, Pairing

MOST_SUSPECTS = 4096
WITHOUT_PEERS, KEPT_RUNS = 3, 8
"""Nodes up to which no pair has another that touches neither of its nodes; runs remembered."""
_FASTEST_GBS = 1e6
_UNTESTED = ("not_run", "absent")
_MOST_NAMED = 8


class Coverage(Struct, frozen=True, kw_only=True):
    """Pairs of nodes, and of leaf switches, measured. `*_known`: earlier runs included."""

    rounds: int
    rounds_total: int
    """So many rounds hold every pair."""
    seed: int
    pairs: int
    pairs_run: int
    pairs_known: int | None = None
    """None without a history."""
    runs_left: int | None = None
    """Runs like this one until every pair was measured; None if unknown, or if there is no end."""
    topology: str = ""
    """Where the leaf switches come from; empty if they are not known."""
    leaf_pairs: int = 0
    leaf_pairs_run: int = 0
    leaf_pairs_known: int | None = None


def pairs_tested(sweep: Sweep) -> frozenset[Pairing]:
    """The pairs of which a sweep says anything, be it good or bad."""
    return frozenset((pair.a, pair.b) for pair in sweep.pairs if joint_state(pair) not in _UNTESTED)


def unread_words(sweep: Sweep) -> tuple[str, ...]:
    """What was not checked beside the pairs, by reason: on which nodes and rails, since when."""
    turns: dict[str, list[tuple[str, int, int]]] = {}
    for pair in sweep.pairs:
        for end in (pair.first, pair.second):
            if end is not None and end.unread:
                for why in end.unread.split("; "):
                    turns.setdefault(why, []).append((end.node, pair.rail, pair.round))
    return tuple(_unread(why, seen) for why, seen in turns.items())


def _unread(why: str, turns: Sequence[tuple[str, int, int]]) -> str:
    names = list(dict.fromkeys(node for node, _, _ in turns))
    rails = ", ".join(map(str, sorted({rail for _, rail, _ in turns})))
    since = min(number for _, _, number in turns) + 1
    where = f"{first_few(names, _MOST_NAMED)} (rail {rails}, from round {since} on)"
    return f"not checked on {where}: {why}"


def coverage(
    planned: Planned, tested: Collection[Pairing], nodes: Sequence[str], past: Past | None = None
) -> Coverage:
    """Count what a run measured; with `past`, which includes this run, what all runs did."""
    pairs = len(nodes) * (len(nodes) - 1) // 2
    leaves = {name: leaf for name, leaf in planned.leaves.items() if name in set(nodes)}
    count = len(set(leaves.values()))
    now = Coverage(
        rounds=len(planned.rounds),
        rounds_total=planned.total,
        seed=planned.seed,
        pairs=pairs,
        pairs_run=len(tested),
        topology=planned.topology,
        leaf_pairs=count * (count - 1) // 2,
        leaf_pairs_run=len(_joined(tested, leaves)),
    )
    if past is None:
        return now
    frame = frame_of_fleet(nodes, planned.leaves)
    known = sum(past.done[number].pairs for number in frame.numbers if number in past.done)
    return replace(
        now,
        pairs_known=min(max(known, now.pairs_run), pairs),
        runs_left=_runs_left(frame, past, len(planned.numbers or planned.rounds)),
        leaf_pairs_known=max(now.leaf_pairs_run, _leaf_pairs_known(frame, past, leaves)),
    )


def after(
    past: Past,
    planned: Planned,
    sweep: Sweep,
    nodes: Sequence[str],
    *,
    bad: Iterable[Pairing],
    tier: str,
    seconds: float,
) -> Past:
    """Add one run to what is known. `seconds`: from its start to the end of its sweep.

    A round of which less than half was measured (the time was up) counts as not measured.
    """
    frame, tested = frame_of_fleet(nodes, planned.leaves), pairs_tested(sweep)
    run = past.runs + 1
    found = Counter(frame.holding(*pair) for pair in tested)
    done = dict(past.done)
    for number in planned.numbers or found:
        if found[number] * 2 >= len(frame.pairs(number)):
            before = done[number].pairs if number in done else 0
            # Who was down tonight may have been measured before.
            done[number] = Done(run, max(found[number], before))
    still = [pair for pair in past.suspects if pair not in tested]
    suspects = tuple(dict.fromkeys([*bad, *still]))[:MOST_SUSPECTS]
    cost = _cost(sweep, seconds)
    costs = past.costs if cost is None else {**past.costs, tier: cost}
    speeds = _speeds(past, sweep, set(suspects)) if len(nodes) <= WITHOUT_PEERS else {}
    return Past(runs=run, done=done, suspects=suspects, costs=costs, speeds=speeds)


def _speeds(past: Past, sweep: Sweep, bad: Collection[Pairing]) -> dict[str, tuple[float, ...]]:
    """Add what pairs that are fine reached at the largest size; the latest runs are kept."""
    speeds = dict(past.speeds)
    for pair in sweep.pairs:
        summary = summarise(pair)
        if summary.state == "measured" and summary.sizes and (pair.a, pair.b) not in bad:
            most = summary.sizes[-1]
            key = speed_key(pair, most.size_bytes)
            if 0 < most.busbw_gbs <= _FASTEST_GBS:
                speeds[key] = (*speeds.get(key, ()), most.busbw_gbs)[-KEPT_RUNS:]
    return speeds


def _cost(sweep: Sweep, seconds: float) -> Cost | None:
    """What a round took, by each node's own clock from its first to its last one."""
    met: dict[str, list[tuple[int, float]]] = {}
    for pair in sweep.pairs:
        for end in (pair.first, pair.second):
            if end is not None and end.state == "measured":
                met.setdefault(end.node, []).append((pair.round, end.started_s))
    rates = []
    for seen in met.values():
        (first, began_s), (last, ended_s) = min(seen), max(seen)
        if last > first:
            rates.append((ended_s - began_s) / (last - first))
    round_s = median(rates) if rates else 0.0
    had_a_turn = {number for seen in met.values() for number, _ in seen}
    spent_s = round_s * len(had_a_turn)
    # A clock that was set in the middle tells nothing.
    return Cost(round_s, seconds - spent_s) if round_s > 0 and spent_s <= seconds else None


def _joined(pairs: Iterable[Pairing], leaves: Mapping[str, str]) -> Counter[Pairing]:
    """How many pairs join each two leaves."""
    return Counter(
        (min(leaves[a], leaves[b]), max(leaves[a], leaves[b]))
        for a, b in pairs
        if a in leaves and b in leaves and leaves[a] != leaves[b]
    )


def _leaf_pairs_known(frame: Frame, past: Past, leaves: Mapping[str, str]) -> int:
    """Leaf pairs that rounds surely joined, even if all that they lack were of one leaf pair."""
    best: dict[int, int] = {}
    for number in frame.numbers[frame.in_leaf :] if frame.in_leaf else ():
        if number in past.done:
            span = frame.span(number)
            held = best.get(span, number)
            best[span] = max(number, held, key=lambda one: past.done[one].pairs)
    known = 0
    for number in best.values():
        pairs = frame.pairs(number)
        joined = _joined(pairs, leaves)
        lacking = len(pairs) - past.done[number].pairs
        known += max(0, len(joined) - lacking // min(joined.values(), default=1))
    return known


def _runs_left(frame: Frame, past: Past, rounds: int) -> int | None:
    """How many runs like this one it takes until each round was measured once."""
    left = [number for number in frame.numbers if number not in past.done]
    across = sum(number >= frame.in_leaf for number in left)
    each = rounds - bool(past.suspects)
    if not left:
        return 0
    if each < 1:
        return None
    elsewhere = each - reserved(frame, rounds)
    return max(-(-len(left) // each), -(-across // elsewhere) if elsewhere > 0 else 0)
