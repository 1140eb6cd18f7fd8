"""While the others wait in a collective, the rank that is elsewhere is named, and its line."""

from __future__ import annotations

from typing import Any

import pytest

from preflight.facts.job import Connection, Frame, Sighting, Stacks, Thread
from preflight.hang.diagnose.diagnosis import diagnose
from tests.unit.hang.diagnose.jobs import TRAIN, at, collective, job, loading, standing

SIZES = (2, 4, 8, 32)
WAIT = collective("all_reduce", 41)


def odd(rank: int, frames: list[Any], **more: Any) -> Any:
    """Everybody in all_reduce, and one elsewhere."""
    return lambda r: (
        standing(frames, **more) if r == rank else standing(collective("all_reduce", 41))
    )


@pytest.mark.parametrize("world", SIZES)
def test_a_rank_in_its_loader_is_named_with_its_line(world: int) -> None:
    """31 wait in all_reduce; rank 1 is in its DataLoader at line 88."""
    answer = diagnose(job(world, odd(1, loading(88))))
    assert (answer.category, answer.culprits) == ("odd_rank", ("rank 1",))
    assert answer.line == "/home/u/train.py:88 in train"
    others = "1 rank waits" if world == 2 else f"{world - 1} ranks wait"
    assert answer.sentence == (
        f"rank 1 (gpu001) is in its DataLoader at train.py:88, while {others} for it "
        "in all_reduce (train.py:41)"
    )
    assert answer.confidence >= 0.75


def test_processes_that_nobody_gave_a_rank_go_by_their_pids() -> None:
    """`torch.multiprocessing.spawn` sets no RANK; torch's own arguments are not read."""
    bare = {"rank": None, "local_rank": None, "world_size": None, "local_world_size": None}

    def where(rank: int) -> dict[str, Any]:
        return {**odd(2, loading(88))(rank), **bare, "parent": 999}

    answer = diagnose(job(4, where))
    assert (answer.category, answer.culprits) == ("odd_rank", ("pid 1002",))
    assert answer.sentence.startswith("pid 1002 (gpu001) is in its DataLoader at train.py:88")
    assert answer.confidence > 0.9


@pytest.mark.parametrize("world", SIZES)
def test_rank_0_that_evaluates_alone_is_named(world: int) -> None:
    """The others wait in a collective; rank 0 sleeps or computes in evaluate()."""
    for more in ({"wait_channel": "hrtimer_nanosleep"}, {"state": "running", "main_cpu_s": 2.9}):
        answer = diagnose(job(world, odd(0, at(88, "evaluate"), **more)))
        assert (answer.category, answer.culprits) == ("odd_rank", ("rank 0",))
        assert answer.line == "/home/u/train.py:88 in evaluate"
        assert "is in evaluate at train.py:88" in answer.sentence


def test_a_rank_that_works_may_come_by_itself() -> None:
    """A long evaluation is what the others wait for; that it never ends nobody has seen."""
    busy = diagnose(job(8, odd(0, at(88, "evaluate"), state="running", main_cpu_s=2.9)))
    still = diagnose(job(8, odd(0, at(88, "evaluate"), wait_channel="hrtimer_nanosleep")))
    assert busy.confidence < 0.7 < still.confidence
    assert busy.sentence.endswith("; it is at work and may still arrive")
    assert busy.advice.startswith("look again in a minute")
    assert busy.alternatives[0].category == "progresses"
    assert busy.confidence + busy.alternatives[0].confidence == pytest.approx(1)
    assert "may come" not in still.sentence


def test_the_line_is_the_one_that_all_looks_are_within() -> None:
    """Its evaluation reads a file at one look and is in a layer at others: it evaluates."""
    pathlib = "/opt/py/lib/python3.11/pathlib.py"
    reading = [Frame("Path.read_text", pathlib, 1058), Frame("told", TRAIN, 40)]
    calls = [Frame("evaluate", TRAIN, 117), *at(144)]
    within = [Frame("evaluate", TRAIN, 118), *at(144)]
    layer = Frame("forward", TRAIN, 20)
    looks = [Sighting((layer, *within), 20), Sighting((*reading, *calls), 20)]
    answer = diagnose(job(8, odd(0, [*reading, *calls], later=[layer, *within], sightings=looks)))
    assert (answer.culprits, answer.line) == (("rank 0",), f"{TRAIN}:118 in evaluate")
    assert answer.sentence.startswith("rank 0 (gpu001) is in evaluate at train.py:118")


def test_a_rank_that_left_its_script_may_have_failed() -> None:
    """Its main thread waits for a thread of its own: an error's end looks like that, too."""
    shutdown = [Frame("_shutdown", "/opt/py/lib/python3.11/threading.py", 1590)]
    beat = Thread(frames=(Frame("beat", "/home/u/beat.py", 6),), name="heartbeat")
    left = Stacks(threads=(Thread(frames=tuple(shutdown), main=True, name="MainThread"), beat))
    answer = diagnose(
        job(8, lambda r: {"stacks": left, "later": left} if r == 1 else standing(WAIT))
    )
    assert (answer.category, answer.culprits) == ("odd_rank", ("rank 1",))
    assert "an error may have ended its script" in answer.advice
    assert "rank 1: its thread heartbeat: beat.py:6 in beat" in answer.evidence
    assert answer.next == "preflight explain LOG"


def test_the_kernels_word_for_a_wait_says_what_to_do() -> None:
    """A line of the user's own that waits for a lock on a file: who holds it is the question."""
    answer = diagnose(job(8, odd(1, at(6, "cached"), wait_channel="locks_lock_inode_wait")))
    assert answer.sentence.startswith(
        "rank 1 (gpu001) is in cached at train.py:6 and waits for a lock"
    )
    assert answer.advice.startswith("see who holds the lock")


@pytest.mark.parametrize(("quiet_s", "sure"), [(4.0, 0.77), (900.0, 0.92)])
def test_a_wait_of_seconds_may_be_a_steps_own(quiet_s: float, sure: float) -> None:
    """Data came between ranks a moment ago: slow storage looks like that in every step."""

    def where(rank: int) -> dict[str, Any]:
        mine, other = f"10.0.0.{rank}:5000", f"10.0.0.{1 - rank}:5000"
        one = Connection(local=mine, peer=other, quiet_s=quiet_s)
        return standing(
            loading(88) if rank == 1 else collective("all_reduce", 41),
            connections=(one,) if rank in (0, 1) else (),
        )

    answer = diagnose(job(8, where))
    assert (answer.culprits, answer.confidence) == (("rank 1",), sure)
    assert answer.advice.startswith("look again in a minute") == (quiet_s < 60)
    assert ("progresses" in {one.category for one in answer.alternatives}) == (quiet_s < 60)
