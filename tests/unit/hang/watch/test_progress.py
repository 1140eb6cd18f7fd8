"""When a job is looked into: once half of its ranks did next to nothing, by their own measure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from preflight.hang.watch.progress import Rates, Reading, Track, stalled

if TYPE_CHECKING:
    from collections.abc import Iterable

BUSY = Rates(faults=2000, switches=900, calls=300, moved=5e6)
IDLE = Rates(faults=2, switches=4, calls=1, moved=300)
WINDOW_S = 60.0


class _Rank:
    """A rank that does so much per second for a while, then something else."""

    def __init__(self, started: int = 1) -> None:
        self.track = Track(WINDOW_S)
        self._done = [0.0, 0.0, 0.0, 0.0]
        self._now_s, self._started = 0.0, started

    def does(self, rates: Rates, seconds: int, *, every_s: int = 5) -> _Rank:
        for _ in range(0, seconds, every_s):
            self._now_s += every_s
            self._done = [one + rate * every_s for one, rate in zip(self._done, rates, strict=True)]
            faults, switches, calls, moved = map(int, self._done)
            self.track.add(
                self._now_s, Reading(self._started, "S", 0.0, faults, switches, calls, moved)
            )
        return self


def _ranks(*histories: Iterable[tuple[Rates, int]]) -> list[Track]:
    ranks = []
    for history in histories:
        rank = _Rank()
        for rates, seconds in history:
            rank.does(rates, seconds)
        ranks.append(rank.track)
    return ranks


def test_a_job_that_works() -> None:
    """No suspicion, neither while it starts nor after."""
    assert not stalled([])
    assert not stalled(_ranks([(BUSY, 10)], [(BUSY, 10)]))
    assert not stalled(_ranks([(BUSY, 600)], [(BUSY, 600)]))


def test_all_came_to_a_stop() -> None:
    """Looked into a window after the stop, and not before."""
    early, late = [(BUSY, 600), (IDLE, 50)], [(BUSY, 600), (IDLE, 70)]
    assert not stalled(_ranks(early, early))
    assert stalled(_ranks(late, late))


def test_one_works_on_and_all_others_wait() -> None:
    """An evaluation of rank 0: of two ranks, and of eight."""
    on, waits = [(BUSY, 700)], [(BUSY, 600), (IDLE, 100)]
    assert stalled(_ranks(on, waits))
    assert stalled(_ranks(on, *[waits] * 7))
    assert not stalled(_ranks(on, on, waits))


def test_a_hang_at_the_start() -> None:
    """Without any past of its own the floors decide."""
    assert stalled(_ranks([(BUSY, 20), (IDLE, 80)]))


def test_steps_of_minutes_are_no_stall() -> None:
    """Work in bursts with silence between them that is shorter than the window."""
    rank = _Rank()
    for _ in range(20):
        rank.does(BUSY, 10)
        assert not any(rank.does(IDLE, 5).track.quiet for _ in range(10))


def test_what_is_usual_for_it_is_no_stall() -> None:
    """After a closer look that found it working, its quiet ways are its usual ones."""
    slow = Rates(faults=90, switches=60, calls=9, moved=40_000)
    rank = _Rank().does(BUSY, 600).does(slow, 90)
    assert rank.track.quiet
    rank.track.learn()
    assert not rank.does(slow, 30).track.quiet


def test_a_pause_of_ours_is_no_stall_of_theirs() -> None:
    """Ctrl-Z and an hour later fg: what lies between was nobody's."""
    rank = _Rank().does(BUSY, 600)
    rank._now_s += 3600
    rank.track.forget()
    assert not rank.does(BUSY, 20).track.quiet


def test_another_process_of_that_pid_begins_anew() -> None:
    """A rank that was started again has no past."""
    rank = _Rank().does(BUSY, 600)
    rank._started, rank._done = 2, [0.0] * 4
    assert rank.does(BUSY, 30).track.rates is None


@given(
    st.lists(st.tuples(st.floats(0, 1e9), *[st.integers(0, 2**62)] * 4), min_size=1, max_size=50)
)
def test_no_numbers_break_it(looks: list[tuple[float, int, int, int, int]]) -> None:
    """Counters that jump, stand or go back, and clocks that do: a job of one rank is as it is."""
    track = Track(WINDOW_S)
    for now_s, *counts in looks:
        faults, switches, calls, moved = counts
        track.add(now_s, Reading(1, "R", 0.0, faults, switches, calls, moved))
        assert stalled([track]) == track.quiet
