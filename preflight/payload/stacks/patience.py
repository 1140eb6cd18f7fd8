"""How long the looks may take, and what went wrong on the way: no section waits for another."""

from __future__ import annotations

import time

from probe import guard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Patience:
    """The time that is left, and the `problems` so far."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.problems: list[str] = []

    def within(self, seconds: float) -> float:
        """Return the end (monotonic) of a step that may take so long."""
        return min(self.until, time.monotonic() + seconds)

    def complain(self, problem: str) -> None:
        """Add a line to `problems`, once."""
        if problem not in self.problems:
            self.problems.append(problem)

    def sleep_until(self, moment: float) -> None:
        """Wait for a moment (monotonic), but not beyond the end of all."""
        time.sleep(max(0.0, min(self.until, moment) - time.monotonic()))

    def hear(self, what: str, asked: guard.Child, seconds: float) -> Any:
        """Return what a guarded reader answers; None, and a line in `problems`, if it does not."""
        return guard.answer_of(what, asked, self.within(seconds), self.complain)
