"""Xid 13 that comes back on one part of a GPU: a program's fault moves about, a broken part stays.

NVIDIA's workflow for Xid 13 asks where it came: on many TPCs, or once, it is the program; on the
same GPC and TPC again, the hardware may be at fault and wants its diagnostics.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from preflight.facts.gpu_log import XID, slot_of
from preflight.facts.limits import limit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from preflight.facts.kernel_model import LogLine

CODE = 13
_MARK = f"): {CODE},"
_PLACE = re.compile(r"\((GPC \d+, TPC \d+)\b")
_PID = re.compile(r"pid=(\d+)")


@dataclass(frozen=True, slots=True)
class Repeated:
    """One part of one GPU on which exceptions came at several times, and nowhere else then."""

    slot: str
    place: str
    """GPC 2, TPC 5."""
    bursts: int
    last_s: float


@dataclass(slots=True)
class _Burst:
    """Exceptions of one GPU that followed on each other: one crash of one program."""

    first_s: float
    last_s: float
    places: set[str]
    pids: set[str]


def repeated(lines: Iterable[LogLine]) -> dict[str, Repeated]:
    """By slot: the part that most crashes of its last day came from, where they are several.

    Crashes of one process are one: it may go on after an exception that it caught.
    """
    found = {}
    for slot, bursts in _bursts(lines).items():
        recent = [b for b in bursts if bursts[-1].first_s - b.last_s < limit("same_tpc_within_s")]
        alone = [next(iter(each.places)) for each in recent if len(each.places) == 1]
        place = max(alone, key=alone.count, default="")
        there = [each for each in recent if each.places == {place}]
        pids = set().union(*(each.pids for each in there))
        if len(there) < limit("same_tpc_bursts") or 2 * len(there) <= len(recent):
            continue
        if len(pids) != 1 or not all(each.pids for each in there):
            found[slot] = Repeated(slot, place, len(there), there[-1].last_s)
    return found


def _bursts(lines: Iterable[LogLine]) -> dict[str, Sequence[_Burst]]:
    """The crashes of each GPU in their order, of which time and place are told."""
    apart_s, found = limit("same_tpc_apart_s"), dict[str, list[_Burst]]()
    told = [(line.at_s, line) for line in lines if line.at_s is not None and _MARK in line.text]
    for at_s, line in sorted(told, key=lambda each: each[0]):
        xid = XID.search(line.text)
        if xid is None or int(xid[2]) != CODE:
            continue
        bursts = found.setdefault(slot_of(xid[1]), [])
        last_s = max(at_s, line.last_s or 0.0)
        if not bursts or at_s - bursts[-1].last_s > apart_s:
            bursts.append(_Burst(at_s, last_s, set(), set()))
        bursts[-1].last_s = max(bursts[-1].last_s, last_s)
        bursts[-1].places |= set(_PLACE.findall(line.text))
        bursts[-1].pids |= set(_PID.findall(line.text))
    located = {slot: [b for b in bursts if b.places] for slot, bursts in found.items()}
    return {slot: bursts for slot, bursts in located.items() if bursts}
