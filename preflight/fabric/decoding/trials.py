"""Who was tried with whom, of those that anything is found against: looked up once for all."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from preflight.fabric.observed import Observed, Tried


class Trials:
    """All that was tried, by node and by rail."""

    def __init__(
        self, observed: Observed, *, suspected: Collection[str], blamed: Collection[str]
    ) -> None:
        """`suspected`: whose trials will be asked for; `blamed`: with whom nobody is cleared."""
        self._of: dict[str, list[Tried]] = defaultdict(list)
        self._fine: dict[int, set[str]] = defaultdict(set)
        for one in observed.tried if suspected else ():
            a, b = one.a, one.b
            if a in suspected:
                self._of[a].append(one)
            if b in suspected:
                self._of[b].append(one)
            if one.state == "measured" and a not in blamed and b not in blamed:
                self._fine[one.rail].update((a, b))

    def of(self, name: str, rail: int | None) -> list[Tried]:
        """Of one node, on one rail or on all, in order."""
        return [one for one in self._of[name] if rail in (None, one.rail)]

    def fine(self, rail: int | None) -> set[str]:
        """Who was measured there with somebody else, both of whom nobody blames."""
        return self._fine[rail] if rail is not None else set().union(*self._fine.values())
