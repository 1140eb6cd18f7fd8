"""Size after size with one partner, and then one size for longer; all ends decide together."""

from __future__ import annotations

import time

from . import clocks, plan, stopping, verify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from . import groups, pattern

LEAST = 3
"""Iterations that even a very slow link is asked for."""

BEAT_S = 0.5
MARGIN_S = 1.0

_SUMS = 2
"""All-reduces of each type of `verify.FLOATS`."""

_LARGE, _HELD = 256 << 20, 5
_WIRE_BOUND = 64 << 10  # from this size on, time grows with the size
_SPOILT, _STOP, _GO_ON = -1, 0, 1  # the smallest of all ends' words counts


class Ladder:
    """Climbs the sizes. All ends take every decision together, over the wire."""

    def __init__(
        self,
        torch: Any,
        group: groups.Group,
        go: plan.Go,
        ends: pattern.Ends,
        alive: Callable[[str, float], None],
    ) -> None:
        self.timings: list[dict[str, Any]] = []
        self.data: verify.Data | None = None
        """Of the last size."""
        self.spoilt = False
        """At one of the ends, or both, that size's data came out wrong."""
        self._torch = torch
        self._group = group
        self._go = go
        self._rank = ends.rank
        self.keys = ends.keys
        self._alive = alive
        self._beaten = 0.0

    def climb(self, begun: float, base: float, *, soak: bool = True) -> None:
        """Measure size after size while the next one fits the pair's time, then soak (or do not).

        `begun`: when the pair's time began; `base`: what each timing's `began_s` counts from.
        """
        for place, rung in enumerate(self._go.ladder):
            if place and not self._goes_on(rung, begun, self._go.pair_s):
                break
            self._step(rung, "ladder", self._go.box_s, base)
        self._sum_floats(begun)
        longest = self._go.soak if soak else None
        if longest is None or self.spoilt:
            self.spoilt = self.spoilt or self._agree(self._word(fits=True)) == _SPOILT
        elif self._goes_on(longest, begun, self._go.pair_s + self._go.soak_s):
            self._step(longest, "soak", self._go.soak_s, base)
            self.spoilt = self._agree(self._word(fits=True)) == _SPOILT

    def _sum_floats(self, begun: float) -> None:
        """Sum what jobs sum, too, at the last size but one, as long as all came out right."""
        size_bytes: int = self.timings[-2:][0]["size_bytes"]
        for dtype in () if self.spoilt else verify.FLOATS[self._go.backend]:
            if not self._goes_on(plan.Rung(size_bytes, 0, _SUMS), begun, self._go.pair_s):
                break
            self.data = self.repeat(size_bytes, _SUMS, dtype)

    def repeat(self, size_bytes: int, operations: int, dtype: str) -> verify.Data:
        """Do so many more all-reduces of one size, each checked; return their data."""
        torch, device = self._torch, self._group.device
        data = verify.Data(torch, device, size_bytes, self.keys, self._rank, each=True, dtype=dtype)
        for _ in range(operations):
            self._group.reduce(data.buffer)
            data.check()
            self._beat()
        data.settle(self._group)
        return data

    def _goes_on(self, rung: plan.Rung, begun: float, within_s: float) -> bool:
        """Whether both ends found the last size right, and expect this one to fit."""
        typical_s = self._foreseen_s(rung)
        ends_s = time.monotonic() - begun + typical_s * (rung.warmup + LEAST)
        fits = ends_s < within_s and typical_s < self._go.op_s and self._has_room(rung)
        word = self._agree(self._word(fits=fits))
        self.spoilt = word == _SPOILT
        return word == _GO_ON

    def _has_room(self, rung: plan.Rung) -> bool:
        """Whether the device has memory for a size: checked data take up to five times as much."""
        if rung.size_bytes < _LARGE or self._group.device.type != "cuda":
            return True
        free, _ = self._torch.cuda.mem_get_info(self._group.device)
        return bool(free > _HELD * rung.size_bytes)

    def _word(self, *, fits: bool) -> int:
        if self.data is not None and self.data.wrong:
            return _SPOILT
        return _GO_ON if fits else _STOP

    def _foreseen_s(self, rung: plan.Rung) -> float:
        """Time of one operation of that size; the smallest sizes are all latency."""
        below = [timing for timing in self.timings if timing["size_bytes"] <= rung.size_bytes]
        best = max(below or self.timings, key=lambda timing: int(timing["size_bytes"]))
        times_us: list[float] = sorted(best["times_us"])
        size_bytes: int = best["size_bytes"]
        growth = rung.size_bytes / size_bytes if size_bytes >= _WIRE_BOUND else 1.0
        return times_us[len(times_us) // 2] / 1e6 * growth

    def _step(self, rung: plan.Rung, phase: str, box_s: float, base: float) -> None:
        """Run one size: warm-ups, a few timed iterations, as many more as both have time for."""
        data = verify.Data(self._torch, self._group.device, rung.size_bytes, self.keys, self._rank)
        self.data = data
        clock: clocks.Clock = (
            clocks.CudaClock(self._torch, rung.size_bytes, self._beat)
            if self._go.backend == "nccl"
            else clocks.HostClock(self._beat)
        )

        def operation() -> None:
            self._group.reduce(data.buffer)

        clock.warm_up(operation, data.check, rung.warmup)
        clock.restart()
        clock.run(operation, data.check, min(LEAST, rung.iterations))
        stopped = ""
        if rung.iterations > LEAST:
            wanted = self._agree(_affordable(rung, box_s, clock.one_s()))
            most_s = stopping.within_s(self._go, phase, box_s)
            stopped = self._run_on(clock, operation, rung, wanted, (box_s, most_s))
        data.settle(self._group)
        timing = {"size_bytes": rung.size_bytes, "phase": phase, **clock.timing(base)}
        self.timings.append(dict(timing, stopped=stopped))

    def _run_on(
        self,
        clock: clocks.Clock,
        operation: Callable[[], None],
        rung: plan.Rung,
        wanted: int,
        limits_s: tuple[float, float],
    ) -> str:
        """Go on up to so many, or as many as both ends want; say why they stopped, if they did.

        `limits_s`: the box for all of them, and the most. Where CPUs are shared the first three
        tell too little of how many fit into the box: after each part both ends count again.
        """
        assert self.data is not None
        every, begun = stopping.every(self.data.size_bytes), time.monotonic()
        box_s, most_s = limits_s
        while (left := wanted - len(clock.times_us)) > 0:
            clock.restart()
            clock.run(operation, self.data.check, min(left, every))
            if left > every:
                spent_s = time.monotonic() - begun
                mine = stopping.wanted(clock.times_us, spent_s, most_s, self._go.condemn)
                word, fitting = self._agreed(mine, _affordable(rung, box_s, clock.usual_s()))
                if word != stopping.GO_ON:
                    return stopping.WORDS.get(word, "")
                wanted = min(wanted, fitting)
        return ""

    def _agree(self, mine: int) -> int:
        """The smaller of both ends' numbers."""
        return self._agreed(mine)[0]

    def _agreed(self, *mine: int) -> list[int]:
        """Of each number the smaller one of both ends."""
        both = self._torch.tensor(mine, dtype=self._torch.int32, device=self._group.device)
        self._group.reduce(both, smallest=True)
        return [int(number) for number in both.tolist()]

    def _beat(self) -> None:
        """Tell the supervisor now and then that we live; cheap enough for between operations."""
        now = time.monotonic()
        if now - self._beaten > BEAT_S:
            self._beaten = now
            self._alive("pair", self._go.op_s + BEAT_S + MARGIN_S)


def _affordable(rung: plan.Rung, box_s: float, one_s: float) -> int:
    return max(LEAST, min(rung.iterations, int(box_s / max(one_s, 1e-6))))
