"""Where the ranks stand: their Python stacks twice, and native ones of some that are at rest."""

from __future__ import annotations

import time

from probe.text import TEXT_LIMIT, clean

from . import pyspy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from probe import guard

    from .ranks import Patience

    Told = dict[str, Any]

FIND_S, READ_S, NATIVE_S = 8.0, 8.0, 8.0
"""For one step each; on a healthy node they take milliseconds, and native stacks a second."""

MOST_NATIVE = 4
MOST_SAMPLED = 32
"""Ranks of a node that are sampled, each by a process of ours: more of them would be a load."""

MOST_WORKERS = 32
_AT_REST_S, _AT_REST_SWITCHES = 0.011, 2
"""CPU time and waits of a main thread that did nothing between the looks: one tick, a stray one."""

_INSTALLED = "this node runs nothing that it is sent: install py-spy there: pip install py-spy"
_INSTALL = "install py-spy there, or beside preflight: pip install 'pytest-preflight[diagnose]'"


class Standing:
    """The stacks of a node's processes; what is missing is said in words."""

    def __init__(self, patience: Patience, *, own: bool) -> None:
        self._patience = patience
        self._own = own
        self._spy: pyspy.Spy | None = None
        self._lacks = ""
        self._carried: pyspy.Carried | None = None
        self._first: dict[int, Any] = {}
        self._later: dict[int, Any] = {}
        self._native: dict[int, Any] = {}
        self._samplers: dict[int, guard.Child] = {}
        self._sampled: dict[int, list[Told]] = {}

    def prepare(
        self,
        pythons: list[Told],
        lines: Callable[..., Told | None],
        emit: Callable[[Told], None],
    ) -> None:
        """Take the node's own py-spy, or ask for one that travels; only where there is work."""
        if not pythons:
            return
        if self._own:
            folders = (folder for one in pythons for folder in one["bins"])
            self._spy = pyspy.installed(folders, self._patience.within(FIND_S))
        if self._spy is None and not pyspy.asks(emit):
            self._lacks = _INSTALLED
        elif self._spy is None:
            self._carried = pyspy.Carried(lines, self._patience.until)
            self._spy = self._carried.spy
            self._lacks = f"{self._carried.refused}: {_INSTALL}"

    def read(self, pids: Iterable[int]) -> None:
        """Take a first look; what moved under the reader's eyes is read once more."""
        self._first = self._dump(pids)
        missed = [pid for pid, told in self._first.items() if not _read(told)]
        if missed and len(missed) < len(self._first):
            self._first.update(self._dump(missed))

    def read_once(self, pids: Iterable[int]) -> dict[int, Told | None]:
        """Return the `Stacks` of processes that are looked at once."""
        return {pid: self._document(told) for pid, told in self._dump(pids).items()}

    def sample(self, ranks: list[Told], until: float) -> None:
        """Look at ranks often from now on, whole seconds of what is left till that moment."""
        seconds = int(until - time.monotonic())
        pids = [one["pid"] for one in ranks if _read(self._first.get(one["pid"]))]
        if self._spy is not None and seconds > 0 and len(pids) <= MOST_SAMPLED:
            self._samplers = self._spy.sample(pids, seconds)

    def read_again(self) -> None:
        """Take a second look at those that could be read; what was sampled is complete by then."""
        self._sampled = pyspy.sampled(self._samplers, self._patience.within(pyspy.LATE_S))
        self._later = self._dump(pid for pid, told in self._first.items() if _read(told))

    def read_native(self, rows: list[Told]) -> None:
        """Read the C side of ranks at rest, one of each place: that pauses them for some ms."""
        chosen: dict[str, int] = {}
        for row in rows:
            before, after = self._first.get(row["pid"]), self._later.get(row["pid"])
            place = pyspy.where(before) if _read(before) else ""
            if place and _read(after) and place == pyspy.where(after) and _at_rest(row):
                chosen.setdefault(place, row["pid"])
        if self._spy is not None:
            pids = list(chosen.values())[:MOST_NATIVE]
            until = self._patience.within(NATIVE_S)
            self._native = self._spy.dump(pids, until, native=True, at_once=2)
            for pid, told in self._native.items():
                if not _read(told):
                    self._patience.complain(f"native stack of process {pid}: {told}")

    def add(self, one: Told, row: Told) -> None:
        """Put a rank's stacks into its row of the document, or why there are none."""
        pid = one["pid"]
        row["stacks"] = self._document(self._first.get(pid))
        row["later"] = self._document(self._later.get(pid))
        row["sightings"] = self._sampled.get(pid, [])
        row["native"] = self._document(self._native.get(pid), native=True)
        row["workers"] = [
            {"pid": each, "stacks": stacks}
            for each in one["workers"]
            for stacks in [self._document(self._later.get(each, self._first.get(each)))]
            if stacks is not None
        ]
        if row["stacks"] is None:
            row["no_stacks"] = clean(self._why_none(one, row), TEXT_LIMIT)

    def close(self) -> None:
        """Leave nothing."""
        if self._carried is not None:
            self._carried.close()

    def _dump(self, pids: Iterable[int]) -> dict[int, Any]:
        if self._spy is None:
            return {}
        return self._spy.dump(pids, self._patience.within(READ_S))

    def _document(self, told: Any, *, native: bool = False) -> Told | None:
        if not _read(told) or self._spy is None:
            return None
        return {"threads": told, "native": native, "by": self._spy.by}

    def _why_none(self, one: Told, row: Told) -> str:
        if row["state"] in ("zombie", "gone"):
            return "it has ended"
        if one["stuck"]:
            return "reading its memory hangs, as a thread of it does in the kernel: see dmesg"
        if not one["python"]:
            return "it is no Python process"
        if self._spy is None:
            return self._lacks
        told = self._first.get(one["pid"])
        reason = pyspy.why(one["uid"], one["user"])
        return reason or f"py-spy could not read it: {told or 'it said nothing'}"


def readable(ranks: list[Told], alive: Callable[[int], bool]) -> list[int]:
    """Return whose stacks can be read: Pythons that are alive, and the first of their workers."""
    mine = [one for one in ranks if one["python"] and not one["stuck"] and alive(one["pid"])]
    each = max(1, MOST_WORKERS // max(1, len(mine)))
    workers = [pid for one in mine for pid in one["workers"][:each]]
    return [one["pid"] for one in mine] + workers[:MOST_WORKERS]


def _read(told: Any) -> bool:
    """Whether a stack was read: else it is text, or nothing."""
    return isinstance(told, list)


def _at_rest(row: Told) -> bool:
    """Whether its main thread sleeps and did nothing between the looks."""
    idle = row.get("main_cpu_s", 1.0) <= _AT_REST_S and row["switches"] <= _AT_REST_SWITCHES
    return bool(row["state"] == "sleeping" and idle)
