"""Ranks whose stacks nobody could read: what the kernel says that they sleep in, held together.

Ranks that wait in one collective sleep in one kernel function. It names no line, so little is sure.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from preflight.triage.diagnose.model import Diagnosis, Doubt
from preflight.triage.diagnose.places import channel_words
from preflight.triage.diagnose.seat import IDLE
from preflight.triage.diagnose.words import count, named, verb

if TYPE_CHECKING:
    from preflight.triage.diagnose.case import Case
    from preflight.triage.diagnose.seat import Seat

_MOST, _FEW = 0.75, 0.25
"""Of the job's ranks: those in one sleep, and those that are not."""


def judge(case: Case) -> Diagnosis | None:
    """Unread ranks that compute, or sleep in something else than the rest, which is at rest."""
    if not case.unread or case.elsewhere or case.ended or (case.read and not case.stuck):
        return None
    if any(one.fed for one in case.seats):
        return None
    resting = [one for one in case.seats if _rests(one)]
    channel, number = _usual(case, resting)
    odd = tuple(one for one in case.unread if _differs(one, channel))
    if not channel or not odd or number < _MOST * case.roll.world:
        return None
    if len(odd) > _FEW * case.roll.world or number + len(odd) < len(case.seats):
        return None
    told = "; ".join(f"{one.name} {_words(one)}" for one in odd[:3])
    return Diagnosis(
        category="odd_rank",
        culprits=tuple(f"rank {one.rank}" for one in odd),
        sentence=f"{told}, while {count(number)} {verb(number, 'sleeps', 'sleep')} in {channel}; "
        f"no stack of {named(odd)} could be read, so its line is not known",
        advice="let its stack be read (below), and look again",
        evidence=tuple(
            f"rank {one.rank}: {one.cpu:.0%} of a core, state {one.look.state}, "
            f"in {one.look.wait_channel or 'no sleep'}"
            for one in odd[:6]
        ),
        confidence=0.55 if case.read else 0.45,
        alternatives=(
            Doubt(category="unknown", sentence="it sleeps elsewhere by chance", confidence=0.3),
        ),
        next="preflight diagnose",
    )


def _usual(case: Case, resting: list[Seat]) -> tuple[str, int]:
    """The sleep of those that are known to wait, else of most; and of how many it is."""
    known = [one for one in resting if one in case.stuck] or resting
    counts = Counter(one.look.wait_channel for one in known if one.look.wait_channel)
    channel = max(counts, key=lambda name: (counts[name], name), default="")
    return channel, sum(one.look.wait_channel == channel for one in resting)


def _rests(seat: Seat) -> bool:
    return seat.look.state == "sleeping" and seat.cpu < IDLE


def _differs(seat: Seat, channel: str) -> bool:
    if seat.computes:
        return True
    return _rests(seat) and seat.look.wait_channel not in ("", channel)


def _words(seat: Seat) -> str:
    if seat.computes:
        return f"computes ({seat.cpu:.0%} of a core)"
    channel = seat.look.wait_channel
    known = channel_words(channel)
    return f"sleeps in {channel}{f' ({known})' if known else ''}"
