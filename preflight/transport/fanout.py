"""One slow node must not hold up a fleet: the same work on many nodes, under one deadline."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from preflight.errors import PreflightError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

T = TypeVar("T")
R = TypeVar("R")

SETUP_AT_MOST = 64
"""Nodes that are set up (connected to, logged in to) at once."""

PROGRESS_S = 0.5
"""Least time between two calls of `progress`."""


class TooSlowError(PreflightError, TimeoutError):
    """A node's turn was not over, or had not come, when the deadline of all passed."""


def fan_out(
    items: Iterable[T],
    work: Callable[[T], R],
    *,
    deadline_s: float,
    at_most: int | None = SETUP_AT_MOST,
    progress: Callable[[int, int, list[str]], None] | None = None,
) -> dict[str, R | Exception]:
    """Do `work` on every item, `at_most` at a time; what came of each, by its name, in order.

    Items are names, or have one (`item.name`). What `work` raises is its item's result. At the
    deadline (seconds from now) the rest get a TooSlowError and their threads are left behind:
    daemons, which start nothing new. `progress(done, total, waiting)` hears of changes, at most
    twice a second. `at_most=None` gives every item its own thread from the start: for work that
    waits for other items' work, which would deadlock behind a bound (see `Gate`).
    """
    named = {_name(item): item for item in items}
    crew = _Crew(named, work)
    report = _Report(progress, named)
    results: dict[str, R | Exception] = {}
    ends = time.monotonic() + deadline_s
    crew.start(len(named) if at_most is None else min(at_most, len(named)))
    try:
        while len(results) < len(named) and (left_s := ends - time.monotonic()) > 0:
            results.update(crew.finished(min(left_s, PROGRESS_S)))
            report.changed(results)
    finally:
        crew.stop()
    late = {name: crew.excuse(name, deadline_s) for name in named.keys() - results.keys()}
    return {name: results[name] if name in results else late[name] for name in named}


class Gate:
    """Bounds how many nodes are set up at once, and nothing after that.

    A stage whose nodes wait for each other runs all of them (`fan_out(at_most=None)`) and holds
    `with gate.passage(deadline_s):` only while it connects.
    """

    def __init__(self, at_most: int = SETUP_AT_MOST) -> None:
        self._places = threading.BoundedSemaphore(at_most)

    @contextmanager
    def passage(self, deadline_s: float) -> Iterator[None]:
        """Wait for a place and keep it for the body; TooSlowError if none comes free in time."""
        if not self._places.acquire(timeout=deadline_s):
            raise TooSlowError(f"its turn to connect had not come after {deadline_s:.3g} s")
        try:
            yield
        finally:
            self._places.release()


class _Crew(Generic[T, R]):
    """Daemon threads that take items in order until there are none, or until told to stop."""

    def __init__(self, named: Mapping[str, T], work: Callable[[T], R]) -> None:
        self._todo = deque(named.items())
        self._work = work
        self._started: set[str] = set()
        self._done: queue.SimpleQueue[tuple[str, R | Exception]] = queue.SimpleQueue()

    def start(self, threads: int) -> None:
        for number in range(threads):
            threading.Thread(
                target=self._serve, name=f"preflight-fan-out-{number}", daemon=True
            ).start()

    def stop(self) -> None:
        self._todo.clear()

    def finished(self, wait_s: float) -> Iterator[tuple[str, R | Exception]]:
        """All that is done by now, waiting for the first of it at most that long."""
        try:
            yield self._done.get(timeout=wait_s)
            while True:
                yield self._done.get_nowait()
        except queue.Empty:
            return

    def excuse(self, name: str, deadline_s: float) -> TooSlowError:
        what = "it had not ended" if name in self._started else "its turn had not come"
        return TooSlowError(f"{what} after {deadline_s:.3g} s")

    def _serve(self) -> None:
        while True:
            try:
                name, item = self._todo.popleft()
            except IndexError:
                return
            self._started.add(name)
            try:
                result: R | Exception = self._work(item)
            except Exception as error:  # noqa: BLE001 (it is this item's result)
                result = error
            self._done.put((name, result))


class _Report:
    """Tells of progress when there is some, but not more often than a person can read."""

    def __init__(
        self, tell: Callable[[int, int, list[str]], None] | None, named: Mapping[str, object]
    ) -> None:
        self._tell = tell
        self._named = named
        self._told = 0
        self._told_at = 0.0

    def changed(self, results: Mapping[str, object]) -> None:
        done, total = len(results), len(self._named)
        due = time.monotonic() - self._told_at >= PROGRESS_S or done == total
        if self._tell and done != self._told and due:
            self._told, self._told_at = done, time.monotonic()
            self._tell(done, total, [name for name in self._named if name not in results])


def _name(item: object) -> str:
    return item if isinstance(item, str) else str(getattr(item, "name", item))
