"""What flight recorders tell of a hang: whose call differs, and who has not called at all.

Calls of a group are numbered alike on all its ranks, so the first number at which they differ is
where it began. Only with this two ranks at the same line can be told apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping
from operator import itemgetter
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.hang.diagnose.model import (
    Diagnosis,
    count,
    doing,
    folded,
    line_of,
    lint_of,
    named,
    rank_names,
    ranks,
    verb,
)
from preflight.hang.flight_recorder import Allowance, Call, Recording, opened

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preflight.hang.diagnose.job_ranks import Case
    from preflight.hang.diagnose.model import Seat

_APART_S = 120.0
"""A file so much older than the newest is of another moment."""
_SAME_SHAPES = frozenset(
    {
        *("all_reduce", "allreduce", "broadcast", "reduce", "_all_gather_base", "_allgather_base"),
        *("all_gather_into_tensor", "all_gather_single", "_reduce_scatter_base"),
        *("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "all_reduce_coalesced"),
    }
)
"""Collectives that need the same shapes of all; others may differ by right."""


class Found(Struct, frozen=True, kw_only=True):
    """The first call of a group that does not fit."""

    group: str
    number: int
    odd: tuple[int, ...]
    """Ranks; nobody where neither side is the smaller one."""
    said: tuple[tuple[tuple[int, ...], str], ...]
    """Who called what; the most first."""
    absent: tuple[int, ...] = ()
    """Ranks that have ended all their calls and not made this one."""


def judge(case: Case) -> Diagnosis | None:
    """Answer where the recorders of a job that stands still differ."""
    if case.moving and not case.stuck:
        return None
    calls = recordings(case)
    found = next(iter(differences(calls, len(case.seats) - len(calls))), None)
    if found is None:
        return None
    seats = {one.rank: one for one in case.seats}
    some = tuple(seats[rank] for rank in found.odd)
    if found.absent:
        return _absent(found, some)
    told = "; ".join(
        f"{ranks(who)} {verb(len(who), 'calls', 'call')} {what}" for who, what in found.said[:4]
    )
    return Diagnosis(
        category="desync",
        culprits=tuple(f"rank {rank}" for rank in found.odd),
        sentence=f"{found.group}, call {found.number}: {told}"
        + (f"; {named(some)} differs from the others" if len(some) == 1 else ""),
        advice="compare how these ranks came to that call: shapes of a last batch, unused "
        "parameters, a branch by rank; all must call the same, with the same shapes",
        line=line_of(some or case.waiting),
        evidence=_evidence(calls, found),
        confidence=0.95 if found.odd else 0.85,
        next=lint_of(some or case.waiting),
    )


def _absent(found: Found, some: tuple[Seat, ...]) -> Diagnosis:
    who, what = found.said[0]
    elsewhere = all(one.place is None or not one.waits for one in some)
    places = "; ".join(f"rank {one.rank} {doing(one)}" for one in some[:3] if one.place)
    return Diagnosis(
        category="odd_rank" if elsewhere else "desync",
        culprits=rank_names(some),
        sentence=f"{named(some)} {verb(len(some), 'has', 'have')} not come to call "
        f"{found.number} of {found.group}: {what}, in which {count(len(who))} "
        f"{verb(len(who), 'waits', 'wait')}{f'; {places}' if places else ''}",
        advice="look at what that rank does in place of this call: a branch by rank, fewer "
        "batches, an error that it caught",
        line=line_of(some),
        evidence=tuple(
            f"ranks {folded(who)}: call {found.number}: {what}" for who, what in found.said
        ),
        confidence=0.9,
        next=lint_of(some),
    )


def recordings(case: Case) -> dict[int, Recording]:
    """Each rank's file, where it is of this process and of this moment."""
    ages = {node: look.time_s for node, look in case.state.looks.items()}
    fresh = [
        (seat, seat.look.dump.written_s)
        for seat in case.seats
        if seat.look.dump is not None
        and seat.look.dump.written_s >= ages[seat.node] - seat.look.age_s - 1
    ]
    newest = max((written for _, written in fresh), default=0.0)
    told = {}
    allowed: dict[str, Allowance] = defaultdict(Allowance)
    for seat, written in fresh:
        if seat.look.dump is not None and written >= newest - _APART_S:
            recording = opened(seat.look.dump, allowed[seat.node])
            if isinstance(recording, Recording):
                told[seat.rank] = recording
    return told


def differences(told: Mapping[int, Recording], missing: int = 0) -> list[Found]:
    """The first call of each group at which its ranks differ; the oldest first.

    `missing`: ranks without a recording, who may stand on either side.
    """
    groups: dict[str, dict[int, dict[int, Call]]] = {}
    last: dict[str, dict[int, int]] = {}
    for rank, recording in told.items():
        for call in recording.calls:
            if not call.alone:
                groups.setdefault(call.group, {}).setdefault(call.number, {})[rank] = call
                ends = last.setdefault(call.group, {})
                ends[rank] = max(call.number, ends.get(rank, call.number))
    waits = frozenset(rank for rank, one in told.items() if any(call.pending for call in one.calls))
    found = [
        one
        for name, calls in groups.items()
        if len(last[name]) > 1
        for one in _in_group(_Ranks(calls=calls, last=last[name], waits=waits, missing=missing))
    ]
    return [one for _, one in sorted(found, key=lambda pair: (pair[0], pair[1].group))]


class _Ranks(Struct, frozen=True, kw_only=True):
    """The calls of one group."""

    calls: Mapping[int, Mapping[int, Call]]
    """By number, then by rank."""
    last: Mapping[int, int]
    """The greatest number of each rank."""
    waits: frozenset[int]
    """Ranks with a call that has not ended, in whichever group."""
    missing: int

    def few(self, ranks: int) -> bool:
        """Whether so many are the smaller part, whatever the missing ones did."""
        return (ranks + self.missing) * 2 < len(self.last) + self.missing


def _in_group(group: _Ranks) -> list[tuple[int, Found]]:
    # Who waits in another group is held up there, and is not the cause here.
    idle = sorted((last, rank) for rank, last in group.last.items() if rank not in group.waits)
    begun = [n for n, here in group.calls.items() if any(one.pending for one in here.values())]
    first = min([*begun, min(group.last.values()) + 1])
    for number in sorted(number for number in group.calls if number >= first):
        behind = bisect_left(idle, number, key=itemgetter(0))
        found = _differs(group, number) or _behind(group, number, idle, behind)
        if found is not None:
            return [(min(one.begun_ns for one in group.calls[number].values()), found)]
    return []


def _differs(group: _Ranks, number: int) -> Found | None:
    told = _said(group.calls[number])
    if len(told) < 2:  # noqa: PLR2004  two sides
        return None
    few = tuple(sorted(rank for who, _ in told[1:] for rank in who))
    return Found(
        group=_name(group, number), number=number, odd=few if group.few(len(few)) else (), said=told
    )


def _behind(group: _Ranks, number: int, idle: list[tuple[int, int]], behind: int) -> Found | None:
    """Ranks that have ended all their calls while others wait in the next.

    `idle`: the last number of each rank that waits nowhere; the first `behind` are below this one.
    """
    here = group.calls[number]
    if not behind or not group.few(behind) or not any(call.pending for call in here.values()):
        return None
    who = tuple(sorted(rank for _, rank in idle[:behind]))
    return Found(group=_name(group, number), number=number, odd=who, said=_said(here), absent=who)


def _said(here: Mapping[int, Call]) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Who called what, the most first."""
    said: dict[str, list[int]] = {}
    shapes = len({one.op for one in here.values()}) == 1
    for rank, call in sorted(here.items()):
        said.setdefault(_words(call, shapes=shapes), []).append(rank)
    ordered = sorted(said.items(), key=lambda item: (-len(item[1]), item[1]))
    return tuple((tuple(who), what) for what, who in ordered)


def _words(call: Call, *, shapes: bool) -> str:
    """What a rank called, as far as it must be alike: `all_reduce of [64, 64] Float`."""
    if not shapes or call.op not in _SAME_SHAPES:
        return call.op
    sizes = ", ".join(str(list(one)) for one in call.sizes[:3]) + " ..." * (len(call.sizes) > 3)  # noqa: PLR2004
    kinds = "/".join(Counter(call.types))
    return f"{call.op} of {sizes or 'nothing'} {kinds}".rstrip()


def _name(group: _Ranks, number: int) -> str:
    call = next(iter(group.calls[number].values()))
    about = call.about if call.about and call.about != "undefined" else ""
    return f"group {call.group}{f' ({about})' if about else ''}"


def _evidence(calls: Mapping[int, Recording], found: Found) -> tuple[str, ...]:
    told = [f"{ranks(who)}: call {found.number}: {what}" for who, what in found.said[:4]]
    told += _frames(calls, found.odd, found.number)
    return tuple(told)


def _frames(calls: Mapping[int, Recording], some: Iterable[int], number: int) -> list[str]:
    """Where those were called, if the recorder kept stacks."""
    lines = []
    for rank in list(some)[:3]:
        call = next((one for one in calls[rank].calls if one.number == number), None)
        if call is not None and call.frames:
            way = " < ".join(
                f"{one.function} ({one.file.rpartition('/')[2]}:{one.line})"
                for one in call.frames[:5]
            )
            lines.append(f"rank {rank}: {way}")
    return lines
