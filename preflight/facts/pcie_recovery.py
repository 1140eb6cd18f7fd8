"""What became of a PCIe error that the hardware did not correct: drivers say if they got over it.

The kernel asks every driver below the port; one that cannot take part ("no error_detected
callback") makes the whole recovery fail, and its device may answer nothing any more.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from preflight.facts.kernel_model import LogLine

BDF = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"

Outcome = Literal["fatal", "unrecovered"]

_CANNOT = re.compile(
    rf"(?P<driver>\S+) (?P<device>{BDF}): (?:AER: )?"
    r"(?:can't recover|device has no AER-aware driver)"
)
_ENDED = re.compile(rf"(?:\S+ )?{BDF}: (?:AER: )?[Dd]evice recovery (?P<how>failed|successful)")
_BY = re.compile(rf"(?P<driver>\S+) {BDF}: PCIe Bus Error")
_VITAL = {"nvidia", "mlx5_core"}
"""A job dies with these; a node without its audio or USB still works."""
_APART_S = 10.0
"""Errors of one recovery come within milliseconds, a reset of the link within seconds."""


class Recoveries:
    """Follows the recoveries of a log: which errors came first, and how it ended for them."""

    def __init__(self) -> None:
        self.ended: dict[str, Outcome] = {}
        """By PCI address of the error; what is not here was recovered, or nothing was said."""
        self._errors: set[str] = set()
        self._drivers: set[str] = set()
        self._over = False
        self._at_s: float | None = None

    def error(self, where: str, line: LogLine) -> None:
        """Take an uncorrected error; after a recovery ended it begins the next one."""
        before, self._at_s = self._at_s, line.at_s
        later = before is not None and line.at_s is not None and line.at_s - before > _APART_S
        if self._over or later:
            self._errors, self._drivers, self._over = set(), set(), False
        self._errors.add(where)
        named = _BY.match(line.text)
        if named is not None and named["driver"] != "pcieport":
            self._drivers.add(named["driver"])

    def take(self, text: str) -> None:
        """Take any other line: a driver that cannot recover, or how the whole of it ended."""
        if cannot := _CANNOT.match(text):
            self._over = True
            self._drivers.add(cannot["driver"])
            vital = cannot["driver"] in _VITAL
            # Without its error, whose line is gone, nobody knows how grave that was.
            self._end("fatal" if vital else "unrecovered")
            if vital and not self._errors:
                self.ended[cannot["device"]] = "unrecovered"
        elif ended := _ENDED.match(text):
            self._over = True
            if ended["how"] == "failed":
                others = self._drivers and not self._drivers & _VITAL
                self._end("unrecovered" if others else "fatal")

    def _end(self, outcome: Outcome) -> None:
        for where in self._errors:
            if self.ended.get(where) != "fatal":
                self.ended[where] = outcome
