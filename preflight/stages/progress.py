"""What a run tells a waiting person while it measures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Progress(Protocol):
    """Called from the run's main thread and from its helpers; must be quick and never raise."""

    def step(self, phase: str, done: int, total: int, waiting: Sequence[str]) -> None:
        """Say how far a phase is, and for whom it waits."""

    def line(self, text: str) -> None:
        """Say something that stays on the screen."""


class Silent:
    """For callers that show nothing."""

    def step(self, phase: str, done: int, total: int, waiting: Sequence[str]) -> None:
        """Show nothing."""

    def line(self, text: str) -> None:
        """Show nothing."""
