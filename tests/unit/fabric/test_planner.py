"""The planner spends a budget on what was not measured for longest, and says how far it came."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.fabric.planner import (
    MARGIN,
    add_run,
    choose,
    coverage,
    inside_rounds,
    pairs_tested,
    plan,
    restrict_rounds,
    rounds_that_fit,
)
from preflight.fabric.samples import End, PairSamples, Sweep, Timing
from preflight.fabric.schedule import Planned, frame_of
from preflight.history.run_record import Cost, Past, RoundRecord
from tests.cases import draws
from tests.unit.fabric.test_leaves import fabric

COST = Cost(round_s=2.0, other_s=25.0)
EIGHT = (Timing(8, (1.0,), (1.0,)),)
FABRICS: st.SearchStrategy[tuple[list[str], dict[str, str]]] = st.one_of(
    st.lists(st.integers(1, 6), min_size=2, max_size=6).map(fabric),
    st.integers(2, 30).map(lambda n: (fabric([n])[0], {})),
)


def _plan(names: list[str], leaves: dict[str, str] | None = None, **changes: object) -> Planned:
    values = {"extent": "auto", "seed": 1, "past": None, "budget_s": 60.0, "cost": COST}
    return plan(names, leaves or {}, **{**values, **changes})  # type: ignore[arg-type]


def swept(planned: Planned, down: frozenset[str] = frozenset(), round_s: float = 2.0) -> Sweep:
    """A sweep in which everybody answered but who was down, `round_s` after `round_s`."""
    return Sweep(
        (),
        planned.rounds,
        tuple(
            PairSamples(
                a, b, 0, number, "gloo",
                End(a, "measured", EIGHT, started_s=1e9 + round_s * number),
                End(b, "measured", EIGHT, started_s=1e9 + round_s * number),
            )
            for number, around in enumerate(planned.rounds)
            for a, b in around
            if not down & {a, b}
        ),
    )  # fmt: skip


def _night(past: Past, names: list[str], leaves: dict[str, str], seed: int, rounds: int) -> Past:
    planned = _plan(names, leaves, extent=rounds, seed=seed, past=past)
    return add_run(past, planned, swept(planned), names, bad=(), tier="quick", seconds=60.0)


@pytest.mark.parametrize(
    ("extent", "count", "rounds"),
    [
        ("auto", 2, 1), ("auto", 16, 15), ("auto", 17, 9), ("auto", 1024, 8), ("auto", 1, 0),
        ("exhaustive", 17, 17), ("exhaustive", 64, 63), (3, 17, 3), (3, 3, 3), (99, 17, 17),
    ],
)  # fmt: skip
def test_as_many_rounds_as_were_asked_for(extent: object, count: int, rounds: int) -> None:
    """All pairs of a small fleet, some rounds of a large one, never more than there are."""
    planned = _plan([f"h{n}" for n in range(count)], extent=extent, budget_s=600.0)
    assert len(planned.rounds) == rounds
    assert planned.total == count - 1 + count % 2 if count > 1 else not planned.total


def test_a_short_budget_gets_what_fits_and_one_round_at_least() -> None:
    """Also without a history; never more than is usual."""
    names = [f"h{n}" for n in range(64)]
    rounds = [len(_plan(names, budget_s=budget_s).rounds) for budget_s in (5, 35, 60, 600)]
    assert rounds == [1, 3, 9, 9]


@pytest.mark.parametrize("sizes", [[17], [9, 8, 8], [8, 8], [5, 5, 5], [40, 2, 2]])
def test_an_exhaustive_sweep_holds_every_pair_once_whatever_the_leaves(sizes: list[int]) -> None:
    """Also of an odd fleet: the bye is not a hole. No node waits for unequal leaves."""
    names, leaves = fabric(sizes)
    planned = _plan(names, leaves, extent="exhaustive")
    pairs = [pair for around in planned.rounds for pair in around]
    assert sorted(pairs) == sorted(combinations(names, 2))
    assert len(planned.rounds) == len(names) - 1 + len(names) % 2


@given(FABRICS, st.integers(0, 1 << 32), st.integers(1, 12))
@settings(deadline=None)
def test_a_seed_repeats_the_rounds_and_their_order(
    known: tuple[list[str], dict[str, str]], seed: int, rounds: int
) -> None:
    """Same seed, same rounds, also where the nodes are listed otherwise; no pair twice."""
    names, leaves = known
    planned = _plan(names, leaves, seed=seed, extent=rounds)
    assert planned == _plan(names, leaves, seed=seed, extent=rounds)
    assert planned.numbers == _plan(names[::-1], leaves, seed=seed, extent=rounds).numbers
    pairs = [pair for around in planned.rounds for pair in around]
    assert len(pairs) == len(set(pairs))
    assert all(names.index(a) < names.index(b) for a, b in pairs)
    for around in planned.rounds:
        assert len({name for pair in around for name in pair}) == 2 * len(around)


def test_another_seed_is_another_order() -> None:
    """Of 256 nodes none draws the same rounds twice."""
    names = [f"h{n}" for n in range(256)]
    assert len({_plan(names, seed=seed).numbers for seed in range(20)}) == 20


def test_a_fleet_of_256_in_eight_leaves_gets_two_rounds_inside_and_seven_across() -> None:
    """Which join all 28 pairs of leaves."""
    names, leaves = fabric([32] * 8)
    planned = _plan(names, leaves)
    inside = [around for around in planned.rounds if leaves[around[0][0]] == leaves[around[0][1]]]
    seen = coverage(planned, {pair for around in planned.rounds for pair in around}, names)
    assert (len(inside), len(planned.rounds)) == (2, 9)
    assert (seen.leaf_pairs_run, seen.leaf_pairs) == (28, 28)
    assert (seen.pairs_run, seen.pairs) == (9 * 128, 256 * 255 // 2)


@given(st.floats(1, 1e5), st.floats(0.01, 100), st.floats(0, 1e4))
def test_planned_rounds_never_exceed_the_budget(
    budget_s: float, round_s: float, other_s: float
) -> None:
    """By what the last run took, with a margin; one round is measured in any case."""
    fits = rounds_that_fit(budget_s, Cost(round_s, other_s))
    assert fits == 1 or other_s + fits * round_s <= budget_s * MARGIN * (1 + 1e-9)
    assert other_s + (fits + 1) * round_s > budget_s * MARGIN * (1 - 1e-9)


def test_a_history_spends_the_budget_and_learns_what_a_round_costs() -> None:
    """A run that was timed at 0.5 s a round lets the next one plan for that."""
    names = [f"h{n}" for n in range(200)]
    first = _plan(names, past=Past())
    assert len(first.rounds) == rounds_that_fit(60.0, COST)
    past = add_run(
        Past(), first, swept(first, round_s=0.5), names, bad=(), tier="quick", seconds=20.0
    )
    other_s = 20.0 - 0.5 * len(first.rounds)
    assert past.costs == {"quick": Cost(0.5, other_s)}
    cost = past.costs["quick"]
    assert len(_plan(names, past=past, cost=cost).rounds) == int((60.0 * MARGIN - other_s) / 0.5)
    jumped = add_run(
        past, first, swept(first, round_s=99.0), names, bad=(), tier="quick", seconds=20
    )
    assert jumped.costs == past.costs


@given(FABRICS, st.integers(1, 12), st.integers(0, 3), st.data())
@draws(60)
def test_the_longest_untested_come_first(
    known: tuple[list[str], dict[str, str]], rounds: int, nights: int, data: st.DataObject
) -> None:
    """Nothing that was left out is older than what was chosen, but for the rounds inside leaves."""
    names, leaves = known
    frame = frame_of(names, leaves)
    ages = data.draw(st.lists(st.integers(0, nights), min_size=len(frame.numbers),
                              max_size=len(frame.numbers)))  # fmt: skip
    done = {n: RoundRecord(age, 1) for n, age in zip(frame.numbers, ages, strict=True) if age}
    past = Past(runs=nights, done=done)
    chosen = choose(frame, past, rounds, seed=7)
    assert len(chosen) == len(set(chosen)) == min(rounds, len(frame.numbers))
    held = inside_rounds(frame, rounds)
    assert sum(number < frame.in_leaf for number in chosen) >= held
    left = [age for n, age in zip(frame.numbers, ages, strict=True) if n not in chosen]
    age_of = dict(zip(frame.numbers, ages, strict=True))
    assert all(age_of[number] <= min(left, default=nights) for number in chosen[held:])


@given(FABRICS, st.integers(1, 10), st.data())
@draws(60)
def test_a_suspected_pair_is_measured_again_the_next_night(
    known: tuple[list[str], dict[str, str]], rounds: int, data: st.DataObject
) -> None:
    """Of several suspects at least one; strangers among them do not disturb."""
    names, leaves = known
    pairs = list(combinations(names, 2))
    suspects = data.draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=3))
    past = Past(runs=1, suspects=(("gone", "away"), *suspects))
    frame = frame_of(names, leaves)
    chosen = choose(frame, past, rounds, seed=3)
    assert chosen[0] in {frame.round_of(*pair) for pair in suspects}


def test_several_suspects_take_turns() -> None:
    """With one round a night, two suspects in different rounds are each seen every other night."""
    names = [f"h{n}" for n in range(20)]
    past = Past(runs=1, suspects=(("h1", "h2"), ("h3", "h9")))
    turns = []
    for seed in range(4):
        planned = _plan(names, extent=1, seed=seed, past=past)
        turns.append(planned.numbers)
        past = add_run(
            past, planned, swept(planned), names, bad=past.suspects, tier="quick", seconds=9
        )
    assert turns[0] == turns[2] != turns[1] == turns[3]


@given(FABRICS, st.integers(1, 9))
@draws(40)
def test_all_pairs_are_measured_in_as_many_nights_as_predicted(
    known: tuple[list[str], dict[str, str]], rounds: int
) -> None:
    """(N - 1) / k nights on a circle; by leaf no later than twice the prediction."""
    names, leaves = known
    past = _night(Past(), names, leaves, 0, rounds)
    planned = _plan(names, leaves, extent=rounds, past=past)
    tested = {pair for around in planned.rounds for pair in around}
    runs_left = coverage(planned, tested, names, past).runs_left
    assert runs_left is not None
    nights = 0
    while len(past.done) < len(frame_of(names, leaves).numbers):
        nights += 1
        assert nights <= 2 * runs_left
        past = _night(past, names, leaves, nights, rounds)
    assert nights == runs_left or leaves
    assert coverage(planned, tested, names, past).pairs_known == len(names) * (len(names) - 1) // 2


def test_a_run_that_planned_too_much_teaches_the_next_one() -> None:
    """Its time was up after 4 of 14 rounds, at 10 s each: the next run plans for 3."""
    names = [f"h{n}" for n in range(200)]
    planned = _plan(names, past=Past())
    cut = swept(Planned(rounds=planned.rounds[:4]), round_s=10.0)
    sweep = Sweep((), planned.rounds, cut.pairs)
    past = add_run(Past(), planned, sweep, names, bad=(), tier="quick", seconds=60.0)
    assert len(planned.rounds) == 14
    assert past.costs == {"quick": Cost(10.0, 20.0)}
    assert len(past.done) == 4
    assert len(_plan(names, past=past, cost=past.costs["quick"]).rounds) == 3


def test_what_was_not_measured_is_not_covered() -> None:
    """A node that is down costs its pairs, not the round; what is found there stays suspected."""
    names = [f"h{n:02}" for n in range(40)]
    planned = _plan(names, extent=4, past=Past())
    sweep = swept(planned, frozenset({"h07"}))
    bad = [planned.rounds[0][0]]
    past = add_run(Past(), planned, sweep, names, bad=bad, tier="quick", seconds=60)
    seen = coverage(planned, pairs_tested(sweep), names, past)
    assert (seen.pairs_run, seen.pairs_known, seen.pairs) == (4 * 19, 4 * 19, 780)
    assert seen.runs_left == 12  # 35 rounds, 3 a night beside the suspects'
    assert past.suspects == tuple(bad)
    again = add_run(past, planned, swept(planned), names, bad=(), tier="quick", seconds=60)
    assert again.suspects == ()
    assert coverage(planned, pairs_tested(sweep), names, again).pairs_known == 4 * 20
    late = add_run(again, planned, sweep, names, bad=(), tier="quick", seconds=60)
    assert coverage(planned, pairs_tested(sweep), names, late).pairs_known == 4 * 20


def test_an_exhaustive_night_is_remembered_also_where_the_leaves_number_rounds_otherwise() -> None:
    """Afterwards nothing is left, and the next night starts over with what is oldest."""
    names, leaves = fabric([6, 6, 6])
    planned = _plan(names, leaves, extent="exhaustive", past=Past())
    past = add_run(Past(), planned, swept(planned), names, bad=(), tier="quick", seconds=99)
    seen = coverage(planned, pairs_tested(swept(planned)), names, past)
    assert (seen.pairs_known, seen.runs_left) == (153, 0)
    assert (seen.leaf_pairs_run, seen.leaf_pairs_known, seen.leaf_pairs) == (3, 3, 3)


@pytest.mark.parametrize("sizes", [[40], [10, 10, 10, 10]])
def test_a_sweep_whose_time_was_up_leaves_the_rest_for_another_night(sizes: list[int]) -> None:
    """Of 39 rounds 10 were measured: about as many are done, and the others come first now."""
    names, leaves = fabric(sizes)
    leaves = leaves if len(sizes) > 1 else {}
    planned = _plan(names, leaves, extent="exhaustive", past=Past())
    early = Planned(rounds=planned.rounds[:10], total=39, leaves=leaves)
    past = add_run(Past(), planned, swept(early), names, bad=(), tier="quick", seconds=99)
    assert len(past.done) == 10 if not leaves else len(past.done) < 10
    nothing = add_run(Past(), planned, swept(early, frozenset(names)), names, bad=(), tier="quick",
                    seconds=99)  # fmt: skip
    assert nothing.done == {}
    chosen = _plan(names, leaves, extent=5, past=past).numbers
    assert not set(chosen) & set(past.done)


def test_a_history_with_absurd_numbers_does_no_harm() -> None:
    """Rounds that there are none of, pairs of a node with itself, more pairs than there are."""
    names = [f"h{n:02}" for n in range(20)]
    past = Past(
        runs=7,
        done={3: RoundRecord(1 << 40, 1 << 40), 999: RoundRecord(1, 1)},
        suspects=tuple((name, name) for name in names),
    )
    planned = _plan(names, past=past, cost=Cost(0.0, 1e7))
    assert len(planned.rounds) == 1
    assert planned.numbers != (3,)
    assert coverage(planned, planned.rounds[0], names, past).pairs_known == 190


def test_a_pair_of_leaves_counts_as_joined_only_when_it_surely_was() -> None:
    """With as many pairs missing as join two leaves, one pair of leaves may not have been seen."""
    names, leaves = fabric([8] * 4)
    frame = frame_of(names, leaves)
    across = frame.numbers[frame.in_leaf]
    planned = Planned(rounds=(frame.pairs(across),), total=31, leaves=leaves)
    whole = Past(runs=1, done={across: RoundRecord(1, 16)})
    assert coverage(planned, (), names, whole).leaf_pairs_known == 2
    most = Past(runs=1, done={across: RoundRecord(1, 9)})
    assert coverage(planned, (), names, most).leaf_pairs_known == 2
    half = Past(runs=1, done={across: RoundRecord(1, 8)})
    assert coverage(planned, (), names, half).leaf_pairs_known == 1


def test_rounds_of_another_run_are_kept_for_the_nodes_of_this_one() -> None:
    """A replay with fewer nodes, listed otherwise, knows its own pairs only."""
    rounds = ((("a", "b"), ("c", "d")), (("a", "c"), ("b", "d")))
    assert restrict_rounds(rounds, ["c", "b", "a"]) == ((("b", "a"),), (("c", "a"),))
