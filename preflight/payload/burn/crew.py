"""Runs one process per device through the phases; a late process is killed, its device reported.

A GPU that hangs delays the others of its node only until the deadline of that phase.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Dict, List

import children
import start
from start import Emit
from sweep import clocks
from sweep.cuda import NoCuda
from sweep.plan import short

from . import device
from .device import Sides

Serve = Callable[[Dict[str, Any]], List[Dict[str, Any]]]
"""Carries out one order; returns its events."""


_KILL_S = 10.0
"""How long a killed process may take to end: the driver ends its kernels and frees memory first."""


@dataclass
class Answer:
    """The result of one order; after a failure, `failure` is "hung", "died", "error" or "held"."""

    events: list[dict[str, Any]] = field(default_factory=list)
    failure: str = ""
    error: str = ""
    starved: bool = False


class Worker:
    """One forked process, its orders and its answers; if it does not start, `answer` says so."""

    def __init__(self, name: str, serve: Serve) -> None:
        orders, self._orders = os.pipe()
        answers, answer_end = os.pipe()
        self._answers = start.Reader(answers)
        self._waited: dict[str, float] = {}
        self._not_started = ""
        try:
            self.pid = children.fork_surely(name, lambda: _work(serve, orders, answer_end))
        except OSError as error:
            self._not_started = str(error)
            self.close()
        os.close(orders)
        os.close(answer_end)

    def order(self, order: dict[str, Any]) -> None:
        """Send an order; if the process has ended, `answer` says so."""
        if not self._not_started:
            self._waited = clocks.waited_s(self.pid)
            with suppress(BrokenPipeError):
                start.write(self._orders, order)

    def answer(self, ends: float, limit_s: float) -> Answer:
        """Wait for the result of the order until `ends`; kill the process if it is late."""
        if self._not_started:
            return Answer(failure="error", error=self._not_started)
        try:
            message = self._answers.next(max(0.0, ends - time.monotonic()))
        except TimeoutError:
            excuse = clocks.excuse(self._waited, self.pid, limit_s)
            leftover = self.end(kill=True)
            error = f"it stood still for {limit_s:.0f} s and was killed{excuse}{leftover}"
            return Answer(failure="hung", error=error, starved="for a CPU" in excuse)
        if message is None:
            return Answer(failure="died", error=self.end() or "its process ended by itself")
        if "failed" in message:
            self.end()
            return Answer(message["events"], failure=message["how"], error=message["failed"])
        return Answer(message["events"])

    def close(self) -> None:
        """Close its pipes: it ends by itself."""
        for descriptor in (self._orders, self._answers.descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._orders = self._answers.descriptor = -1

    def end(self, *, kill: bool = False) -> str:
        """End it, and describe how it ended by itself; do not wait for one in D state."""
        self.close()
        status = None if kill else children.wait_for_exit(self.pid, children.EXIT_S)
        if status is not None:
            return f"its process {children.describe_exit(status)}" if status else ""
        os.kill(self.pid, signal.SIGKILL)
        if children.wait_for_exit(self.pid, _KILL_S) is not None:
            return ""
        return f"; it is still there{' in D state' * clocks.in_d_state(self.pid)}"


def _work(serve: Serve, orders: int, answer_end: int) -> None:
    """In the child: serve orders until the parent closes the pipes."""
    children.close_all_but({orders, answer_end})
    reader = start.Reader(orders)

    def fail(failure: str, error: str) -> None:
        start.write(answer_end, {"events": [], "how": failure, "failed": error})

    try:
        while True:
            order = reader.next(None)
            if order is None:
                return
            start.write(answer_end, {"events": serve(order)})
    except NoCuda as error:
        fail("held" if error.held else "error", str(error))
    except Exception as error:  # noqa: BLE001 - whatever torch or a driver raises is reported
        fail("error", f"{type(error).__name__}: {short(error)}")


class Crew:
    """The processes of a node's devices, without those that were lost."""

    def __init__(
        self, kind: str, count: int, plan: dict[str, Any], sides: Sides, emit: Emit
    ) -> None:
        self._limits = plan["limit_s"]
        self._emit = emit
        self._workers: dict[int, Worker] = {}
        for index in range(count):
            work = partial(device.work, kind=kind, index=index, plan=plan, sides=sides)
            self._workers[index] = Worker(f"preflight-{kind}{index}", work)

    def run(self, phase: str) -> None:
        """Run a phase on all devices at once, as a job would; "pcie" in turn: they share a path."""
        indices = list(self._workers)
        for batch in [[index] for index in indices] if phase == "pcie" else [indices]:
            self._ask(batch, phase)

    def dismiss(self) -> list[int]:
        """End all processes, which frees their memory; return the devices without a failure."""
        indices = sorted(self._workers)
        for worker in self._workers.values():
            worker.close()
        for worker in self._workers.values():
            worker.end()
        self._workers = {}
        return indices

    def _ask(self, indices: list[int], phase: str) -> None:
        limit_s = float(self._limits[phase])
        for index in indices:
            self._workers[index].order({"phase": phase})
        ends = time.monotonic() + limit_s
        for index in indices:
            answer = self._workers[index].answer(ends, limit_s)
            for event in answer.events:
                self._emit(dict(event, device=index))
            if answer.failure:
                del self._workers[index]
                self._emit(lost_event(index, phase, answer))


def lost_event(index: int, phase: str, answer: Answer, target: int | None = None) -> dict[str, Any]:
    """The event for a device that failed, or for its copies `target` another one."""
    return {
        "event": "lost",
        "device": index,
        "to": target,
        "phase": phase,
        "how": answer.failure,
        "error": answer.error[:500],
        "starved": answer.starved,
    }
