"""Finds in flight recordings which ranks' call differs, and which have not made it at all.

All ranks of a group number its calls alike, so the hang began at the first number at which they
differ. Only the number distinguishes two ranks at the same line.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from preflight.hang.call_waits import Root, follow
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
from preflight.hang.flight_recorder import Allowance, Recording, open_dump

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from preflight.hang.diagnose.job_ranks import Case
    from preflight.hang.diagnose.job_state import RankState

_KINDS = ("differs", "absent", "crossed")
_APART_S = 120.0
"""A file this much older than the newest is from another moment."""


def judge(case: Case) -> Diagnosis | None:
    """Answer if the recordings of a stuck job differ."""
    if case.moving and not case.stuck:
        return None
    calls = recordings(case)
    waits = follow(calls, len(case.members) - len(calls))
    usable = (one for one in waits.roots if one.kind in _KINDS and one.few)
    found = next((one for one in usable if one.ranks or one.kind == "differs"), None)
    if found is None:
        return None
    members = {one.rank: one for one in case.members}
    some = tuple(members[rank] for rank in found.ranks)
    if found.kind == "absent":
        return _absent(found, some)
    calls_made = "; ".join(
        f"{ranks(callers)} {verb(len(callers), 'calls', 'call')} {what}"
        for callers, what in found.calls[:4]
    )
    return Diagnosis(
        category="desync",
        culprits=tuple(f"rank {rank}" for rank in found.ranks),
        sentence=f"{found.group}, call {found.number}: {calls_made}"
        + (f"; {describe_ranks(some)} differs from the others" if len(some) == 1 else ""),
        advice="compare how these ranks got to that call: the shape of a last batch, unused "
        "parameters, a branch by rank; all must make the same call, with the same shapes",
        line=line_of(some or case.waiting),
        evidence=_evidence(calls, found),
        confidence=0.95 if found.ranks else 0.85,
        next=lint_of(some or case.waiting),
    )


def _absent(found: Root, some: tuple[RankState, ...]) -> Diagnosis:
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


def _evidence(calls: Mapping[int, Recording], found: Root) -> tuple[str, ...]:
    lines = [f"{ranks(callers)}: call {found.number}: {what}" for callers, what in found.calls[:4]]
    lines += _frames(calls, found.ranks, found.number)
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
