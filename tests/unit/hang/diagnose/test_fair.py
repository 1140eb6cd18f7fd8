"""Culprits are named by what was seen, not by order, number or missing data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from preflight.facts.job import Frame, RankLook, Sighting
from preflight.hang.diagnose.diagnosis import diagnose
from preflight.hang.diagnose.job_state import JobState
from tests.cases import draws
from tests.unit.hang.diagnose.jobs import C10D, at, changed, collective, job, loading, standing
from tests.unit.hang.diagnose.test_links import ring
from tests.unit.hang.recordings import dump, entry, pending

WAITING = standing(collective("all_reduce", 41))
END = [Frame("destroy_process_group", C10D, 2300), *at(119, "main")]

Where = Callable[[int], dict[str, Any]]


def one(rank: int, odd: dict[str, Any], rest: dict[str, Any] = WAITING) -> Where:
    """One rank is elsewhere."""
    return lambda r: odd if r == rank else rest


def healthy(rank: int) -> dict[str, Any]:
    """Ranks of a job that goes on, met at any moment of a step."""
    moments = (at(20, "forward"), collective("all_reduce", 41), loading(18), at(44))
    first, later = moments[rank % 4], moments[rank * 7 % 3]
    seen = tuple(Sighting(tuple(each), 5) for each in moments)
    return standing(first, later, sightings=seen, main_cpu_s=1.2, switches=80)


SITUATIONS: dict[str, Callable[[int, int], Where]] = {
    "data": lambda _w, odd: one(odd, standing(loading(88))),
    "channels": lambda _w, odd: one(
        odd,
        standing(loading(88), wait_channel="poll_schedule_timeout"),
        {**WAITING, "wait_channel": "futex_do_wait"},
    ),
    "evaluation": lambda _w, odd: one(odd, standing(at(88, "evaluate"), main_cpu_s=3.0)),
    "stopped": lambda _w, odd: one(odd, {**WAITING, "state": "stopped"}),
    "zombie": lambda _w, odd: one(odd, {"state": "zombie"}),
    "gone": lambda _w, odd: one(odd, {"state": "absent"}),
    "barrier": lambda _w, odd: one(odd, standing(collective("barrier", 50))),
    "finished": lambda _w, odd: one(odd, standing(END)),
    "alone": lambda _w, odd: one(odd, WAITING, standing(END)),
    "loaders": lambda _w, odd: one(odd, WAITING, standing(loading(88))),
    "path": lambda w, _odd: ring(w, 8, lambda a, b: {a, b} == {0, 1}),
    "shape": lambda _w, odd: one(
        odd,
        {**WAITING, "dump": dump(entry(1), pending(2, input_sizes=[[3]]))},
        {**WAITING, "dump": dump(entry(1), pending(2))},
    ),
    "late": lambda _w, odd: one(
        odd, {**WAITING, "dump": dump(entry(1))}, {**WAITING, "dump": dump(entry(1), pending(2))}
    ),
    "alike": lambda _w, _odd: lambda _r: WAITING,
    "healthy": lambda _w, _odd: healthy,
}
BLIND: list[dict[str, Any]] = [
    {"stacks": None, "later": None, "sightings": ()},
    {"later": None},
    {"stacks": None},
    {"connections": ()},
    {"dump": None},
    {"sightings": ()},
    {"main_cpu_s": 0.0},
    {"wait_channel": ""},
]

states = st.tuples(st.sampled_from(sorted(SITUATIONS)), st.sampled_from([2, 4, 8, 16, 32])).flatmap(
    lambda pair: st.integers(0, pair[1] - 1).map(lambda odd: (*pair, odd))
)


def state_of(name: str, world: int, odd: int) -> JobState:
    """The situation, in a job of that size."""
    return job(world, SITUATIONS[name](world, odd))


@pytest.mark.slow
@draws(50)
@given(states, st.randoms(use_true_random=False))
def test_the_order_of_nodes_and_ranks_means_nothing(
    case: tuple[str, int, int], random: Any
) -> None:
    """Who answers first is no evidence."""
    state = state_of(*case)
    nodes = []
    for node in state.nodes:
        assert node.look is not None
        ranks = list(node.look.ranks)
        random.shuffle(ranks)
        nodes.append(replace(node, look=replace(node.look, ranks=tuple(ranks))))
    random.shuffle(nodes)
    answer = diagnose(state)
    assert replace(diagnose(JobState(nodes=tuple(nodes))), unseen=()) == replace(answer, unseen=())


@pytest.mark.parametrize("name", ["data", "evaluation", "stopped", "zombie", "gone", "finished"])
def test_the_number_of_a_rank_means_nothing(name: str) -> None:
    """Whichever rank it is, the answer is the same."""
    for world in (4, 8, 32):
        for odd in range(world):
            answer = diagnose(state_of(name, world, odd))
            assert answer.culprits == (f"rank {odd}",)


@draws(150)
@given(states, st.lists(st.tuples(st.integers(0, 31), st.sampled_from(BLIND)), max_size=24))
@example(("healthy", 2, 0), [(1, {"main_cpu_s": 0.0})])
@pytest.mark.slow
def test_less_sight_blames_nobody_else(
    case: tuple[str, int, int], blind: list[tuple[int, dict[str, Any]]]
) -> None:
    """Whatever is not seen of whomever: the same culprits, fewer, or none."""
    state = state_of(*case)
    before = set(diagnose(state).culprits)

    def dimmed(look: RankLook) -> RankLook:
        for rank, fields in blind:
            if rank == look.rank:
                look = replace(look, **fields)
        return look

    answer = diagnose(changed(state, dimmed))
    assert set(answer.culprits) <= before, answer
    assert case[0] not in ("healthy", "alike") or answer.culprits == ()


@draws(40)
@given(st.sampled_from([2, 4, 8, 16, 32, 64]), st.integers(0, 1000))
def test_a_healthy_job_is_never_blamed(world: int, shift: int) -> None:
    """Whenever it is looked at."""
    answer = diagnose(job(world, lambda rank: healthy(rank + shift)))
    assert (answer.category, answer.culprits) == ("progresses", ())


@draws(50)
@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=20))
def test_any_words_of_a_node_are_only_words(function: str, file: str, channel: str) -> None:
    """Functions, files and channels may be called anything."""
    from preflight.hang.diagnose.diagnosis import lines

    odd = standing([Frame(function, file, 5), *at(7)], wait_channel=channel)
    for line in lines(diagnose(job(4, one(1, odd))), 80):
        assert line.isprintable()
        assert len(line) <= 80
