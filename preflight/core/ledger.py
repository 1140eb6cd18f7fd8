"""The trust line: what was expected, what arrived, and what is therefore lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.check import subject
from preflight.verdict import Outcome, Verdict, not_run

if TYPE_CHECKING:
    from collections.abc import Iterable


class Entry(Struct, frozen=True):
    """One verdict and what it is about; `subject` is "h1", "h1-h2" or "fleet:all".

    `nodes` are the nodes of the subject; none for the whole fleet, which is nobody alone.
    """

    check: str
    subject: str
    nodes: tuple[str, ...]
    verdict: Verdict


class Ledger:
    """Knows every verdict that is owed; whatever has not arrived at the end is `lost`."""

    def __init__(self) -> None:
        self._expected: dict[tuple[str, tuple[str, ...]], None] = {}
        self._arrived: dict[tuple[str, tuple[str, ...]], Verdict] = {}

    def expect(self, keys: Iterable[tuple[str, tuple[str, ...]]]) -> None:
        """Add verdicts that are owed."""
        self._expected.update(dict.fromkeys(keys))

    def record(self, check: str, nodes: tuple[str, ...], verdict: Verdict) -> None:
        """Take in a verdict; one that nobody expected is kept as well."""
        self._arrived[check, nodes] = verdict

    def lose(self, keys: Iterable[tuple[str, tuple[str, ...]]], why: str) -> None:
        """Note that these will never arrive, whatever else stops the run; arrived ones stand."""
        for key in keys:
            self._arrived.setdefault(key, _lost(why))

    def __len__(self) -> int:
        return len(self._expected)

    def __contains__(self, key: object) -> bool:
        return key in self._expected

    def settle(self, stopped: str = "") -> tuple[Entry, ...]:
        """List all verdicts; the missing ones as `lost`, or `not_run` if the operator stopped."""
        missing = not_run(stopped, stopped=True) if stopped else _lost("its verdict never arrived")
        keys = dict.fromkeys([*self._expected, *self._arrived])
        return tuple(
            Entry(check, subject(nodes), nodes, self._arrived.get((check, nodes), missing))
            for check, nodes in keys
        )


def _lost(sentence: str) -> Verdict:
    return Verdict(
        outcome=Outcome.LOST,
        sentence=sentence,
        advice="run again; if it is lost again, report it with the output above",
    )
