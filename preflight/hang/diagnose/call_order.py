"""Finds in flight recordings which ranks' call differs, and which have not made it at all.

All ranks of a group number its calls alike, so the hang began at the first number at which they
differ. Only the number distinguishes two ranks at the same line.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping
from operator import itemgetter
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.hang.diagnose.job_state import (
    Diagnosis,
    count,
    describe_activity,
    describe_ranks,
    fold_ranks,
    line_of,
    lint_of,
    rank_names,
    ranks,
    verb,
)
from preflight.hang.flight_recorder import Allowance, Call, Recording, open_dump

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preflight.hang.diagnose.job_ranks import Case
    from preflight.hang.diagnose.job_state import RankState

_APART_S = 120.0
"""A file this much older than the newest is from another moment."""
_SAME_SHAPES = frozenset(
    {
        *("all_reduce", "allreduce", "broadcast", "reduce", "_all_gather_base", "_allgather_base"),
        *("all_gather_into_tensor", "all_gather_single", "_reduce_scatter_base"),
        *("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "all_reduce_coalesced"),
    }
)
"""Collectives that need the same shapes on all ranks; others may differ."""


class Difference(Struct, frozen=True, kw_only=True):
    """The first call of a group at which its ranks differ."""

    group: str
    number: int
    odd: tuple[int, ...]
    """Ranks of the smaller side; empty if neither is smaller."""
    calls: tuple[tuple[tuple[int, ...], str], ...]
    """(ranks, their call), most ranks first."""
    absent: tuple[int, ...] = ()
    """Ranks that have finished all their calls and have not made this one."""


def judge(case: Case) -> Diagnosis | None:
    """Answer if the recordings of a stuck job differ."""
    if case.moving and not case.stuck:
        return None
    calls = recordings(case)
    found = next(iter(differences(calls, len(case.members) - len(calls))), None)
    if found is None:
        return None
    members = {one.rank: one for one in case.members}
    some = tuple(members[rank] for rank in found.odd)
    if found.absent:
        return _absent(found, some)
    calls_made = "; ".join(
        f"{ranks(callers)} {verb(len(callers), 'calls', 'call')} {what}"
        for callers, what in found.calls[:4]
    )
    return Diagnosis(
        category="desync",
        culprits=tuple(f"rank {rank}" for rank in found.odd),
        sentence=f"{found.group}, call {found.number}: {calls_made}"
        + (f"; {describe_ranks(some)} differs from the others" if len(some) == 1 else ""),
        advice="compare how these ranks got to that call: the shape of a last batch, unused "
        "parameters, a branch by rank; all must make the same call, with the same shapes",
        line=line_of(some or case.waiting),
        evidence=_evidence(calls, found),
        confidence=0.95 if found.odd else 0.85,
        next=lint_of(some or case.waiting),
    )


def _absent(found: Difference, some: tuple[RankState, ...]) -> Diagnosis:
    callers, what = found.calls[0]
    elsewhere = all(one.place is None or not one.waits for one in some)
    places = "; ".join(f"rank {one.rank} {describe_activity(one)}" for one in some[:3] if one.place)
    return Diagnosis(
        category="odd_rank" if elsewhere else "desync",
        culprits=rank_names(some),
        sentence=f"{describe_ranks(some)} {verb(len(some), 'has', 'have')} not reached call "
        f"{found.number} of {found.group}: {what}, in which {count(len(callers))} "
        f"{verb(len(callers), 'waits', 'wait')}{f'; {places}' if places else ''}",
        advice="find what that rank does instead of this call: a branch by rank, fewer "
        "batches, an error that it caught",
        line=line_of(some),
        evidence=tuple(
            f"ranks {fold_ranks(callers)}: call {found.number}: {what}"
            for callers, what in found.calls
        ),
        confidence=0.9,
        next=lint_of(some),
    )


def recordings(case: Case) -> dict[int, Recording]:
    """Each rank's recording, if it is from this process and this moment."""
    ages = {node: look.time_s for node, look in case.state.looks.items()}
    fresh = [
        (member, member.look.dump.written_s)
        for member in case.members
        if member.look.dump is not None
        and member.look.dump.written_s >= ages[member.node] - member.look.age_s - 1
    ]
    newest = max((written for _, written in fresh), default=0.0)
    by_rank = {}
    allowed: dict[str, Allowance] = defaultdict(Allowance)
    for member, written in fresh:
        if member.look.dump is not None and written >= newest - _APART_S:
            recording = open_dump(member.look.dump, allowed[member.node])
            if isinstance(recording, Recording):
                by_rank[member.rank] = recording
    return by_rank


def differences(recorded: Mapping[int, Recording], missing: int = 0) -> list[Difference]:
    """The first call of each group at which its ranks differ, oldest first.

    `missing`: the number of ranks without a recording, which may be on either side.
    """
    groups: dict[str, dict[int, dict[int, Call]]] = {}
    last: dict[str, dict[int, int]] = {}
    for rank, recording in recorded.items():
        for call in recording.calls:
            if not call.alone:
                groups.setdefault(call.group, {}).setdefault(call.number, {})[rank] = call
                ends = last.setdefault(call.group, {})
                ends[rank] = max(call.number, ends.get(rank, call.number))
    waits = frozenset(
        rank for rank, one in recorded.items() if any(call.pending for call in one.calls)
    )
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
    """The last call number of each rank."""
    waits: frozenset[int]
    """Ranks with an unfinished call in any group."""
    missing: int

    def few(self, ranks: int) -> bool:
        """Whether this many ranks are the minority, whatever the missing ranks did."""
        return (ranks + self.missing) * 2 < len(self.last) + self.missing


def _in_group(group: _Ranks) -> list[tuple[int, Difference]]:
    # A rank that waits in another group is not the cause here.
    idle = sorted((last, rank) for rank, last in group.last.items() if rank not in group.waits)
    begun = [n for n, here in group.calls.items() if any(one.pending for one in here.values())]
    first = min([*begun, min(group.last.values()) + 1])
    for number in sorted(number for number in group.calls if number >= first):
        behind = bisect_left(idle, number, key=itemgetter(0))
        found = _differs(group, number) or _behind(group, number, idle, behind)
        if found is not None:
            return [(min(one.begun_ns for one in group.calls[number].values()), found)]
    return []


def _differs(group: _Ranks, number: int) -> Difference | None:
    sides = _calls_made(group.calls[number])
    if len(sides) < 2:  # noqa: PLR2004  two sides
        return None
    few = tuple(sorted(rank for callers, _ in sides[1:] for rank in callers))
    return Difference(
        group=_name(group, number),
        number=number,
        odd=few if group.few(len(few)) else (),
        calls=sides,
    )


def _behind(
    group: _Ranks, number: int, idle: list[tuple[int, int]], behind: int
) -> Difference | None:
    """Ranks that have finished all their calls while others wait in the next.

    `idle`: the last number of each rank without an unfinished call; the first `behind` are below
    this one.
    """
    here = group.calls[number]
    if not behind or not group.few(behind) or not any(call.pending for call in here.values()):
        return None
    absent = tuple(sorted(rank for _, rank in idle[:behind]))
    return Difference(
        group=_name(group, number),
        number=number,
        odd=absent,
        calls=_calls_made(here),
        absent=absent,
    )


def _calls_made(here: Mapping[int, Call]) -> tuple[tuple[tuple[int, ...], str], ...]:
    """(ranks, their call), most ranks first."""
    by_call: dict[str, list[int]] = {}
    shapes = len({one.op for one in here.values()}) == 1
    for rank, call in sorted(here.items()):
        by_call.setdefault(_words(call, shapes=shapes), []).append(rank)
    ordered = sorted(by_call.items(), key=lambda item: (-len(item[1]), item[1]))
    return tuple((tuple(callers), what) for what, callers in ordered)


def _words(call: Call, *, shapes: bool) -> str:
    """The parts of a call that must be equal: `all_reduce of [64, 64] Float`."""
    if not shapes or call.op not in _SAME_SHAPES:
        return call.op
    sizes = ", ".join(str(list(one)) for one in call.sizes[:3]) + " ..." * (len(call.sizes) > 3)  # noqa: PLR2004
    kinds = "/".join(Counter(call.types))
    return f"{call.op} of {sizes or 'nothing'} {kinds}".rstrip()


def _name(group: _Ranks, number: int) -> str:
    call = next(iter(group.calls[number].values()))
    about = call.about if call.about and call.about != "undefined" else ""
    return f"group {call.group}{f' ({about})' if about else ''}"


def _evidence(calls: Mapping[int, Recording], found: Difference) -> tuple[str, ...]:
    lines = [f"{ranks(callers)}: call {found.number}: {what}" for callers, what in found.calls[:4]]
    lines += _frames(calls, found.odd, found.number)
    return tuple(lines)


def _frames(calls: Mapping[int, Recording], some: Iterable[int], number: int) -> list[str]:
    """Where these ranks made the call, if the recorder kept stacks."""
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
