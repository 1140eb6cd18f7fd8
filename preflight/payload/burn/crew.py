"""One process per device, ordered through the phases together; who is late is killed, and named.

A GPU that hangs holds up the others of its node for that phase's deadline, and no other phase.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from functools import partial

import children
import start
from sweep import clocks
from sweep.cuda import NoCuda
from sweep.plan import short

from . import device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Serve = Callable[[Callable[[], "dict[str, Any] | None"], Callable[..., None]], None]
    Emit = Callable[["dict[str, Any]"], None]

    from .device import Sides


_KILLED_S = 10.0
"""For a killed process to be gone: the driver ends its kernels and gives its memory back first."""


@dataclass
class Answer:
    """What came of one order; `how` is "hung", "died", "error" or "held" where it is the last."""

    events: list[dict[str, Any]] = field(default_factory=list)
    how: str = ""
    error: str = ""
    starved: bool = False


class Worker:
    """One forked process, its orders and its answers. OSError if none comes up."""

    def __init__(self, name: str, serve: Serve) -> None:
        orders, self._orders = os.pipe()
        answers, answering = os.pipe()
        self._answers = start.Reader(answers)
        self._waited: dict[str, float] = {}
        try:
            self.pid = children.fork_surely(name, lambda: _work(serve, orders, answering))
        except OSError:
            self.let_go()
            raise
        finally:
            os.close(orders)
            os.close(answering)

    def tell(self, order: dict[str, Any]) -> None:
        """Give an order; OSError if nobody is there to read it."""
        self._waited = clocks.waited_s(self.pid)
        start.write(self._orders, order)

    def answer(self, ends: float, limit_s: float) -> Answer:
        """Wait for what came of the order until `ends`; a process that is late is ended."""
        try:
            said = self._answers.next(max(0.0, ends - time.monotonic()))
        except TimeoutError:
            excuse = clocks.excuse(self._waited, self.pid, limit_s)
            left = self.end(kill=True)
            error = f"it stood still for {limit_s:.0f} s and was killed{excuse}{left}"
            return Answer(how="hung", error=error, starved="for a CPU" in excuse)
        if said is None:
            return Answer(how="died", error=self.end() or "its process ended by itself")
        if "failed" in said:
            self.end()
            return Answer(said["events"], how=said["how"], error=said["failed"])
        return Answer(said["events"])

    def let_go(self) -> None:
        """Give no more orders: it ends by itself."""
        for descriptor in (self._orders, self._answers.descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._orders = self._answers.descriptor = -1

    def end(self, *, kill: bool = False) -> str:
        """End it and say how it had ended by itself; never waits for ever, as in D state."""
        self.let_go()
        status = None if kill else children.reaped(self.pid, children.EXIT_S)
        if status is not None:
            return f"its process {children.ending(status)}" if status else ""
        os.kill(self.pid, signal.SIGKILL)
        if children.reaped(self.pid, _KILLED_S) is not None:
            return ""
        return f"; it is still there{' in D state' * clocks.in_d_state(self.pid)}"


def _work(serve: Serve, orders: int, answering: int) -> None:
    """The life of the process itself."""
    children.close_all_but({orders, answering})
    reader = start.Reader(orders)

    def say(events: list[dict[str, Any]]) -> None:
        start.write(answering, {"events": events})

    def fail(how: str, error: str) -> None:
        start.write(answering, {"events": [], "how": how, "failed": error})

    try:
        serve(reader.next, say)
    except NoCuda as error:
        fail("held" if error.held else "error", str(error))
    except Exception as error:  # noqa: BLE001 - whatever torch or a driver raises is reported
        fail("error", f"{type(error).__name__}: {short(error)}")


class Crew:
    """The devices of a node that are still there."""

    def __init__(
        self, kind: str, count: int, plan: dict[str, Any], sides: Sides, emit: Emit
    ) -> None:
        self._limits = plan["limit_s"]
        self._emit = emit
        self._alive: dict[int, Worker] = {}
        for index in range(count):
            work = partial(device.work, kind=kind, index=index, plan=plan, sides=sides)
            try:
                self._alive[index] = Worker(f"preflight-{kind}{index}", work)
            except OSError as error:
                self._lose(index, "open", "error", str(error))

    def together(self, phase: str) -> None:
        """Have all devices do it at once, as a job would."""
        self._ask(list(self._alive), phase)

    def in_turn(self, phase: str) -> None:
        """Have them do it one by one: they share a way."""
        for index in list(self._alive):
            self._ask([index], phase)

    def dismiss(self) -> list[int]:
        """End all processes, which frees their memory; return the devices that came through."""
        there = sorted(self._alive)
        for one in self._alive.values():
            one.let_go()
        for one in self._alive.values():
            one.end()
        self._alive = {}
        return there

    def _ask(self, who: Iterable[int], phase: str) -> None:
        limit_s = float(self._limits[phase])
        asked = [index for index in who if self._told(index, phase)]
        ends = time.monotonic() + limit_s
        for index in asked:
            answer = self._alive[index].answer(ends, limit_s)
            for event in answer.events:
                self._emit(dict(event, device=index))
            if answer.how:
                self._alive.pop(index)
                self._lose(index, phase, answer.how, answer.error, starved=answer.starved)

    def _told(self, index: int, phase: str) -> bool:
        try:
            self._alive[index].tell({"phase": phase})
        except OSError:  # it ended between two phases
            error = self._alive.pop(index).end() or "its process ended by itself"
            self._lose(index, phase, "died", error)
            return False
        return True

    def _lose(self, index: int, phase: str, how: str, error: str, *, starved: bool = False) -> None:
        self._emit(lost(index, phase, how, error, starved=starved))


def lost(
    index: int, phase: str, how: str, error: str, *, to: int | None = None, starved: bool = False
) -> dict[str, Any]:
    """The event that tells of a device which did not come through."""
    return {
        "event": "lost",
        "device": index,
        "to": to,
        "phase": phase,
        "how": how,
        "error": error[:500],
        "starved": starved,
    }
