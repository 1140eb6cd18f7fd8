"""Measures one pair on one rail in one round: connect, climb the ladder, soak, check the data.

After some operations both ends decide together whether to go on, so that neither waits for an
operation that the other does not start.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable

from . import clocks, plan, process_groups, verify
from .counters import PATIENCE_S, Watch
from .plan import WHOLE_LIMIT, account, because, printable, short
from .process_groups import Rendezvous
from .transports import Transport

GO_ON, TIME, SPIKES = 2, 1, 0
"""What an end wants; the smaller of both counts."""

WORDS = {TIME: "time", SPIKES: "spikes"}

_SHARE = 0.5
_LARGE_BYTES = 1 << 20


def batch_size(size_bytes: int) -> int:
    """Operations between two decisions, each of which is one more small all-reduce."""
    return 64 if size_bytes < _LARGE_BYTES else 16


def within_s(go: plan.Go, phase: str, box_s: float) -> float:
    """The most that one size may take: half of the pair's time, in a soak plus its box."""
    return box_s * (phase == "soak") + go.pair_s * _SHARE


def vote(
    times_us: list[float], spent_s: float, most_s: float, stop_rule: plan.StopRule | None
) -> int:
    """Return what this end wants: to go on, or to stop for time or because of spikes."""
    if stop_rule is not None and evidence(times_us, stop_rule) >= stop_rule.nats:
        return SPIKES
    return TIME if spent_s > most_s else GO_ON


def evidence(times_us: list[float], rule: plan.StopRule) -> float:
    """Nats of evidence for an unusual rate of spikes: Wald's sequential test."""
    cut_us = max(rule.spike_us, clocks.SPIKE_MEDIANS * sorted(times_us)[len(times_us) // 2])
    spikes = sum(1 for time_us in times_us if time_us > cut_us)
    usual, unusual = rule.usual, rule.unusual
    clean = len(times_us) - spikes
    return spikes * math.log(unusual / usual) + clean * math.log((1 - unusual) / (1 - usual))


LEAST_ITERATIONS = 3
"""Least iterations, even on a very slow link."""

BEAT_S = 0.5
MARGIN_S = 1.0

_SUMS = 2
"""All-reduces of each type of `verify.FLOATS`."""

_LARGE, _COPIES = 256 << 20, 5
_WIRE_BOUND = 64 << 10  # from this size on, time grows with the size
_SPOILT, _STOP, _GO_ON = -1, 0, 1  # the smallest of all ends' numbers counts


class Ladder:
    """Measures the sizes in ascending order. All ends take every decision together."""

    def __init__(
        self, context: Context, group: process_groups.Group, go: plan.Go, ends: verify.Ends
    ) -> None:
        self.timings: list[dict[str, Any]] = []
        self.data: verify.Data | None = None
        """The data of the last size."""
        self.spoilt = False
        """Whether that size's data were wrong at any end."""
        self._torch = context.torch
        self._group = group
        self._go = go
        self._ends = ends
        self._alive = context.alive
        self._beaten = 0.0

    def climb(self, begun: float, base: float, *, soak: bool = True) -> None:
        """Measure sizes while the next one fits the pair's time, then soak if wanted.

        `begun`: the start of the pair's time; `base`: the zero of each timing's `began_s`.
        """
        for place, rung in enumerate(self._go.ladder):
            if place and not self._agree_to_go_on(rung, begun, self._go.pair_s):
                break
            self._step(rung, "ladder", self._go.box_s, base)
        self._sum_floats(begun)
        longest = self._go.soak if soak else None
        if longest is None or self.spoilt:
            self.spoilt = self.spoilt or self._agree(self._word(fits=True)) == _SPOILT
        elif self._agree_to_go_on(longest, begun, self._go.pair_s + self._go.soak_s):
            self._step(longest, "soak", self._go.soak_s, base)
            self.spoilt = self._agree(self._word(fits=True)) == _SPOILT

    def _sum_floats(self, begun: float) -> None:
        """All-reduce jobs' data types, too, at the last size but one, if all data were correct."""
        size_bytes: int = self.timings[-2:][0]["size_bytes"]
        for dtype in () if self.spoilt else verify.FLOATS[self._go.backend]:
            if not self._agree_to_go_on(plan.Rung(size_bytes, 0, _SUMS), begun, self._go.pair_s):
                break
            self.data = self.repeat(size_bytes, _SUMS, dtype)

    def repeat(self, size_bytes: int, operations: int, dtype: str) -> verify.Data:
        """Do `operations` more all-reduces of one size, each checked; return their data."""
        torch, device = self._torch, self._group.device
        data = verify.Data(torch, device, size_bytes, self._ends, each=True, dtype=dtype)
        for _ in range(operations):
            self._group.reduce(data.buffer)
            data.check()
            self._beat()
        data.settle(self._group)
        return data

    def _agree_to_go_on(self, rung: plan.Rung, begun: float, within_s: float) -> bool:
        """Whether at both ends the last size was correct, and this one is expected to fit."""
        typical_s = self._foreseen_s(rung)
        ends_s = time.monotonic() - begun + typical_s * (rung.warmup + LEAST_ITERATIONS)
        fits = ends_s < within_s and typical_s < self._go.op_s and self._has_room(rung)
        word = self._agree(self._word(fits=fits))
        self.spoilt = word == _SPOILT
        return word == _GO_ON

    def _has_room(self, rung: plan.Rung) -> bool:
        """Whether the device has enough memory: checked data take up to five times the size."""
        if rung.size_bytes < _LARGE or self._group.device.type != "cuda":
            return True
        free, _ = self._torch.cuda.mem_get_info(self._group.device)
        return bool(free > _COPIES * rung.size_bytes)

    def _word(self, *, fits: bool) -> int:
        if self.data is not None and self.data.wrong:
            return _SPOILT
        return _GO_ON if fits else _STOP

    def _foreseen_s(self, rung: plan.Rung) -> float:
        """Expected time of one operation of that size; the smallest sizes are only latency."""
        smaller = [timing for timing in self.timings if timing["size_bytes"] <= rung.size_bytes]
        best = max(smaller or self.timings, key=lambda timing: int(timing["size_bytes"]))
        times_us: list[float] = sorted(best["times_us"])
        size_bytes: int = best["size_bytes"]
        growth = rung.size_bytes / size_bytes if size_bytes >= _WIRE_BOUND else 1.0
        return times_us[len(times_us) // 2] / 1e6 * growth

    def _step(self, rung: plan.Rung, phase: str, box_s: float, base: float) -> None:
        """Run one size: warm-ups, a few timed iterations, and as many more as both ends can."""
        data = verify.Data(self._torch, self._group.device, rung.size_bytes, self._ends)
        self.data = data
        works = (partial(self._group.reduce, data.buffer), data.check, self._beat)
        clock: clocks.Clock = (
            clocks.CudaClock(self._torch, rung.size_bytes, *works)
            if self._go.backend == "nccl"
            else clocks.HostClock(*works)
        )
        clock.warm_up(rung.warmup)
        clock.restart()
        clock.run(min(LEAST_ITERATIONS, rung.iterations))
        stopped = ""
        if rung.iterations > LEAST_ITERATIONS:
            stopped = self._run_more(clock, rung, box_s, within_s(self._go, phase, box_s))
        data.settle(self._group)
        timing = {"size_bytes": rung.size_bytes, "phase": phase, **clock.timing(base)}
        self.timings.append(dict(timing, stopped=stopped))

    def _run_more(self, clock: clocks.Clock, rung: plan.Rung, box_s: float, most_s: float) -> str:
        """Run as many more iterations as fit into the box; return why both ends stopped, or "".

        `most_s`: the limit for all of them. With shared CPUs the first three iterations do not show
        how many fit into the box, so both ends recompute it repeatedly.
        """
        total = self._agree(_affordable(rung, box_s, clock.one_s()))
        batch, begun = batch_size(rung.size_bytes), time.monotonic()
        while (remaining := total - len(clock.times_us)) > 0:
            clock.restart()
            clock.run(min(remaining, batch))
            if remaining > batch:
                spent_s = time.monotonic() - begun
                own_vote = vote(clock.times_us, spent_s, most_s, self._go.stop_rule)
                word, fitting = self._agreed(own_vote, _affordable(rung, box_s, clock.usual_s()))
                if word != GO_ON:
                    return WORDS.get(word, "")
                total = min(total, fitting)
        return ""

    def _agree(self, value: int) -> int:
        """Return the smaller of both ends' numbers."""
        return self._agreed(value)[0]

    def _agreed(self, *values: int) -> list[int]:
        """Return the smaller of both ends' values of each number."""
        numbers = self._torch.tensor(values, dtype=self._torch.int32, device=self._group.device)
        self._group.reduce(numbers, smallest=True)
        return [int(number) for number in numbers.tolist()]

    def _beat(self) -> None:
        """Report to the supervisor at intervals; cheap enough between operations."""
        now = time.monotonic()
        if now - self._beaten > BEAT_S:
            self._beaten = now
            self._alive("pair", self._go.op_s + BEAT_S + MARGIN_S)


def _affordable(rung: plan.Rung, box_s: float, one_s: float) -> int:
    return max(LEAST_ITERATIONS, min(rung.iterations, int(box_s / max(one_s, 1e-6))))


_REPEATS = 8
"""All-reduces with the roles swapped, after wrong data."""


class NotMeasured(Exception):  # noqa: N818 - an account, not an error of ours
    """The pair could not be measured completely: `state` as in the controller's samples."""

    def __init__(self, state: str, error: str) -> None:
        super().__init__(error)
        self.state = state


@dataclass
class Context:
    """What a measuring process works with: torch, the store, its rail, its transport."""

    torch: Any
    store: Any
    rendezvous: Rendezvous
    rail: plan.Rail
    transport: Transport
    watch: Watch
    steps: clocks.Steps
    say: Callable[..., None]
    """Sends a line to the supervisor."""
    step: int = 0
    """The current step: see `plan.Go.steps`."""
    connected: list[process_groups.Group] = field(default_factory=list)
    """Groups in use: closing one early could cut off the other end's last bytes."""

    def alive(self, phase: str, within_s: float) -> None:
        """Report the phase ("connect", "pair") to the supervisor, and the time until the next."""
        self.say(round=self.step, phase=phase, within_s=within_s)

    def connect(self, prefix: str, rank: int, size: int = 2) -> process_groups.Group:
        """Connect to the other ends under a prefix of the store; NotMeasured if it fails."""
        store = self.torch.distributed.PrefixStore(prefix, self.store)
        try:
            group = process_groups.connect(self.torch, store, rank, self.rail, size)
        except RuntimeError as error:
            reason = because(short(error), self.transport.reason())
            raise NotMeasured("no_connect", reason) from error
        self.connected.append(group)
        return group

    def close(self) -> None:
        """Close all groups, once the others have left them, or nothing works."""
        while self.connected:
            self.connected.pop().close()


def measure(context: Context, turn: plan.PairOfRound) -> dict[str, Any]:
    """Measure one pair and return this end's account; a failure of the pair does not raise."""
    go, rendezvous = context.rail.go, context.rendezvous
    name = f"{turn.round}/{turn.a}-{turn.b}/{context.rail.rail}"

    def climb(report: dict[str, Any]) -> None:
        ladder, fields = climb_ladder(context, f"pair/{name}/0", _ends(context, turn), go)
        context.alive("pair", go.op_s + BEAT_S + MARGIN_S)
        error = _look_into(context, turn, name, ladder) if ladder.spoilt else ""
        report.update(fields)
        if error:
            raise NotMeasured("corrupt", error)
        rendezvous.leave(name, turn.rank)
        rendezvous.await_leave(name, turn.rank, go.op_s)

    report = account(context.rail, turn, "measured")
    context.alive("connect", go.meet_s + MARGIN_S)
    before = attempt(context, report, lambda: _agree(context, turn, name), climb)
    rendezvous.leave(name, turn.rank)
    report["stepped_s"] = context.steps.step_s()
    context.alive("pair", PATIENCE_S + MARGIN_S)
    if not report["net"]:  # it failed before that was read: what the library meant to use
        report["net"] = printable(context.transport.words())
    if before is not None:
        report.update(context.watch.since(before, context.transport))
    return report


def attempt(
    context: Context,
    report: dict[str, Any],
    meet: Callable[[], None],
    climb: Callable[[dict[str, Any]], None],
) -> dict[str, Any] | None:
    """Meet the others and climb; failures and partial results are added to `report`.

    Return the counters before the load; None if it failed before.
    """
    before = None
    try:
        meet()
        context.alive("connect", connect_s(context.rail.go) + PATIENCE_S)
        context.transport.prepare()
        before = context.watch.read(context.transport.question())
        climb(report)
    except NotMeasured as failure:
        report.update(state=failure.state, error=printable(str(failure), WHOLE_LIMIT))
    except RuntimeError as error:
        reason = because(short(error), context.transport.reason())
        report.update(state=state_of(str(error)), error=reason)
    return before


def climb_ladder(
    context: Context, prefix: str, ends: verify.Ends, go: plan.Go, *, soak: bool = True
) -> tuple[Ladder, dict[str, Any]]:
    """Connect under a prefix and climb; return the ladder, and its fields of an account."""
    begun = time.monotonic()
    group = context.connect(prefix, ends.rank, len(ends.keys))
    met = time.monotonic()
    context.alive("pair", go.op_s + BEAT_S + MARGIN_S)
    started_s, setup_ms = clocks.now_s(), round((met - begun) * 1000.0, 1)
    ladder = Ladder(context, group, go, ends)
    ladder.climb(begun, met, soak=soak)
    fields = {"started_s": started_s, "setup_ms": setup_ms, "timings": ladder.timings}
    return ladder, {**fields, "net": printable(context.transport.words())}


def _agree(context: Context, turn: plan.PairOfRound, name: str) -> None:
    """Check that both ends follow the same plan; NotMeasured otherwise."""
    go = context.rail.go
    agrees = context.rendezvous.agree(name, turn.rank, plan.digest(go, turn), go.meet_s)
    partner = turn.a if turn.rank else turn.b
    if agrees is None:
        error = f"{partner} did not come to their pair within {go.meet_s:g} s"
        raise NotMeasured("no_connect", error)
    if not agrees:
        raise NotMeasured("absent", f"{partner} follows another plan than this node")


def _ends(context: Context, turn: plan.PairOfRound) -> verify.Ends:
    keys = [verify.key(context.rail.go.seed, turn.round, rank) for rank in (0, 1)]
    return verify.Ends(keys, turn.rank)


def connect_s(go: plan.Go) -> float:
    """Time limit to make a group, which for NCCL includes its first operation."""
    return go.meet_s + MARGIN_S + (go.op_s if go.backend == "nccl" else 0.0)


def _look_into(context: Context, turn: plan.PairOfRound, name: str, ladder: Ladder) -> str:
    """After wrong data: swap the roles and repeat; return what was wrong here, or "".

    One pair can only show whether wrong bits stay with an end or with a role, and whether the end
    computes the same sum correctly by itself.
    """
    data = ladder.data
    assert data is not None
    wrong = data.words() if data.wrong else ""
    alone = data.is_right_alone()
    reverse = turn._replace(rank=1 - turn.rank)
    try:
        context.alive("pair", connect_s(context.rail.go) + BEAT_S)
        group = context.connect(f"pair/{name}/1", reverse.rank)
        ends = _ends(context, reverse)
        again = Ladder(context, group, context.rail.go, ends)
        repeated = again.repeat(data.size_bytes, _REPEATS, data.dtype)
        times = repeated.wrong.times if repeated.wrong else 0
        swapped = f"with the roles swapped {times} of {_REPEATS}"
        wrong = wrong or (repeated.words() if repeated.wrong else "")
    except (RuntimeError, NotMeasured) as error:
        swapped = f"with the roles swapped: {short(error)[:60]}"
    words = "right" if alone else "WRONG: it is this device"
    return f"{wrong}; {swapped}; its own sum without a network is {words}" if wrong else ""


def state_of(message: str) -> str:
    """Return "hung" for gloo's "Timed out waiting 3000ms for recv", and "error" for the rest.

    NCCL does not print it for a hang, but for other errors ("ibv_modify_qp failed with 110
    Connection timed out").
    """
    timed_out = "imed out" in message or "imeout" in message
    return "hung" if timed_out and "NCCL" not in message else "error"
