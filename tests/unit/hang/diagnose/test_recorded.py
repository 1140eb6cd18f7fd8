"""Flight recorders number the calls: whose differs, and who has not come to one."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import pytest

from preflight.facts.job import Dump
from preflight.hang.diagnose import all_wait
from preflight.hang.diagnose.diagnosis import diagnose
from preflight.hang.plain_pickle import Allowance
from tests.patterns.growth import steepness, work
from tests.unit.hang.diagnose.jobs import collective, job, standing
from tests.unit.hang.recordings import dump, entry, pending

WAITING = standing(collective("all_reduce", 41))
BEFORE = [entry(number) for number in range(1, 7)]


def all_but(rank: int, *odd: dict[str, Any], of: tuple[dict[str, Any], ...]) -> Any:
    """Every rank has made six calls; then one did something else."""
    return lambda r: {**WAITING, "dump": dump(*BEFORE, *(odd if r == rank else of))}


@pytest.mark.parametrize("world", [4, 8, 32])
def test_a_shape_that_differs(world: int) -> None:
    """All stand in one line; rank 2's tensor is empty, and it went on to the next call."""
    odd = (entry(7, input_sizes=[[0]]), pending(8))
    answer = diagnose(job(world, all_but(2, *odd, of=(pending(7),))))
    assert (answer.category, answer.culprits) == ("desync", ("rank 2",))
    assert "call 7" in answer.sentence
    assert "rank 2 calls all_reduce of [0] Float" in answer.sentence
    assert "all_reduce of [64, 64] Float" in answer.sentence
    assert answer.confidence >= 0.9


def test_another_operation_under_the_same_number() -> None:
    """Rank 0 broadcasts what the others reduce."""
    answer = diagnose(job(8, all_but(0, pending(7, "broadcast"), of=(pending(7),))))
    assert (answer.category, answer.culprits) == ("desync", ("rank 0",))
    assert "rank 0 calls broadcast" in answer.sentence


def test_of_two_ranks_neither_is_called_the_odd_one() -> None:
    """The answer has the calls, but no culprit."""
    answer = diagnose(job(2, all_but(0, pending(7, "broadcast"), of=(pending(7),))))
    assert (answer.category, answer.culprits) == ("desync", ())


def test_one_that_has_not_come_to_a_call() -> None:
    """All its calls have ended; the others wait in the next."""
    answer = diagnose(job(8, all_but(5, of=(pending(7),))))
    assert answer.culprits == ("rank 5",)
    assert "has not reached call 7 of group 0 (default_pg): all_reduce" in answer.sentence


def test_ranks_whose_stacks_nobody_may_read() -> None:
    """Without py-spy the recorders still tell."""
    blind = {"stacks": None, "later": None, "no_stacks": "ptrace is not allowed: echo 0 > ..."}
    answer = diagnose(job(8, lambda r: {**all_but(5, of=(pending(7),))(r), **blind}))
    assert (answer.category, answer.culprits) == ("odd_rank", ("rank 5",))
    assert answer.unseen == ("ranks 0-7: ptrace is not allowed: echo 0 > ...",)
    assert answer.confidence <= 0.5


def test_uneven_shapes_by_right_are_no_difference() -> None:
    """all_to_all takes what each has."""
    answer = diagnose(
        job(
            4,
            lambda r: {
                **WAITING,
                "dump": dump(pending(1, "all_to_all_base", input_sizes=[[r + 1, 8]])),
            },
        )
    )
    assert answer.category == "unknown"


def test_files_of_an_earlier_run_are_left_alone() -> None:
    """A file older than its process tells of another job."""
    old = dump(pending(3, "broadcast"), written_s=2e9 - 4000)
    answer = diagnose(
        job(8, lambda r: {**WAITING, "dump": old if r == 1 else dump(*BEFORE, pending(7))})
    )
    assert answer.category == "unknown"


def test_a_sub_group_has_its_own_numbers() -> None:
    """Ranks 2 and 3 wait for each other under different shapes; the rest waits for both."""
    tp: dict[str, Any] = {"process_group": ["3", "tp"]}

    def where(rank: int) -> dict[str, Any]:
        if rank in (2, 3):
            return {**WAITING, "dump": dump(*BEFORE, pending(9, input_sizes=[[rank]], **tp))}
        return {**WAITING, "dump": dump(*BEFORE, pending(7, time_created_ns=10**6))}

    answer = diagnose(job(8, where))
    assert answer.category == "desync"
    assert "group 3 (tp), call 9" in answer.sentence


def test_who_is_held_up_in_a_sub_group_is_not_late_in_another() -> None:
    """Ranks 2 and 3 wait alike in their own group: nothing differs, so nobody is named."""
    tp: dict[str, Any] = {"process_group": ["3", "tp"]}
    held = dump(*BEFORE, pending(9, **tp))
    answer = diagnose(
        job(8, lambda r: {**WAITING, "dump": held if r in (2, 3) else dump(*BEFORE, pending(7))})
    )
    assert answer.category == "unknown"


def test_only_the_numbers_that_are_there_are_walked() -> None:
    """A file of some hundred bytes, a user's own: one call, and another a million numbers later."""
    late = {0: (entry(1),), 1: (entry(1), pending(1_000_000))}
    looks = job(2, lambda r: {**WAITING, "dump": dump(*late[r])})
    assert work(lambda: diagnose(looks)) < 10_000


@pytest.mark.slow
def test_calls_that_nobody_shares_are_walked_once() -> None:
    """Each rank waits in calls of its own numbers."""
    counts = []
    for many in (50, 100, 200):
        calls = {r: [pending(r + 8 * at) for at in range(many)] for r in range(8)}
        looks = job(8, lambda r, calls=calls: {**WAITING, "dump": dump(*calls[r])})  # type: ignore[misc]
        counts.append(work(lambda looks=looks: diagnose(looks)))  # type: ignore[misc]
    assert steepness(counts) < 1.13, counts


@pytest.mark.slow
def test_one_node_does_not_keep_the_reader_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What all dumps of a node take is bounded; those of other nodes are read as ever."""
    monkeypatch.setattr(all_wait, "Allowance", lambda: Allowance(steps=9_000), raising=False)
    spinning = b"\x80\x02}X\x07\0\0\0entries]" + b"N0" * 3000 + b"s."
    content = base64.b64encode(zlib.compress(spinning)).decode()
    hostile = Dump(written_s=2e9, content=content)
    others = all_but(70, pending(7, "broadcast"), of=(pending(7),))
    counts = []
    for many in (2, 16):

        def seen(rank: int, many: int = many) -> dict[str, Any]:
            return others(rank) if rank >= many else {**WAITING, "dump": hostile}

        state = job(128, seen, per_node=16)
        answer = diagnose(state)
        assert (answer.category, answer.culprits) == ("desync", ("rank 70",))
        counts.append(work(lambda state=state: diagnose(state)))  # type: ignore[misc]
    assert counts[1] < counts[0] + 6000 * 4
