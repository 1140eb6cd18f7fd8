"""A job that progresses is no hang; a slow rank is named only if it is clear."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.facts.job import Sighting
from preflight.hang.diagnose.diagnosis import diagnose
from preflight.hang.diagnose.stragglers import slow_ranks
from tests.unit.hang.diagnose.jobs import at, collective, job, loading, standing

WORK, WAIT = at(20, "forward"), collective("all_reduce", 41)


def seen(work: int, wait: int) -> dict[str, Any]:
    """A rank that was met so often at work, and so often waiting."""
    looks = ((WORK, work), (WAIT, wait))
    some = tuple(Sighting(tuple(frames), times) for frames, times in looks if times)
    return standing(WAIT, WORK, sightings=some, switches=60, main_cpu_s=0.4)


@pytest.mark.parametrize("world", [2, 4, 8, 32])
def test_a_healthy_job_is_no_hang(world: int) -> None:
    """All go on, at one pace."""
    answer = diagnose(job(world, lambda r: seen(40 + r % 3, 20 - r % 3)))
    assert (answer.category, answer.culprits) == ("progresses", ())
    assert answer.sentence.startswith("no hang: it progresses")


@pytest.mark.parametrize("world", [4, 8, 32])
def test_a_straggler_is_named_with_its_line(world: int) -> None:
    """It works all the time; the others wait for it more than half of it."""
    answer = diagnose(job(world, lambda r: seen(58, 2) if r == 1 else seen(20, 40)))
    assert (answer.category, answer.culprits) == ("straggler", ("rank 1",))
    assert answer.line == "/home/u/train.py:20 in forward"
    assert "it works for 97 % of the time" in answer.sentence


def test_three_slow_of_eight_by_their_cpu_time() -> None:
    """Nobody sampled: what their main threads used tells it, where no GPU is waited for."""

    def where(rank: int) -> dict[str, Any]:
        slow = rank in (2, 5, 6)
        return standing(WAIT, WORK, main_cpu_s=2.4 if slow else 0.3, switches=50)

    answer = diagnose(job(8, where))
    assert (answer.category, answer.culprits) == ("straggler", ("rank 2", "rank 5", "rank 6"))


def test_little_cpu_time_tells_too_where_it_is_many_times_that_of_the_others() -> None:
    """Steps are mostly a pause; three compute a fifth of the time, five a hundredth."""

    def where(rank: int) -> dict[str, Any]:
        cpu = {"main_cpu_s": 0.6 if rank > 4 else 0.03, "switches": 60}
        return standing(WAIT, WORK if rank % 3 else [*at(21, "forward")], **cpu)

    assert diagnose(job(8, where)).culprits == ("rank 5", "rank 6", "rank 7")


def test_on_a_busy_machine_little_cpu_time_is_a_hint() -> None:
    """Three get a tenth of a core and the others next to nothing: it progresses, less surely."""

    def where(rank: int) -> dict[str, Any]:
        cpu = {"main_cpu_s": 0.26 if rank in (4, 6, 7) else 0.01 * (rank % 3), "switches": 20}
        return standing(WAIT, WORK if rank % 3 else [*at(21, "forward")], **cpu)

    answer = diagnose(job(8, where))
    assert (answer.category, answer.confidence) == ("progresses", 0.75)
    assert "ranks 4,6-7 may set the pace" in answer.alternatives[0].sentence


def test_who_uses_cpu_while_all_wait_for_data_is_no_straggler() -> None:
    """All stand in their loaders: nobody waits for rank 0, which writes a log."""

    def where(rank: int) -> dict[str, Any]:
        cpu = {"main_cpu_s": 0.9 if rank == 0 else 0.03, "switches": 60}
        return standing(loading(18), at(44 + rank % 2), **cpu)

    answer = diagnose(job(8, where))
    assert (answer.category, answer.culprits) == ("progresses", ())


def test_a_node_whose_ranks_are_all_slow_is_named_too() -> None:
    """Two of eight ranks are slow, and they are a node."""
    answer = diagnose(job(8, lambda r: seen(58, 2) if r in (4, 5) else seen(20, 40), per_node=2))
    assert answer.culprits == ("rank 4", "rank 5", "node gpu003")


def test_a_rank_that_has_left_a_collective_shows_that_it_ended() -> None:
    """No connection could be read and six were met waiting twice; rank 1 came out of it."""

    def where(rank: int) -> dict[str, Any]:
        if rank == 1:
            return standing(WAIT, WORK)
        return standing(WORK) if rank == 2 else standing(WAIT)

    assert diagnose(job(8, where)).culprits == ()


def test_a_rank_that_works_while_the_rest_is_stuck_is_no_progress() -> None:
    """It burns CPU in its evaluation; the seven others get nothing."""
    answer = diagnose(
        job(8, lambda r: standing(at(88, "evaluate"), at(90, "evaluate"), main_cpu_s=3.0)
            if r == 0 else standing(WAIT))
    )  # fmt: skip
    assert (answer.category, answer.culprits) == ("odd_rank", ("rank 0",))
    assert [one.category for one in answer.alternatives] == ["progresses"]


@given(st.lists(st.floats(0.0, 1.0), max_size=40))
def test_whoever_is_slow_is_clearly_apart(shares: list[float]) -> None:
    """Never more than the half, never by less than a fifth of the time."""
    own = dict(enumerate(shares))
    slow = slow_ranks(own)
    assert len(slow) * 2 <= len(own)
    if slow:
        rest = [share for rank, share in own.items() if rank not in slow]
        assert min(own[rank] for rank in slow) >= max(rest) + 0.2 - 1e-9


@given(st.lists(st.floats(-0.08, 0.08), min_size=2, max_size=64), st.floats(0.1, 0.9))
def test_ordinary_scatter_makes_no_straggler(noise: list[float], share: float) -> None:
    """Ranks of a healthy job differ by some percent."""
    assert not slow_ranks({rank: share + each for rank, each in enumerate(noise)})


def test_a_rank_that_goes_on_waits_for_no_lock() -> None:
    """It was in a sleep, and in a collective by the time its wait channel was read."""

    def where(rank: int) -> dict[str, Any]:
        goes_on = standing(WAIT, WORK if rank == 1 else [*at(21, "forward")], switches=50)
        return {**goes_on, "wait_channel": "futex_wait_queue"}

    answer = diagnose(job(4, where))
    assert answer.category == "progresses"
    assert {row.what for row in answer.standings} == {
        "is in forward at train.py:20",
        "is in forward at train.py:21",
    }
