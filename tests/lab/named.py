"""Whom a run names, read from its report, and whether that is right for what was planted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.lab.planted import Fault

_READY, _CONDEMNED = 0, 1
_OPEN = "unresolved"


class _Blame(Struct, frozen=True):
    kind: str
    component: str
    sentence: str = ""


class _Fleet(Struct, frozen=True):
    not_ready: tuple[str, ...]
    unjudged: tuple[str, ...]
    apart: tuple[tuple[str, str], ...]


class _Report(Struct, frozen=True):
    exit: int
    missing: int
    fleet: _Fleet
    blames: tuple[_Blame, ...]


class Named(Struct, frozen=True):
    """What a run says about its fleet. Components are "h3" and "pair h1-h2"."""

    exit: int
    lost: int = 0
    components: tuple[str, ...] = ()
    """Condemned, each as the one culprit of something."""
    open: tuple[str, ...] = ()
    """Sets among which a culprit lies, and nodes that could not be judged."""

    def right(self, faults: Iterable[Fault]) -> bool:
        """Whether exactly what is at fault is named, each at its level, and nothing left open."""
        guilty = {fault.component for fault in faults}
        told = self.exit == (_CONDEMNED if guilty else _READY) and not self.lost
        return told and set(self.components) == guilty and not self.open

    def wrong(self, faults: Iterable[Fault]) -> tuple[str, ...]:
        """Healthy parts that are named."""
        guilty = {fault.component for fault in faults}
        return tuple(name for name in self.components if name not in guilty)


def named(folder: Path) -> Named:
    """Read the report of a run; msgspec.ValidationError if it is none."""
    report = msgspec.json.decode((folder / "report.json").read_bytes(), type=_Report)
    apart = (f"pair {a}-{b}" for a, b in report.fleet.apart)
    sure = (one.component for one in report.blames if one.kind != _OPEN)
    unsure = (one.component for one in report.blames if one.kind == _OPEN)
    return Named(
        report.exit,
        report.missing,
        tuple(dict.fromkeys((*report.fleet.not_ready, *apart, *sure))),
        tuple(dict.fromkeys((*unsure, *report.fleet.unjudged))),
    )
