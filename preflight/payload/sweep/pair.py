"""One pair on one rail in one round: connect, climb the ladder, soak; look into wrong data.

Looked at every so many operations, and decided by both ends together, so that nobody waits for an
operation that the other no longer makes.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

from . import clocks, plan, process_groups, verify
from .counters import PATIENCE_S
from .plan import WHOLE_LIMIT, account, because, printable, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .counters import Watch
    from .process_groups import Meeting
    from .transports import Means

    Alive = Callable[[str, float], None]

GO_ON, TIME, SPIKES = 2, 1, 0
"""What an end wants; the smallest of both counts."""

WORDS = {TIME: "time", SPIKES: "spikes"}

_SHARE = 0.5
_LARGE_BYTES = 1 << 20


def operations_at_once(size_bytes: int) -> int:
    """After how many operations both ends look: one more small all-reduce."""
    return 64 if size_bytes < _LARGE_BYTES else 16


def within_s(go: plan.Go, phase: str, box_s: float) -> float:
    """How long one size may take: its box where all is well, at most half of the pair's time."""
    return box_s * (phase == "soak") + go.pair_s * _SHARE


def operations_left(
    times_us: list[float], spent_s: float, most_s: float, condemn: plan.Condemn | None
) -> int:
    """What this end wants after these operations."""
    if condemn is not None and evidence(times_us, condemn) >= condemn.nats:
        return SPIKES
    return TIME if spent_s > most_s else GO_ON


def evidence(times_us: list[float], condemn: plan.Condemn) -> float:
    """Nats for "as often as is unusual" against "as usual": Wald's sequential test."""
    cut_us = max(condemn.spike_us, clocks.SPIKE_MEDIANS * sorted(times_us)[len(times_us) // 2])
    spikes = sum(1 for time_us in times_us if time_us > cut_us)
    usual, unusual = condemn.usual, condemn.unusual
    clean = len(times_us) - spikes
    return spikes * math.log(unusual / usual) + clean * math.log((1 - unusual) / (1 - usual))


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
        group: process_groups.Group,
        go: plan.Go,
        ends: verify.Ends,
        alive: Alive,
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
            most_s = within_s(self._go, phase, box_s)
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
        every, begun = operations_at_once(self.data.size_bytes), time.monotonic()
        box_s, most_s = limits_s
        while (left := wanted - len(clock.times_us)) > 0:
            clock.restart()
            clock.run(operation, self.data.check, min(left, every))
            if left > every:
                spent_s = time.monotonic() - begun
                mine = operations_left(clock.times_us, spent_s, most_s, self._go.condemn)
                word, fitting = self._agreed(mine, _affordable(rung, box_s, clock.usual_s()))
                if word != GO_ON:
                    return WORDS.get(word, "")
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


_AGAIN = 8
"""All-reduces with the roles swapped, after wrong data."""


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
    means: Means
    watch: Watch
    steps: clocks.Steps
    connected: list[process_groups.Group] = field(default_factory=list)
    """Those in use: an end that closed its own first could cut off the other's last bytes."""

    def connect(self, prefix: str, rank: int, size: int = 2) -> process_groups.Group:
        """Meet the other ends under that prefix of the store; Unfit when they do not."""
        store = self.torch.distributed.PrefixStore(prefix, self.store)
        try:
            group = process_groups.connect(self.torch, store, rank, self.rail, size)
        except RuntimeError as error:
            why = because(short(error), self.means.reason())
            raise Unfit("no_connect", why) from error
        self.connected.append(group)
        return group

    def close(self) -> None:
        """Give back what all groups hold; when the others have left them, or nothing works."""
        while self.connected:
            self.connected.pop().close()


def measure(seat: Seat, turn: plan.Turn, alive: Alive) -> dict[str, Any]:
    """Measure one pair and return this end's account; never raises for what the pair does.

    `alive(phase, within_s)` tells the supervisor what we do ("connect", "pair"), and that the next
    sign of life comes within that time.
    """
    go, meeting = seat.rail.go, seat.meeting
    name = f"{turn.round}/{turn.a}-{turn.b}/{seat.rail.rail}"

    def climb(seen: dict[str, Any]) -> None:
        ladder, found = climbed(seat, f"pair/{name}/0", _ends(seat, turn), go, alive)
        alive("pair", go.op_s + BEAT_S + MARGIN_S)
        error = _look_into(seat, turn, name, ladder, alive) if ladder.spoilt else ""
        seen.update(found)
        if error:
            raise Unfit("corrupt", error)
        meeting.leave(name, turn.rank)
        meeting.await_leave(name, turn.rank, go.op_s)

    seen = account(seat.rail, turn, "measured")
    alive("connect", go.meet_s + MARGIN_S)
    before = attempt(seat, seen, alive, lambda: _agree(seat, turn, name), climb)
    meeting.leave(name, turn.rank)
    seen["stepped_s"] = seat.steps.step_s()
    alive("pair", PATIENCE_S + MARGIN_S)
    if not seen["net"]:  # it broke off before it was asked: what the library meant to use
        seen["net"] = printable(seat.means.words())
    if before is not None:
        seen.update(seat.watch.since(before, seat.means))
    return seen


def attempt(
    seat: Seat,
    seen: dict[str, Any],
    alive: Alive,
    meet: Callable[[], None],
    climb: Callable[[dict[str, Any]], None],
) -> dict[str, Any] | None:
    """Meet the others and climb; what goes wrong is put into `seen`, as far as it came.

    Return what the counters were before the load; None where it did not come to that.
    """
    before = None
    try:
        meet()
        alive("connect", connect_s(seat.rail.go) + PATIENCE_S)
        seat.means.prepare()
        before = seat.watch.read(seat.means.question())
        climb(seen)
    except Unfit as unfit:
        seen.update(state=unfit.state, error=printable(str(unfit), WHOLE_LIMIT))
    except RuntimeError as failure:
        error = because(short(failure), seat.means.reason())
        seen.update(state=state_of(str(failure)), error=error)
    return before


def climbed(
    seat: Seat, prefix: str, ends: verify.Ends, go: plan.Go, alive: Alive, *, soak: bool = True
) -> tuple[Ladder, dict[str, Any]]:
    """Connect under that prefix and climb; return what an account says of it, too."""
    begun = time.monotonic()
    group = seat.connect(prefix, ends.rank, len(ends.keys))
    met = time.monotonic()
    alive("pair", go.op_s + BEAT_S + MARGIN_S)
    started_s, setup_ms = clocks.now_s(), round((met - begun) * 1000.0, 1)
    ladder = Ladder(seat.torch, group, go, ends, alive)
    ladder.climb(begun, met, soak=soak)
    found = {"started_s": started_s, "setup_ms": setup_ms, "timings": ladder.timings}
    return ladder, {**found, "net": printable(seat.means.words())}


def _agree(seat: Seat, turn: plan.Turn, name: str) -> None:
    """Make sure that both ends follow the same plan; Unfit if not."""
    go = seat.rail.go
    same = seat.meeting.agree(name, turn.rank, plan.digest(go, turn), go.meet_s)
    partner = turn.a if turn.rank else turn.b
    if same is None:
        raise Unfit("no_connect", f"{partner} did not come to their pair within {go.meet_s:g} s")
    if not same:
        raise Unfit("absent", f"{partner} follows another plan than this node")


def _ends(seat: Seat, turn: plan.Turn) -> verify.Ends:
    keys = [verify.key(seat.rail.go.seed, turn.round, rank) for rank in (0, 1)]
    return verify.Ends(keys, turn.rank)


def connect_s(go: plan.Go) -> float:
    """Within which a group is made or refused: NCCL also needs its first operation for it."""
    return go.meet_s + MARGIN_S + (go.op_s if go.backend == "nccl" else 0.0)


def _look_into(seat: Seat, turn: plan.Turn, name: str, ladder: Ladder, alive: Alive) -> str:
    """One end or both got wrong data: swap the roles and try again; what was wrong here, if any.

    Whether wrong bits stay with an end or with a role, and whether the end computes the same sum
    rightly by itself, is what can be told of sender and receiver from inside one pair.
    """
    data = ladder.data
    assert data is not None
    mine = data.words() if data.wrong else ""
    alone = data.right_alone(ladder.keys)
    other = replace(turn, rank=1 - turn.rank)
    try:
        alive("pair", connect_s(seat.rail.go) + BEAT_S)
        group = seat.connect(f"pair/{name}/1", other.rank)
        again = Ladder(seat.torch, group, seat.rail.go, _ends(seat, other), alive)
        repeated = again.repeat(data.size_bytes, _AGAIN, data.dtype)
        times = repeated.wrong.times if repeated.wrong else 0
        swapped = f"with the roles swapped {times} of {_AGAIN}"
        mine = mine or (repeated.words() if repeated.wrong else "")
    except (RuntimeError, Unfit) as error:
        swapped = f"with the roles swapped: {short(error)[:60]}"
    words = "right" if alone else "WRONG: it is this device"
    return f"{mine}; {swapped}; its own sum without a network is {words}" if mine else ""


def state_of(message: str) -> str:
    """Tell a hang: gloo says "Timed out waiting 3000ms for recv"; anything else ended at once.

    NCCL never says so of a hang, but of what ended for one ("ibv_modify_qp failed with 110
    Connection timed out").
    """
    late = "imed out" in message or "imeout" in message
    return "hung" if late and "NCCL" not in message else "error"
