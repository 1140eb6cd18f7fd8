"""The odd one out: ranks that are elsewhere while the others wait in a collective."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.triage.diagnose.case import moved
from preflight.triage.diagnose.lost import line_of, lint_of
from preflight.triage.diagnose.model import Diagnosis, Doubt
from preflight.triage.diagnose.places import CODE, LOCKED, OTHERS, channel_words
from preflight.triage.diagnose.proof import evidence
from preflight.triage.diagnose.remedy import EVEN, advice_for, exits, next_of
from preflight.triage.diagnose.settled import settled
from preflight.triage.diagnose.words import count, doing, named, verb

if TYPE_CHECKING:
    from preflight.triage.diagnose.case import Case
    from preflight.triage.diagnose.seat import Seat

_FRESH_S = 60.0
"""A wait so young may be a step's own; torch's shortest default time-out is ten times that."""

_PATIENT = "look again in a minute: work that ends in time is no hang; else, "


def judge(case: Case) -> Diagnosis | None:
    """Ranks that do something of their own, while the rest is stuck waiting."""
    waiting = case.stuck
    apart = (*case.elsewhere, *case.ended)
    if not waiting or not apart:
        return None
    if len(apart) + len(case.unread) > len(case.waiting):
        return _most_are_elsewhere(case, apart)
    groups = case.spots(tuple(settled(one) for one in apart))
    sentence = "; ".join(f"{named(group)} {doing(group[0], len(group))}" for group in groups[:3])
    busy = _busy(apart)
    comes = f"; {verb(len(apart), 'it is', 'they are')} at work and may come" if busy else ""
    patient = busy or _fresh(case)
    return Diagnosis(
        category="odd_rank",
        culprits=tuple(f"rank {one.rank}" for one in sorted(apart, key=lambda seat: seat.rank)),
        sentence=f"{sentence}, while {waits_for(case, len(apart))}{comes}",
        advice=_PATIENT * patient + advice_for(groups[0][0]),
        line=line_of(groups[0]),
        evidence=evidence(case, apart),
        confidence=_confidence(case, apart),
        alternatives=_doubts(case, apart),
        next=next_of(groups[0][0]) or lint_of(case.waiting),
    )


def waits_for(case: Case, culprits: int) -> str:
    """`31 ranks wait for it in all_reduce (train.py:41)`."""
    number = len(case.waiting)
    groups = case.spots(case.waiting)
    place = groups[0][0].place
    whom = "it" if culprits == 1 else "them"
    where = place.where if place else ""
    more = f" and {count(len(groups) - 1, 'other place')}" if len(groups) > 1 else ""
    return f"{count(number)} {verb(number, 'waits', 'wait')} for {whom} in {where}{more}"


def _most_are_elsewhere(case: Case, apart: tuple[Seat, ...]) -> Diagnosis | None:
    """Few wait and most do not: either the few are alone in it, or the many share a trouble."""
    few = case.waiting
    if len(case.ended) > len(few) + len(case.unread) and len(case.ended) * 2 > len(apart):
        return Diagnosis(
            category="desync",
            culprits=tuple(f"rank {one.rank}" for one in few),
            sentence=f"{named(few)} {doing(few[0], len(few))}, which {count(len(case.ended))} "
            "do not come to: they have finished",
            advice=EVEN,
            line=line_of(few),
            evidence=evidence(case, few),
            confidence=0.7,
            next=lint_of(few),
        )
    groups = case.spots(apart)
    largest = groups[0]
    return Diagnosis(
        category="unknown",
        sentence=f"{len(largest)} of {case.roll.world} ranks: {named(largest)} "
        f"{doing(largest[0], len(largest))}, while {waits_for(case, len(apart))}: "
        + (
            f"too few are seen to say who is odd ({count(len(case.unread))} cannot be read)"
            if case.unread
            else "no one rank is odd, look at what they share"
        ),
        advice="look at what most of them do: the file system, the data, the server that they ask",
        line=line_of(largest),
        evidence=evidence(case, apart),
        confidence=0.4,
        alternatives=(
            Doubt(category="odd_rank", sentence="they come late, each by itself", confidence=0.3),
        ),
        next="pytest --preflight",
    )


def _confidence(case: Case, apart: tuple[Seat, ...]) -> float:
    surely = all(
        one.place and (one.place.kind in OTHERS or one.place.waits == "yes") for one in case.waiting
    )
    sure = 0.92 if surely else 0.8
    if len(apart) * 2 > len(case.waiting):
        sure -= 0.1
    if any(_open(one) for one in apart):
        sure -= 0.05
    if _busy(apart):
        sure -= 0.25
    elif _fresh(case):
        sure -= 0.15
    if any(exits(one) for one in apart):
        sure -= 0.1
    return sure


def _fresh(case: Case) -> bool:
    """Whether data came between ranks a moment ago: a hang is older than that when one asks."""
    return case.quiet_s is not None and case.quiet_s < _FRESH_S


def _busy(apart: tuple[Seat, ...]) -> bool:
    """Whether all of them work: whom the others wait for is certain then, that it hangs is not."""
    return all(moved(one) for one in apart)


def _open(seat: Seat) -> bool:
    """Whether its line may itself wait for others, in C++, for all that is known."""
    if seat.place is None or seat.place.kind != CODE or moved(seat) or seat.look.state == "disk":
        return False
    return channel_words(seat.look.wait_channel) in ("", LOCKED)


def _doubts(case: Case, apart: tuple[Seat, ...]) -> tuple[Doubt, ...]:
    doubts = []
    if any(moved(one) for one in apart) or _fresh(case):
        healthy = 0.4 if _busy(apart) else 0.2
        told = "no hang: it will come, as long as it ends before the group's time-out"
        doubts.append(Doubt(category="progresses", sentence=told, confidence=healthy))
    if any(_open(one) for one in apart):
        doubts.append(
            Doubt(
                category="desync",
                sentence="its line may itself wait for a collective that was begun before",
                confidence=0.15,
            )
        )
    return tuple(doubts)
