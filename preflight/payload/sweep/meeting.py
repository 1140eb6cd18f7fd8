"""Rounds start together, and whoever does not come costs the others two waits at most.

All members meet at the store before each round. When the wait runs out, one of them notes who is
missing: those sit that round out, and may come to the next. Whoever misses a second round, or has
never come to one, or is lost to the controller, is struck from the list; from then on nobody waits
for it.
"""

from __future__ import annotations

from datetime import timedelta

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

STRIKING_S = 5.0
"""Whoever strikes the missing asks the store once per member."""

_MISSES = 2


class Meeting:
    """The round barrier of one sweep; `member` counts over nodes and rails.

    `missing`: members that do not exist, since their node lacks the rail.
    """

    def __init__(
        self, store: Any, member: int, members: int, missing: Collection[int] = ()
    ) -> None:
        self._store = store
        self._member = member
        self._members = [each for each in range(members) if each not in missing]

    def arrive(self, round_index: int, within_s: float) -> bool:
        """Wait for the others; False if they have begun this round without this member."""
        if self.missed(round_index, self._member):
            return False
        begin = f"begin/{round_index}"
        if self._count_in(round_index) + self._store.add("struck", 0) >= len(self._members):
            self._store.set(begin, "1")
        elif not self._wait([begin], within_s):
            self._strike_the_missing(round_index, begin)
        return not self.missed(round_index, self._member)

    def missed(self, round_index: int, member: int) -> bool:
        """Whether that member did not come in time to a round, or to too many before."""
        return self.struck(member) or bool(self._store.check([f"missed/{round_index}/{member}"]))

    def struck(self, member: int) -> bool:
        """Whether the others gave up on that member for all rounds."""
        return bool(self._store.check([f"struck/{member}"]))

    def strike(self, member: int, rounds: int) -> None:
        """Give up on a member that is known to be lost, so that nobody waits for it any more."""
        if member not in self._members or self.struck(member):
            return
        now = next((n for n in range(rounds) if not self._store.check([f"begin/{n}"])), rounds)
        if self._store.check([f"here/{now}/{member}"]):
            self._store.add(f"count/{now}", -1)  # it came, and counts among the struck from here
        self._store.set(f"struck/{member}", "1")
        struck = self._store.add("struck", 1)
        if now < rounds and self._store.add(f"count/{now}", 0) + struck >= len(self._members):
            self._store.set(f"begin/{now}", "1")

    def agree(self, pair: str, rank: int, mine: str, within_s: float) -> bool | None:
        """Tell the partner what plan we follow: whether it has the same; None if it never came."""
        self._store.set(f"plan/{pair}/{rank}", mine)
        theirs = f"plan/{pair}/{1 - rank}"
        if not self._wait([theirs], within_s):
            return None
        return bool(self._store.get(theirs).decode("ascii", "replace") == mine)

    def leave(self, pair: str, rank: int) -> None:
        """Say that this end has finished with a pair, well or badly."""
        self._store.set(f"left/{pair}/{rank}", "1")

    def await_leave(self, pair: str, rank: int, within_s: float) -> None:
        """Wait for the partner: an end that closes first could cut off the other's last bytes."""
        self._wait([f"left/{pair}/{1 - rank}"], within_s)

    def gather(self, place: str, rank: int, count: int, within_s: float) -> list[int]:
        """Wait at a place where only `count` of us meet, each once; return who did not come."""
        self._store.set(f"{place}/{rank}", "1")
        keys = [f"{place}/{number}" for number in range(count)]
        if self._wait(keys, within_s):
            return []
        return [number for number, key in enumerate(keys) if not self._store.check([key])]

    def _count_in(self, round_index: int) -> int:
        """Be counted once, also when a replaced process comes again; return how many came."""
        self._store.set(f"came/{self._member}", "1")
        first = self._store.add(f"here/{round_index}/{self._member}", 1) == 1
        return int(self._store.add(f"count/{round_index}", 1 if first else 0))

    def _wait(self, keys: list[str], within_s: float) -> bool:
        try:
            self._store.wait(keys, timedelta(seconds=within_s))
        except RuntimeError:  # DistStoreError: the wait ran out (or the store is gone: next line)
            return bool(self._store.check(keys))
        return True

    def _strike_the_missing(self, round_index: int, begin: str) -> None:
        if self._store.add(f"striker/{round_index}", 1) > 1:
            self._wait([begin], STRIKING_S)
            return
        for member in self._members:
            missing = not self._store.check([f"here/{round_index}/{member}"])
            if missing and not self.struck(member):
                self._note(round_index, member)
        self._store.set(begin, "1")

    def _note(self, round_index: int, member: int) -> None:
        self._store.set(f"missed/{round_index}/{member}", "1")
        came_before = round_index and self._store.check([f"came/{member}"])
        if not came_before or self._store.add(f"misses/{member}", 1) >= _MISSES:
            self._store.set(f"struck/{member}", "1")
            self._store.add("struck", 1)
