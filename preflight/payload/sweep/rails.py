"""Passes on the words of a node's rails, and says once for all when they rest or are through."""

from __future__ import annotations

import threading

from . import lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    import queue
    from collections.abc import Callable
    from typing import Any

    Emit = Callable[["dict[str, Any]"], None]


def start(pipes: dict[int, int], emit: Emit) -> None:
    """Relay from now on, in threads, what the rails say; `pipes`: by rail."""
    rails = Rails(len(pipes), emit)
    for rail, pipe in pipes.items():
        threading.Thread(target=rails.relay, args=(pipe, rail), daemon=True).start()


def pass_on(more: queue.Queue[dict[str, Any]], pipes: list[int]) -> None:
    """Hand each order to every rail, from now on, in a thread."""
    threading.Thread(target=_pass_on, args=(more, pipes), daemon=True).start()


class Rails:
    """How many rails there are, and how many of them rest or are through."""

    def __init__(self, count: int, emit: Emit) -> None:
        self._count = count
        self._emit = emit
        self._resting: set[int] = set()
        self._through = 0
        self._lock = threading.Lock()

    def relay(self, pipe: int, rail: int) -> None:
        """Pass on one rail's words to its end; a silent end is told by its number, `rail`."""
        reader = lines.Reader(pipe)
        whose = f"its rank of rail {rail}" if self._count > 1 else "its rank"
        while True:
            line = reader.next(None)
            if line is None:
                self._emit({"event": "trouble", "error": f"{whose} ended without a word"})
            if line is None or line["event"] == "rail_done":
                self._count_in(pipe, through=True)
                return
            if line["event"] == "rail_rest":
                self._count_in(pipe, through=False)
            else:
                self._emit(line)

    def _count_in(self, pipe: int, *, through: bool) -> None:
        """A rail that is through rests no more: it counts once."""
        with self._lock:
            if through:
                self._resting.discard(pipe)
                self._through += 1
            else:
                self._resting.add(pipe)
            all_through = self._through == self._count
            all_rest = not all_through and len(self._resting) + self._through == self._count
            if all_rest:
                self._resting.clear()
        if all_through:
            self._emit({"event": "done"})
        elif all_rest:
            self._emit({"event": "rest"})


def _pass_on(more: queue.Queue[dict[str, Any]], pipes: list[int]) -> None:
    while True:
        order = more.get()
        for pipe in pipes:
            lines.write(pipe, order)
