"""One pair on one rail in one round: connect, climb the ladder, check the data."""

from __future__ import annotations

import time
from dataclasses import dataclass

from . import clocks, groups, pattern, plan
from .account import account, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .meeting import Meeting

LEAST = 3
"""Iterations that even a very slow link is asked for."""

_CHECKED_DOUBLINGS = 16  # after more of them in place too few bits of the data are left
_WIRE_BOUND = 64 << 10  # from this size on, time grows with the size
_BEAT_S = 0.5
_MARGIN_S = 1.0


class Unfit(Exception):  # noqa: N818 - an account, not an error of ours
    """The pair could not be measured to its end: `state` as in the controller's samples."""

    def __init__(self, state: str, error: str) -> None:
        super().__init__(error)
        self.state = state


@dataclass(frozen=True)
class Seat:
    """What a measuring process has at hand: torch, the store, the others, and who it is."""

    torch: Any
    store: Any
    meeting: Meeting
    rail: plan.Rail


def measure(seat: Seat, turn: plan.Turn, alive: Callable[[str, float], None]) -> dict[str, Any]:
    """Measure one pair and return this end's account; never raises for what the pair does.

    `alive(phase, within_s)` tells the supervisor what we do ("connect", "pair"), and that the next
    sign of life comes within that time.
    """
    rail, meeting = seat.rail, seat.meeting
    seen = account(rail, turn, "measured")
    name = f"{turn.round}/{turn.a}-{turn.b}/{rail.rail}"
    try:
        alive("connect", _connect_s(rail.go))
        begun = time.monotonic()
        group = _connect(seat, turn, name)
        alive("pair", rail.go.op_s + _BEAT_S + _MARGIN_S)
        seen["setup_ms"] = round((time.monotonic() - begun) * 1000.0, 1)
        seen["timings"] = _Ladder(seat, group, turn, alive).climb(begun)
        meeting.leave(name, turn.rank)
        meeting.await_leave(name, turn.rank, rail.go.op_s)
    except Unfit as unfit:
        seen.update(state=unfit.state, error=short(unfit))
    except RuntimeError as error:
        seen.update(state=_state_of(str(error)), error=short(error))
    meeting.leave(name, turn.rank)
    return seen


def _connect(seat: Seat, turn: plan.Turn, name: str) -> groups.Group:
    first_attempt = seat.torch.distributed.PrefixStore(f"pair/{name}/0", seat.store)
    try:
        return groups.connect(seat.torch, first_attempt, turn.rank, seat.rail)
    except RuntimeError as error:
        raise Unfit("no_connect", short(error)) from error


def _connect_s(go: plan.Go) -> float:
    """Within which a group is made or refused: NCCL also needs its first operation for it."""
    return go.meet_s + _MARGIN_S + (go.op_s if go.backend == "nccl" else 0.0)


def _state_of(message: str) -> str:
    """Tell a hang: gloo says "Timed out waiting 3000ms for recv"; anything else ended at once."""
    return "hung" if "imed out" in message or "imeout" in message else "error"


class _Ladder:
    """Climbs the sizes with one partner. Both ends take every decision together, over the wire."""

    def __init__(
        self, seat: Seat, group: groups.Group, turn: plan.Turn, alive: Callable[[str, float], None]
    ) -> None:
        self._torch = seat.torch
        self._group = group
        self._go = seat.rail.go
        self._rank = turn.rank
        self._keys = [pattern.key(seat.rail.go.seed, turn.round, rank) for rank in (0, 1)]
        self._alive = alive
        self._beaten = 0.0

    def climb(self, begun: float) -> list[dict[str, Any]]:
        """Measure size after size while the next one fits the pair's time."""
        timings: list[dict[str, Any]] = []
        for place, rung in enumerate(self._go.ladder):
            if place:
                typical_s = self._foreseen_s(self._go.ladder[place - 1], rung, timings[-1])
                ends_s = time.monotonic() - begun + typical_s * (rung.warmup + LEAST)
                if not self._agree(int(ends_s < self._go.pair_s and typical_s < self._go.op_s)):
                    break
            timings.append(self._step(rung))
        return timings

    def _foreseen_s(self, below: plan.Rung, rung: plan.Rung, timing: dict[str, Any]) -> float:
        """Time of one operation of the next size; the smallest sizes are all latency."""
        growth = rung.size_bytes / below.size_bytes if below.size_bytes >= _WIRE_BOUND else 1.0
        return _typical_s(timing["times_us"]) * growth

    def _step(self, rung: plan.Rung) -> dict[str, Any]:
        """Run one size: warm-ups, a few timed iterations, as many more as both have time for."""
        torch, group = self._torch, self._group
        buffer = torch.empty(max(1, rung.size_bytes // 4), dtype=torch.int32, device=group.device)
        pattern.fill(torch, buffer, self._keys[self._rank])
        clock = (
            clocks.CudaClock(torch, rung.size_bytes, self._beat)
            if self._go.backend == "nccl"
            else clocks.HostClock(self._beat)
        )

        def operation() -> None:
            group.reduce(buffer)

        for _ in range(rung.warmup):
            operation()
            self._beat()
        clock.restart()
        clock.run(operation, min(LEAST, rung.iterations))
        if rung.iterations > LEAST:
            affordable = int(self._go.box_s / max(min(clock.times_us) / 1e6, 1e-6))
            more = self._agree(max(LEAST, min(rung.iterations, affordable))) - LEAST
            clock.restart()
            clock.run(operation, max(0, min(more, rung.iterations - LEAST)))
        self._check(buffer, rung.warmup + len(clock.times_us))
        return {
            "size_bytes": rung.size_bytes,
            "times_us": clock.times_us,
            "gaps_us": clock.gaps_us,
        }

    def _agree(self, mine: int) -> int:
        """The smaller of both ends' numbers."""
        both = self._torch.tensor([mine], dtype=self._torch.int32, device=self._group.device)
        self._group.reduce(both, smallest=True)
        return int(both.item())

    def _check(self, buffer: Any, done: int) -> None:
        """Compare the data exactly. In place, each all-reduce after the first doubles the sum."""
        doublings = done - 1
        if doublings > _CHECKED_DOUBLINGS:
            pattern.fill(self._torch, buffer, self._keys[self._rank])
            self._group.reduce(buffer)
            doublings = 0
        wanted = pattern.expected(self._torch, buffer, self._keys)
        wanted.bitwise_left_shift_(doublings)
        wrong = pattern.first_difference(self._torch, buffer, wanted)
        if wrong is not None:
            index, got, want = wrong
            raise Unfit(
                "corrupt",
                f"element {index} of {buffer.numel()} int32 came out as "
                f"0x{got:08x}, must be 0x{want:08x}",
            )

    def _beat(self) -> None:
        """Tell the supervisor now and then that we live; cheap enough for between operations."""
        now = time.monotonic()
        if now - self._beaten > _BEAT_S:
            self._beaten = now
            self._alive("pair", self._go.op_s + _BEAT_S + _MARGIN_S)


def _typical_s(times_us: list[float]) -> float:
    return sorted(times_us)[len(times_us) // 2] / 1e6
