"""The pieces that run on a node: data that is checked, lines that stay whole."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from sweep import lines, main, meeting, pair, pattern, plan  # noqa: E402  needs torch's skip first

GO: dict[str, Any] = {
    "run": "r", "index": 0, "nodes": 2, "rails": 1, "backend": "gloo", "address": "a",
    "towards": "b", "interface": None, "store": ["a", 1], "seed": 7, "min_nodes": 2,
    "ladder": [[64, 2, 10], [4096, 1, 50]], "meet_s": 1, "op_s": 1, "box_s": 1, "pair_s": 5,
    "barrier_s": 1, "join_s": 1, "last_call_s": 1,
    "turns": [{"round": 0, "a": "h1", "b": "h2", "rank": 0, "partner": 1}, None],
}  # fmt: skip


class Partner:
    """Stands for a two-ended group whose other end does its part, but for one flipped bit."""

    device = torch.device("cpu")

    def __init__(self, flip_at: int | None) -> None:
        self.operations = 0
        self._flip_at = flip_at
        self._other: Any = None

    def reduce(self, tensor: Any, *, smallest: bool = False) -> None:
        """Add what the other end has: its pattern at first, then the same sum as we."""
        if smallest:
            return
        mine = torch.empty_like(tensor)
        pattern.fill(torch, mine, pattern.key(7, 0, 0))
        if torch.equal(mine, tensor):
            self._other = torch.empty_like(tensor)
            pattern.fill(torch, self._other, pattern.key(7, 0, 1))
        tensor.add_(self._other)
        self.operations += 1
        if self.operations == self._flip_at:
            tensor[5] ^= 1
        self._other = tensor.clone()


def _climb(flip_at: int | None) -> list[dict[str, Any]]:
    go = plan.read(GO)
    seat = pair.Seat(torch, None, None, plan.Rail(go, 0, "a", ("a", 1), 2))  # type: ignore[arg-type]
    assert go.turns[0] is not None
    ladder = pair._Ladder(seat, Partner(flip_at), go.turns[0], lambda *_: None)  # type: ignore[arg-type]
    return ladder.climb(0.0 if flip_at else 1e18)


def test_right_data_is_measured() -> None:
    """Every size yields as many times as were agreed on, and gaps beside them."""
    timings = _climb(None)
    assert [timing["size_bytes"] for timing in timings] == [64, 4096]
    assert [len(timing["times_us"]) for timing in timings] == [10, 50]


@pytest.mark.parametrize("operation", [1, 3, 12])
def test_one_wrong_bit_in_any_operation_is_found(operation: int) -> None:
    """Warm-up, first or last timed one: the element is named with both values."""
    with pytest.raises(pair.Unfit, match="element 5 of 16") as caught:
        _climb(operation)
    assert caught.value.state == "corrupt"


def test_no_two_ends_send_the_same_data() -> None:
    """Keys differ by seed, round and rank."""
    ends = product((1, 2), range(50), (0, 1))
    keys = {pattern.key(seed, number, rank) for seed, number, rank in ends}
    assert len(keys) == 200


def test_long_lines_stay_whole_and_half_a_line_is_dropped() -> None:
    """A pipe takes 64 KiB at once; a killed writer leaves a line without its end."""
    reading, writing = os.pipe()

    def write() -> None:
        lines.write(writing, {"long": "x" * 200_000})
        os.write(writing, b'{"half":')
        os.close(writing)

    writer = threading.Thread(target=write)
    writer.start()
    reader = lines.Reader(reading)
    assert reader.next(10.0) == {"long": "x" * 200_000}
    assert reader.next(10.0) is None
    writer.join()
    os.close(reading)


def test_a_late_line_is_a_timeout() -> None:
    """Silence is noticed after the time that the writer itself had announced."""
    reading, writing = os.pipe()
    with pytest.raises(TimeoutError):
        lines.Reader(reading).next(0.01)
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(("said", "heard"), [(b"", ["trouble"]), (b'{"event":"rail_done"}\n', [])])
def test_a_rank_that_dies_without_a_word_is_a_trouble(said: bytes, heard: list[str]) -> None:
    """The end of its pipe is not the end of its rounds."""
    reading, writing = os.pipe()
    os.write(writing, said)
    os.close(writing)
    told: list[dict[str, Any]] = []
    main._relay(reading, told.append)
    os.close(reading)
    assert [one["event"] for one in told] == heard


def test_who_misses_one_round_may_come_to_the_next_and_who_misses_two_is_struck() -> None:
    """Held up by a bad partner once: the others go on, and wait for it again in the next round."""
    store = torch.distributed.HashStore()
    late, other = meeting.Meeting(store, 0, 2), meeting.Meeting(store, 1, 2)
    with ThreadPoolExecutor(2) as both:
        first = [both.submit(one.arrive, 0, 10.0) for one in (late, other)]
    assert all(one.result() for one in first)
    assert other.arrive(1, 0.05)
    assert other.missed(1, 0)
    assert not late.arrive(1, 0.05)
    with ThreadPoolExecutor(2) as both:
        again = [both.submit(one.arrive, 2, 10.0) for one in (late, other)]
    assert all(one.result() for one in again)
    assert other.arrive(3, 0.05)
    assert late.struck(0)
    assert not late.arrive(4, 0.05)


def test_nobody_waits_for_a_member_that_is_known_to_be_lost() -> None:
    """Struck while others stand at the barrier, they go on, and so do all later rounds."""
    store = torch.distributed.HashStore()
    lost, *others = (meeting.Meeting(store, number, 3) for number in range(3))
    with ThreadPoolExecutor(3) as all_three:
        first = [all_three.submit(one.arrive, 0, 10.0) for one in (lost, *others)]
        assert all(one.result() for one in first)
        waiting = all_three.submit(others[0].arrive, 1, 60.0)
        lost._count_in(1)
        meeting.Meeting(store, -1, 3).strike(0, 3)
        assert not store.check(["begin/1"])
        assert others[1].arrive(1, 60.0)
        assert waiting.result()
    with ThreadPoolExecutor(2) as both:
        assert all(both.map(lambda one: one.arrive(2, 60.0), others))
    assert not any(store.check([f"striker/{number}"]) for number in range(3))
    assert not lost.arrive(2, 60.0)
