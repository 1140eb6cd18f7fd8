"""One job's moment, sorted for the judges: who waits, who is elsewhere, who cannot be read."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING

from preflight.hang.diagnose.model import IDLE, Standing, doing
from preflight.hang.diagnose.places import CODE, LOCKED, OTHERS, channel_words

if TYPE_CHECKING:
    from preflight.hang.diagnose.model import JobState, Seat
    from preflight.hang.diagnose.rank_inventory import Roll

_LIVELY = 5
"""A main thread that waits in a collective gives up the CPU once, not so often in some seconds."""
_FLOW = 1 << 20
"""Bytes a second: what a training step moves, and a heartbeat does not."""


class Case:
    """What all judges look at."""

    def __init__(self, state: JobState, roll: Roll) -> None:
        self.state = state
        self.roll = roll
        self.seats = roll.seats

    @cached_property
    def read(self) -> tuple[Seat, ...]:
        """Ranks whose place is known."""
        return tuple(one for one in self.seats if one.place is not None)

    @cached_property
    def unread(self) -> tuple[Seat, ...]:
        """Ranks that are there, and show no stack."""
        return tuple(one for one in self.seats if one.place is None and one not in self.held)

    @cached_property
    def held(self) -> tuple[Seat, ...]:
        """Ranks that hang in the kernel, so that not even their stack can be read."""
        return tuple(one for one in self.seats if one.place is None and one.look.state == "disk")

    @cached_property
    def ended(self) -> tuple[Seat, ...]:
        """Ranks that have left their work and take the group down, or are in their exit."""
        return tuple(one for one in self.read if one.place and one.place.kind == "end")

    @cached_property
    def waiting(self) -> tuple[Seat, ...]:
        """Ranks that wait for other ranks or their GPU, and most of the ranks at one still line."""
        plain = [one for one in self.read if one.waits and one not in self.ended]
        line = self._same_line() if len(plain) * 2 < self.roll.world else []
        ranks = {one.rank for one in (*plain, *line)}
        return tuple(one for one in self.read if one.rank in ranks)

    def _same_line(self) -> list[Seat]:
        """Most of the ranks stand still at one line of the user's: they wait there.

        A collective that was begun before is waited for in C++ (`work.wait()`, `loss.item()`): in a
        lock or a poll, and not in a file's lock, a pipe or a sleep.
        """
        still = [
            one
            for one in self.read
            if one.place
            and one.place.kind == CODE
            and one.steady
            and not one.computes
            and one.look.state != "disk"
            and channel_words(one.look.wait_channel) in ("", LOCKED)
        ]
        spots = Counter(one.place.key for one in still if one.place)
        spot, number = max(spots.items(), key=lambda item: item[1], default=(None, 0))
        if number * 2 <= self.roll.world:
            return []
        return [one for one in still if one.place and one.place.key == spot]

    @cached_property
    def elsewhere(self) -> tuple[Seat, ...]:
        """Ranks that do something of their own."""
        apart = {one.rank for one in (*self.waiting, *self.ended)}
        return (*(one for one in self.read if one.rank not in apart), *self.held)

    @cached_property
    def moving(self) -> tuple[Seat, ...]:
        """Ranks that went on between the looks, or compute."""
        return tuple(one for one in self.seats if moved(one))

    @cached_property
    def stuck(self) -> tuple[Seat, ...]:
        """Ranks that wait, and were seen to wait for the same in all looks; nobody if some go on.

        A rank of a healthy job may be met twice in one place; not all of those that wait.
        """
        if self._flows() or any(moved(one) for one in self.waiting):
            return ()
        if any(one.came_through for one in self.read):
            return ()
        return tuple(one for one in self.waiting if one.steady)

    def _flows(self) -> bool:
        """Most of the job's nodes move data through their RDMA ports: no rank's kernel tells."""
        spans = {one.node: one.look.look_s for one in self.seats}
        looks = {node: look for node, look in self.state.looks.items() if node in spans}
        moved_bytes = [
            max((p.received for p in look.ports or () if "/" in p.name), default=0)
            / max(spans[node], 0.1)
            for node, look in looks.items()
        ]
        return sum(each >= _FLOW for each in moved_bytes) * 2 > len(looks)

    @cached_property
    def quiet_s(self) -> float | None:
        """Since data last came between ranks; None where they meet by other ways than TCP."""
        if any(one.look.gpus for one in self.seats):
            return None
        told = [wire.end.quiet_s for wire in self.roll.wires if wire.end.quiet_s is not None]
        return min(told, default=None)

    @cached_property
    def standings(self) -> tuple[Standing, ...]:
        """Who stands where; the most first."""
        rows: dict[tuple[str, str], list[int]] = {}
        for seat in self.seats:
            rows.setdefault(_row(seat), []).append(seat.rank)
        ordered = sorted(rows.items(), key=lambda item: (-len(item[1]), item[1]))
        return tuple(
            Standing(ranks=tuple(ranks), where=where, what=what) for (where, what), ranks in ordered
        )

    def spots(self, seats: tuple[Seat, ...]) -> list[tuple[Seat, ...]]:
        """Ranks by what they wait in; the most first."""
        groups: dict[object, list[Seat]] = {}
        for seat in seats:
            groups.setdefault(seat.place.key if seat.place else None, []).append(seat)
        ordered = sorted(groups.values(), key=lambda group: (-len(group), group[0].rank))
        return [tuple(group) for group in ordered]

    def meeting(self, seats: tuple[Seat, ...]) -> str:
        """` in all_reduce (train.py:41)` where all of them stand in one place, else nothing."""
        groups = self.spots(seats)
        place = groups[0][0].place
        return f" in {place.where}" if place and len(groups) == 1 else ""


def moved(seat: Seat) -> bool:
    """Whether it went on: other lines, bytes from other ranks, or turns of work while it waited."""
    if seat.place is None:
        return bool(seat.fed)
    if seat.waits:
        turns = seat.place.kind in OTHERS and seat.cpu > IDLE and seat.look.switches > _LIVELY
        return seat.went_on or turns
    return seat.went_on or seat.computes


def _row(seat: Seat) -> tuple[str, str]:
    states = {
        "stopped": "is stopped",
        "traced": "is held by a debugger",
        "zombie": "is dead",
        "gone": "is gone",
    }
    what = states.get(seat.look.state, "")
    if seat.place is None and seat.look.state == "disk":
        return seat.look.wait_channel or "disk", doing(seat)
    if seat.place is None:
        return seat.look.wait_channel or seat.look.state, what or "no stack"
    if what:
        return seat.place.where, what
    return seat.place.where, doing(seat)
