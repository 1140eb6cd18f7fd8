"""One process per device, ordered through the phases together; who is late is killed, and named.

A GPU that hangs holds up the others of its node for that phase's deadline, and no other phase.
"""

from __future__ import annotations

import time

from . import device, worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Emit = Callable[["dict[str, Any]"], None]
    Sides = list[tuple[int, list[int]]]


class Crew:
    """The devices of a node that are still there."""

    def __init__(
        self, kind: str, count: int, plan: dict[str, Any], sides: Sides, emit: Emit
    ) -> None:
        self._limits = plan["limit_s"]
        self._emit = emit
        self._alive: dict[int, worker.Worker] = {}
        for index in range(count):
            work = device.Work(kind, index, plan, sides)
            try:
                self._alive[index] = worker.Worker(f"preflight-{kind}{index}", work.serve)
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
