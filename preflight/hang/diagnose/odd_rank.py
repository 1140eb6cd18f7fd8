"""The odd one out: ranks that are elsewhere while the others wait in a collective.

Ranks that wait in one collective sleep in one kernel function: where no stack can be read, that
tells something too. It names no line, so little is sure.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.hang.answer_text import Alternative
from preflight.hang.diagnose.job_ranks import moved
from preflight.hang.diagnose.model import (
    IDLE,
    Diagnosis,
    count,
    doing,
    line_of,
    lint_of,
    named,
    rank_names,
    verb,
)
from preflight.hang.diagnose.places import (
    CODE,
    LOCKED,
    OTHERS,
    Place,
    channel_of,
    channel_words,
    knowledge,
    library,
    main_frames,
    place_of,
    short,
)

if TYPE_CHECKING:
    from preflight.facts.job import Frame
    from preflight.hang.diagnose.job_ranks import Case
    from preflight.hang.diagnose.model import Seat


_EXIT = (
    "read its own output first: an error may have ended its script (preflight explain LOG), or it "
    "ran out of steps before the others (drop_last=True, equal batches, join())"
)
_OTHERWISE = (
    "look at that line: let all ranks do it, or make it short; what one rank does alone must "
    "end before the group's time-out"
)


def next_of(seat: Seat) -> str:
    """The node where it is at work by itself; the script where its way is what differs."""
    if exits(seat):
        return "preflight explain LOG"
    if seat.place is None or seat.place.kind in ("data", "checkpoint", "io", "download"):
        return f"pytest --preflight --preflight-nodes={seat.node}"
    return lint_of((seat,)) if seat.place.user is not None else ""


def advice_for(seat: Seat) -> str:
    """By what it is at, else by what the kernel says that it sleeps in."""
    if exits(seat):
        return _EXIT
    by_channel = channel_of(seat.look.wait_channel).advice if seat.kind == CODE else ""
    return by_channel or knowledge().advice.get(seat.kind, _OTHERWISE)


def exits(seat: Seat) -> bool:
    """Whether it has left its script, and only threads of its own keep it alive."""
    return seat.place is not None and seat.place.op == "exit"


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
    known = {one.rank: used for one in case.seats if (used := one.busy_percent) is not None}
    own = {one.rank for one in apart}
    rest = [percent for rank, percent in known.items() if rank not in own]
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


def settled(seat: Seat) -> Seat:
    """The same rank at the innermost of the user's functions that all looks saw it in.

    What an evaluation was doing at the last look (a file, a layer) is chance; that it evaluates is
    not. Unchanged where all looks agree, or have no function of the user's in common.
    """
    looks = _looks(seat)
    place = seat.place
    if place is None or len(looks) < 2:  # noqa: PLR2004  nothing to compare
        return seat
    user = next((one for one in reversed(_shared(looks)) if not library(one)), None)
    if user is None or user == place.user:
        return seat
    kinds = {one.kind for one in (place, seat.before, *(one for one, _ in seat.seen)) if one}
    if kinds == {place.kind} and place.kind != CODE:
        return replace(seat, place=replace(place, user=user))
    return replace(seat, place=Place(kind=CODE, waits="idle", user=user, calls=place.calls))


def _looks(seat: Seat) -> list[tuple[Frame, ...]]:
    """Its stacks, outermost call first; that of the last look first, whose lines are told."""
    look = seat.look
    sampled = [one.frames for one in look.sightings]
    stacks = [main_frames(look.later), main_frames(look.stacks), *sampled]
    return [tuple(reversed(frames)) for frames in stacks if frames]


def _shared(looks: list[tuple[Frame, ...]]) -> list[Frame]:
    """The calls that all stacks begin with; of the last of them the line may differ."""
    shared: list[Frame] = []
    for frames in zip(*looks, strict=False):
        if len({(one.file, one.function) for one in frames}) > 1:
            break
        shared.append(frames[0])
        if len({one.line for one in frames}) > 1:
            break
    return shared


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
        culprits=rank_names(sorted(apart, key=lambda seat: seat.rank)),
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
            culprits=rank_names(few),
            sentence=f"{named(few)} {doing(few[0], len(few))}, which {count(len(case.ended))} "
            "do not come to: they have finished",
            advice=knowledge().advice["end"],
            line=line_of(few),
            evidence=evidence(case, few),
            confidence=0.7,
            next=lint_of(few),
        )
    groups = case.spots(apart)
    largest = groups[0]
    return Diagnosis(
        sentence=f"{len(largest)} of {case.world} ranks: {named(largest)} "
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
        alternatives=(Alternative("odd_rank", "they come late, each by itself", 0.3),),
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


def _doubts(case: Case, apart: tuple[Seat, ...]) -> tuple[Alternative, ...]:
    doubts = []
    if any(moved(one) for one in apart) or _fresh(case):
        healthy = 0.4 if _busy(apart) else 0.2
        told = "no hang: it will come, as long as it ends before the group's time-out"
        doubts.append(Alternative("progresses", told, healthy))
    if any(_open(one) for one in apart):
        doubts.append(
            Alternative(
                "desync", "its line may itself wait for a collective that was begun before", 0.15
            )
        )
    return tuple(doubts)


_MOST, _FEW = 0.75, 0.25
"""Of the job's ranks: those in one sleep, and those that are not."""


def judge_blind(case: Case) -> Diagnosis | None:
    """Unread ranks that compute, or sleep in something else than the rest, which is at rest."""
    if not case.unread or case.elsewhere or case.ended or (case.read and not case.stuck):
        return None
    if any(one.fed for one in case.seats):
        return None
    resting = [one for one in case.seats if _rests(one)]
    channel, number = _usual(case, resting)
    odd = tuple(one for one in case.unread if _differs(one, channel))
    if not channel or not odd or number < _MOST * case.world:
        return None
    if len(odd) > _FEW * case.world or number + len(odd) < len(case.seats):
        return None
    told = "; ".join(f"{one.name} {_words(one)}" for one in odd[:3])
    return Diagnosis(
        category="odd_rank",
        culprits=rank_names(odd),
        sentence=f"{told}, while {count(number)} {verb(number, 'sleeps', 'sleep')} in {channel}; "
        f"no stack of {named(odd)} could be read, so its line is not known",
        advice="let its stack be read (below), and look again",
        evidence=tuple(
            f"rank {one.rank}: {one.cpu:.0%} of a core, state {one.look.state}, "
            f"in {one.look.wait_channel or 'no sleep'}"
            for one in odd[:6]
        ),
        confidence=0.55 if case.read else 0.45,
        alternatives=(Alternative("unknown", "it sleeps elsewhere by chance", 0.3),),
        next="preflight diagnose",
    )


def _usual(case: Case, resting: list[Seat]) -> tuple[str, int]:
    """The sleep of those that are known to wait, else of most; and of how many it is."""
    stuck = {one.rank for one in case.stuck}
    known = [one for one in resting if one.rank in stuck] or resting
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
