"""What the others show: a suspect must not sit in the population it is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable


class LeaveOut:
    """Values that each belong to some owners; medians over those that belong to none of a few.

    Sorted once: asking for every pair of 4,096 nodes costs as many small walks, not as many sorts.
    """

    def __init__(self, owned: Iterable[tuple[float, Collection[Hashable]]]) -> None:
        ranked = sorted(owned, key=lambda one: one[0])
        self._values = [value for value, _ in ranked]
        self._places: dict[Hashable, list[int]] = {}
        for place, (_, owners) in enumerate(ranked):
            for owner in owners:
                self._places.setdefault(owner, []).append(place)

    def count(self, without: Iterable[Hashable]) -> int:
        """How many values belong to none of `without`."""
        return len(self._values) - len(self._out(without))

    def median(self, without: Iterable[Hashable], between: float = 0.5) -> float | None:
        """Median of the values that belong to none of `without`; None if there are none.

        `between`: of an even number, where between the two in the middle (0: the lower, 1: the
        higher).
        """
        out = self._out(without)
        left = len(self._values) - len(out)
        if not left:
            return None
        high = self._value(left // 2, out)
        if left % 2:
            return high
        return (1 - between) * self._value(left // 2 - 1, out) + between * high

    def _out(self, without: Iterable[Hashable]) -> list[int]:
        return sorted({place for owner in without for place in self._places.get(owner, ())})

    def _value(self, rank: int, out: list[int]) -> float:
        """The value at `rank` once the places in `out` (ascending) are skipped."""
        place = rank
        for skipped in out:
            if skipped > place:
                break
            place += 1
        return self._values[place]
