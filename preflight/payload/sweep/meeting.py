"""Rounds start together, and whoever does not come costs the others one wait, once.

All members meet at the store before each round. When the wait runs out, one of them strikes the
missing from the list; from then on nobody waits for those, and they learn it when they come late.
"""

from __future__ import annotations

from datetime import timedelta

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STRIKING_S = 5.0
"""Whoever strikes the missing asks the store once per member."""


class Meeting:
    """The round barrier of one sweep; `member` counts over nodes and rails."""

    def __init__(self, store: Any, member: int, members: int) -> None:
        self._store = store
        self._member = member
        self._members = members

    def arrive(self, round_index: int, within_s: float) -> bool:
        """Wait for the others; False if they have gone on without this member."""
        if self.struck(self._member):
            return False
        begin = f"begin/{round_index}"
        if self._count_in(round_index) + self._store.add("struck", 0) >= self._members:
            self._store.set(begin, "1")
        elif not self._wait(begin, within_s):
            self._strike_the_missing(round_index, begin)
        return not self.struck(self._member)

    def struck(self, member: int) -> bool:
        """Whether the others gave up on that member."""
        return bool(self._store.check([f"struck/{member}"]))

    def leave(self, pair: str, rank: int) -> None:
        """Say that this end has finished with a pair, well or badly."""
        self._store.set(f"left/{pair}/{rank}", "1")

    def await_leave(self, pair: str, rank: int, within_s: float) -> None:
        """Wait for the partner: an end that closes first could cut off the other's last bytes."""
        self._wait(f"left/{pair}/{1 - rank}", within_s)

    def _count_in(self, round_index: int) -> int:
        """Be counted once, also when a replaced process comes again; return how many came."""
        first = self._store.add(f"here/{round_index}/{self._member}", 1) == 1
        return int(self._store.add(f"count/{round_index}", 1 if first else 0))

    def _wait(self, key: str, within_s: float) -> bool:
        try:
            self._store.wait([key], timedelta(seconds=within_s))
        except RuntimeError:  # DistStoreError: the wait ran out (or the store is gone: next line)
            return bool(self._store.check([key]))
        return True

    def _strike_the_missing(self, round_index: int, begin: str) -> None:
        if self._store.add(f"striker/{round_index}", 1) > 1:
            self._wait(begin, STRIKING_S)
            return
        for member in range(self._members):
            missing = not self._store.check([f"here/{round_index}/{member}"])
            if missing and not self.struck(member):
                self._store.set(f"struck/{member}", "1")
                self._store.add("struck", 1)
        self._store.set(begin, "1")
