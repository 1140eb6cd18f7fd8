"""Ranks that wait in different places are held against each other: who called what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preflight.facts.job import Frame
from preflight.hang.diagnose.diagnosis import diagnose
from tests.unit.hang.diagnose.jobs import C10D, TRAIN, at, collective, job, standing

if TYPE_CHECKING:
    from preflight.hang.diagnose.job_state import Diagnosis


@pytest.mark.parametrize("world", [4, 8, 32])
def test_a_barrier_that_one_rank_skips(world: int) -> None:
    """All wait; rank 3 is already in the next step's all_reduce."""
    answer = diagnose(
        job(
            world,
            lambda r: standing(
                collective("all_reduce", 41) if r == 3 else collective("barrier", 50)
            ),
        )
    )
    assert (answer.category, answer.culprits) == ("desync", ("rank 3",))
    assert answer.line == "/home/u/train.py:41 in train"
    assert "waits in barrier (train.py:50)" in answer.sentence.replace("wait in", "waits in")
    assert "rank 3 (gpu001) waits in all_reduce (train.py:41)" in answer.sentence


def test_two_ranks_that_call_different_things_are_both_told() -> None:
    """With two ranks the answer cannot say which is wrong."""
    answer = diagnose(
        job(2, lambda r: standing(collective("all_reduce" if r else "broadcast", 41 + r)))
    )
    assert (answer.category, answer.culprits) == ("desync", ("rank 0", "rank 1"))
    assert "broadcast (train.py:41)" in answer.sentence
    assert "all_reduce (train.py:42)" in answer.sentence


@pytest.mark.parametrize("op", ["broadcast", "gather", "reduce", "scatter_object_list"])
def test_a_rank_that_may_wait_for_one_that_skipped_its_call_is_not_blamed(op: str) -> None:
    """The others go on from a broadcast, and only its source waits for the one that skipped it.

    Rank 0 did so: it stands beside rank 1, which did not, and nothing shows which of them did.
    """

    def where(rank: int) -> dict[str, object]:
        return standing(collective(op, 50) if rank == 2 else collective("all_reduce", 41))

    answer = diagnose(job(3, where))
    assert (answer.category, answer.culprits) == ("desync", ())
    assert answer.confidence < 0.5
    assert answer.line == "/home/u/train.py:50 in train"
    assert answer.sentence.endswith(
        f"rank 2 (gpu001) waits in {op} (train.py:50): "
        f"either no other rank called {op}, or one of the others skipped it"
    )
    of_many = diagnose(job(8, where))
    assert of_many.culprits == ("rank 2",)
    assert of_many.confidence == 0.5  # the one is as likely as the other


def test_a_pipeline_whose_stages_all_wait_blames_no_stage() -> None:
    """Sends and receives wait in different lines by right."""
    answer = diagnose(
        job(8, lambda r: standing(collective("recv" if r % 2 else "send", 60 + r % 2)))
    )
    assert answer.category == "desync"
    assert answer.culprits == ()
    assert answer.confidence < 0.5


def test_of_a_pipeline_the_stage_that_does_not_wait_is_named() -> None:
    """Stages wait at several lines, all for the one that saves a checkpoint."""
    save = [Frame("save", "/opt/py/lib/python3.11/site-packages/torch/serialization.py", 967)]

    def where(rank: int) -> dict[str, object]:
        if rank == 5:
            return standing([*save, *at(77, "keep")])
        return standing(collective("recv" if rank > 5 else "send", 60 + rank % 2))

    answer = diagnose(job(8, where))
    assert (answer.category, answer.culprits) == ("odd_rank", ("rank 5",))
    assert answer.line == "/home/u/train.py:77 in keep"


def test_one_that_has_left_the_loop_is_named() -> None:
    """Its data ended a batch earlier: it takes the group down while 7 wait for it."""
    end = [Frame("destroy_process_group", C10D, 2300), *at(119, "main")]
    answer = diagnose(job(8, lambda r: standing(end if r == 2 else collective("all_reduce", 41))))
    assert (answer.category, answer.culprits) == ("odd_rank", ("rank 2",))
    assert "has finished at train.py:119" in answer.sentence
    assert "drop_last" in answer.advice


def test_one_that_waits_for_ranks_which_have_finished_is_the_odd_one() -> None:
    """Seven have ended; rank 2 made a step more than there were."""
    end = [Frame("_shutdown", "/opt/py/lib/python3.11/threading.py", 1583)]
    answer = diagnose(job(8, lambda r: standing(collective("all_reduce", 41) if r == 2 else end)))
    assert (answer.category, answer.culprits) == ("desync", ("rank 2",))
    assert "they have finished" in answer.sentence


def test_a_helper_called_from_two_places_is_two_places() -> None:
    """All stand in the same line of average(), but one came there from elsewhere."""

    def where(rank: int) -> dict[str, object]:
        inner = collective("all_reduce", 12, "average")[:-1]
        return standing([*inner, Frame("main", TRAIN, 88 if rank == 1 else 70)])

    answer = diagnose(job(8, where))
    assert (answer.category, answer.culprits) == ("desync", ("rank 1",))


def test_all_in_one_place_without_a_sign_is_unknown() -> None:
    """Nothing says whether the wire, the shapes or the turn differ."""
    answer = diagnose(job(8, lambda _: standing(collective("all_reduce", 41))))
    assert (answer.category, answer.culprits, answer.confidence) == ("unknown", (), 0.0)
    assert {one.category for one in answer.alternatives} == {"link", "desync", "progresses"}


@pytest.mark.parametrize("world", [1, 8])
def test_a_step_may_take_longer_than_the_look(world: int) -> None:
    """Nothing moved in 3 s: look longer, before anything is measured; 10 s is the longest look."""

    def answer(look_s: float) -> Diagnosis:
        where = standing(collective("all_reduce", 41), look_s=look_s)
        return diagnose(job(world, lambda _: where))

    short, long = answer(3.0), answer(10.0)
    assert (short.category, short.next) == ("unknown", "preflight diagnose --look-s=10")
    assert "look longer" in short.advice
    assert (long.category, long.next) == ("unknown", "preflight check")
    assert "look longer" not in long.advice
    assert ("link" in {one.category for one in short.alternatives}) == (world > 1)


def test_what_a_node_could_not_read_is_said() -> None:
    """A driver that does not answer is a clue; equal words of many nodes are one line."""
    look = {"problems": ("GPUs: no answer in time",)}
    where = standing(collective("all_reduce", 41))
    answer = diagnose(job(24, lambda _: where, nodes={"gpu002": look, "gpu003": look}))
    assert "node gpu002 and 1 more: GPUs: no answer in time" in answer.unseen


def test_a_job_of_one_rank_has_its_line() -> None:
    """Nobody is waited for; the line is all that there is to tell."""
    answer = diagnose(job(1, lambda _: standing(at(6, "main"), wait_channel="do_wait")))
    assert (answer.category, answer.line) == ("unknown", f"{TRAIN}:6 in main")
    assert answer.sentence.startswith("rank 0 (gpu001) is alone in its job, and is in main")


def test_all_in_one_lock_of_a_file_wait_for_somebody_outside() -> None:
    """No link is doubted where the kernel says what they wait for."""
    answer = diagnose(
        job(4, lambda _: standing(at(6, "cached"), wait_channel="flock_lock_inode_wait"))
    )
    assert (answer.category, answer.culprits, answer.line) == (
        "unknown",
        (),
        f"{TRAIN}:6 in cached",
    )
    assert "wait for a lock on a file: what they wait for is outside" in answer.sentence
    assert answer.advice.startswith("see who holds the lock")
    assert answer.alternatives == ()
