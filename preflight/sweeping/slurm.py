"""Slurm's words on who uses which node, typed: `sinfo --Node` and `scontrol show reservation`.

As Slurm 22.05 prints them. Pure.
"""

from __future__ import annotations

import re
from datetime import datetime

from msgspec import Struct

from preflight.errors import UsageError
from preflight.fleet.nodeset import expand
from preflight.transport.legible import legible

_SUFFIXES = {
    "*": "does not respond",
    "~": "powered down",
    "#": "powering up",
    "!": "about to be powered down",
    "%": "powering down",
    "$": "in a maintenance reservation",
    "@": "about to reboot",
    "^": "rebooting",
    "+": "blocked",
    "-": "promised to a waiting job",
}
"""What sinfo appends to a state (its manual, NODE STATE CODES)."""

_MARKS = "".join(_SUFFIXES)

WORKING = frozenset({"allocated", "mixed", "completing"})
"""States in which a job has the node."""

_RESERVED = frozenset({"reserved", "maint"})


class NodeUse(Struct, frozen=True, kw_only=True):
    """One node as sinfo shows it."""

    name: str
    state: str
    """Slurm's long word in lower case, its suffix included: "idle", "mixed", "idle*"."""
    reason: str = ""
    """Why it was drained or is down; "" where nobody said."""

    @property
    def free(self) -> bool:
        """Whether the next job may start there: idle, and neither held, planned nor silent."""
        return self.state == "idle"

    @property
    def reserved(self) -> bool:
        """Whether nothing runs there, and only jobs of a reservation may start."""
        return self.state.rstrip("$") in _RESERVED or self.state == "idle$"

    @property
    def working(self) -> bool:
        """Whether somebody's job is there."""
        return self.state.rstrip(_MARKS) in WORKING

    @property
    def words(self) -> str:
        """Say why it is not looked at."""
        why = f": {self.reason}" if self.reason else ""
        if self.working:
            return f"in use ({self.state})"
        if self.reserved:
            return f"reserved for others ({self.state})"
        if self.state == "planned":
            return "promised to a waiting job (planned)"
        marks = [_SUFFIXES[mark] for mark in self.state if mark in _SUFFIXES]
        return f"{', '.join([self.state.rstrip(_MARKS) or 'of no state', *marks])}{why}"


class Reservation(Struct, frozen=True, kw_only=True):
    """Nodes that an operator has set aside."""

    nodes: tuple[str, ...]
    active: bool
    starts: str
    ends: datetime | None
    """In this machine's time zone, as scontrol prints it; None where it has no end."""


def parse_nodes(text: str) -> dict[str, NodeUse]:
    """Read sinfo's lines NAME|STATE|REASON, one or more a node; any other line is skipped.

    Of a node in several partitions the line counts that keeps us away, if there is one.
    """
    found: dict[str, NodeUse] = {}
    for line in text.splitlines():
        name, _, rest = line.strip().partition("|")
        state, _, reason = rest.partition("|")
        state = legible(state.strip().lower(), 40)
        if not name or not state:
            continue
        said = legible(reason.strip(), 100)
        use = NodeUse(name=name, state=state, reason="" if said in ("none", "(null)") else said)
        if name not in found or found[name].free:
            found[name] = use
    return found


def parse_reservation(text: str) -> Reservation | None:
    """Read `scontrol --oneliner show reservation NAME`; None if it is not that."""
    words = dict(re.findall(r"\b(\w+)=(\S*)", text))
    if "ReservationName" not in words or "Nodes" not in words:
        return None
    try:
        nodes = expand(words["Nodes"])
    except UsageError:
        return None
    try:
        ends = datetime.fromisoformat(words.get("EndTime", "")).astimezone()
    except ValueError:
        ends = None
    return Reservation(
        nodes=nodes,
        active=words.get("State") == "ACTIVE",
        starts=legible(words.get("StartTime", "an unknown time"), 40),
        ends=ends,
    )
