"""How much a fabric was watched, and how often something happened: in columns, made by the 100,000.

What was seen in most rows is nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.fabric.decoding.parts import Place

if TYPE_CHECKING:
    from collections.abc import Sequence


class Exposures(Struct):
    """A row for one pair, or one host of it, on one rail (or on all together) in one round."""

    places: list[Place] = []
    operations: list[int] = []
    loaded_s: list[float] = []
    events: list[int] = []
    worst_us: list[float] = []

    def add(
        self, places: Sequence[Place], operations: Sequence[int], loaded_s: Sequence[float]
    ) -> int:
        """Put down rows in which nothing happened; the number of the first of them."""
        first = len(self.places)
        self.places.extend(places)
        self.operations.extend(operations)
        self.loaded_s.extend(loaded_s)
        self.events.extend([0] * len(places))
        self.worst_us.extend([0.0] * len(places))
        return first

    def count(self, row: int, worst_us: float) -> None:
        """One more event there."""
        self.events[row] += 1
        self.worst_us[row] = max(self.worst_us[row], worst_us)
