"""Slurm's words for nodes, read into typed values: states with their marks, reasons, times."""

from __future__ import annotations

import calendar
import re
import time
from typing import Final

from msgspec import Struct

from preflight.hook.model import NodeState

MARKS: Final = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINT",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
"""How sinfo, and scontrol of older versions, mark a state."""

_ONE_WORD: Final = {"DRAINED": ("IDLE", "DRAIN"), "DRAINING": ("ALLOCATED", "DRAIN")}
_STATE = re.compile(r"^[ \t]*State=(\S+)", re.MULTILINE)
_PARTITIONS = re.compile(r"^[ \t]*Partitions=(\S+)", re.MULTILINE)
_REASON = re.compile(r"^ *Reason=(?P<first>.*)(?P<rest>(?:\n {10}.*)*)", re.MULTILINE)
_STAMP = re.compile(r"(?P<text>.*) \[(?P<user>[^\[\]@]*)@(?P<time>[^\[\]]*)\]")
_NOW = re.compile(r"^Configuration data as of (\S+)$", re.MULTILINE)
_SIZE = re.compile(r"[0-9]{1,7}")  # Slurm itself holds no more than 65,536 nodes
_TIME = "%Y-%m-%dT%H:%M:%S"


class Noted(Struct, frozen=True):
    """A node, and the reason that it carries."""

    node: str
    reason: str
    time_s: float | None
    """When that was set, in seconds since the epoch."""


def parse_node(text: str) -> NodeState | None:
    """Read `scontrol show node` for one node; None where it tells no state."""
    state = _STATE.search(text)
    if state is None:
        return None
    partitions = _PARTITIONS.search(text)
    reason, user, when = _reason(text)
    return NodeState(
        states=frozenset(_states(state[1])),
        reason=reason,
        reason_user=user,
        reason_time=when,
        partitions=tuple(filter(None, partitions[1].split(","))) if partitions else (),
    )


def parse_listed(text: str) -> dict[str, Noted]:
    """Read `sinfo --Node --format=%N|%H|%E`: every node; one without a reason has "none"."""
    rows = (line.split("|", 2) for line in text.splitlines() if line.count("|") > 1)
    return {node: Noted(node, reason, seconds(when)) for node, when, reason in rows}


def parse_sizes(text: str) -> dict[str, int]:
    """Read `sinfo --format=%R %D`: how many nodes each partition has."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, number = line.rpartition(" ")
        if name and _SIZE.fullmatch(number):
            found[name] = max(int(number), found.get(name, 0))
    return found


def parse_now(text: str) -> float | None:
    """Read the head of `scontrol show config`, which bears the time of the controller's own clock.

    slurmctld stamps each answer anew (_fill_ctld_conf). None where it tells none.
    """
    found = _NOW.search(text)
    return seconds(found[1]) if found else None


def seconds(told: str) -> float | None:
    """Read Slurm's time, which was asked for in UTC; None for "Unknown" and the like."""
    try:
        return float(calendar.timegm(time.strptime(told, _TIME)))
    except ValueError:
        return None


def _reason(text: str) -> tuple[str, str, float | None]:
    """The whole reason: what somebody added in lines of its own is part of it."""
    found = _REASON.search(text)
    if found is None:
        return "", "", None
    rest = "".join(f"\n{line[10:]}" for line in found["rest"].splitlines()[1:])
    stamp = _STAMP.fullmatch(found["first"].rstrip())
    if stamp is None:
        return found["first"].strip() + rest, "", None
    return stamp["text"] + rest, stamp["user"], seconds(stamp["time"])


def _states(told: str) -> list[str]:
    words: list[str] = []
    for part in told.upper().split("+"):
        bare = part.rstrip("".join(MARKS))
        words += [MARKS[mark] for mark in part[len(bare) :]]
        words += _ONE_WORD.get(bare, (bare,))
    return [word for word in words if word]
