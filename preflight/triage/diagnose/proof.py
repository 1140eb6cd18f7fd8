"""What proves that a rank is elsewhere: its calls, its CPU time, whom it waits for, its GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.triage.diagnose.places import library, place_of, short
from preflight.triage.diagnose.remedy import exits
from preflight.triage.diagnose.roll import gpu_of
from preflight.triage.diagnose.words import count, doing

if TYPE_CHECKING:
    from preflight.triage.diagnose.case import Case
    from preflight.triage.diagnose.seat import Seat


def evidence(case: Case, apart: tuple[Seat, ...]) -> tuple[str, ...]:
    """Lines of up to four of them, and of the others' wait."""
    told = []
    for seat in sorted(apart, key=lambda one: one.rank)[:4]:
        calls = seat.place.calls if seat.place else ()
        told.append(f"rank {seat.rank}: {' < '.join(calls[:5]) or doing(seat)}")
        cpu = f"{seat.cpu:.0%} of a core" if seat.look.look_s else "unknown CPU"
        told += [*_workers(seat), *_threads(seat)]
        told.append(
            f"rank {seat.rank}: {cpu} in {seat.look.look_s:.1f} s, state {seat.look.state}"
            + (f", in {seat.look.wait_channel}" if seat.look.wait_channel else "")
        )
    told += _gpus(case, apart)
    told.append(
        f"{len(case.stuck)} of {len(case.waiting)} that wait stood there in both looks"
        ", and got nothing from other ranks meanwhile"
    )
    return tuple(told)


def _gpus(case: Case, apart: tuple[Seat, ...]) -> list[str]:
    """Who waits inside of a collective has a busy GPU; who has not come there has none."""
    busy = {one.rank: gpu.busy_percent for one in case.seats if (gpu := gpu_of(case.state, one))}
    known = {rank: percent for rank, percent in busy.items() if percent is not None}
    rest = [percent for rank, percent in known.items() if all(rank != one.rank for one in apart)]
    if not rest:
        return []
    others = f"those of the others {min(rest)} to {max(rest)} %"
    return [
        f"rank {one.rank}: its GPU is {known[one.rank]} % busy, {others}"
        for one in apart[:2]
        if one.rank in known
    ]


def _workers(seat: Seat) -> list[str]:
    """What the processes do that it waits for, in its loader or elsewhere."""
    if seat.place is None or seat.place.kind not in ("data", "process", "queue", "lock"):
        return []
    places = [(one.pid, place_of(one.stacks)) for one in seat.look.workers[:2]]
    told = [
        f"rank {seat.rank}: its worker (pid {pid}): {' < '.join(place.calls[:3])}"
        for pid, place in places
        if place is not None and place.calls
    ]
    if seat.look.dead_children:
        told.append(
            f"rank {seat.rank}: {count(seat.look.dead_children, 'process')} of its own died"
        )
    return told


def _threads(seat: Seat) -> list[str]:
    """What its other threads do, where its main one waits for them."""
    if seat.place is None or not (exits(seat) or seat.place.kind in ("queue", "lock")):
        return []
    stacks = seat.look.later or seat.look.stacks
    told = []
    for thread in stacks.threads if stacks else ():
        own = next((one for one in thread.frames if not library(one)), None)
        if own is not None and not thread.main and thread.name != "MainThread":
            name = f" {thread.name}" if thread.name else ""
            told.append(f"rank {seat.rank}: its thread{name}: {short(own)} in {own.function}")
    return told[:2]
