"""The odd rank: ranks that are elsewhere while the others wait in a collective.

Ranks that wait in one collective sleep in one kernel function: this shows the odd rank even
without stacks, but not its line, so the confidence is low.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.core.text import percent
from preflight.hang.answer_text import Alternative
from preflight.hang.diagnose.job_state import (
    IDLE,
    Diagnosis,
    busy_percents,
    count,
    describe,
    describe_ranks,
    line_of,
    lint_of,
    rank_names,
    verb,
)
from preflight.hang.diagnose.places import (
    CODE,
    LOCKED,
    Place,
    channel_of,
    channel_words,
    in_library,
    knowledge,
    main_frames,
    place_of,
    short,
)

if TYPE_CHECKING:
    from preflight.facts.job import Frame
    from preflight.hang.diagnose.job_ranks import Case
    from preflight.hang.diagnose.job_state import RankState


def next_of(member: RankState) -> str:
    """The next command: check its node if the rank works alone, its script if its path differs."""
    if exits(member):
        return "preflight explain LOG"
    if member.place is None or member.place.kind in ("data", "checkpoint", "io", "download"):
        return f"preflight check --nodes={member.node}"
    return lint_of((member,)) if member.place.user is not None else ""


def advice_for(member: RankState) -> str:
    """Advice by the kind of its place, otherwise by its wait channel in the kernel."""
    advice = knowledge().advice
    if exits(member):
        return advice["exit"]
    by_channel = channel_of(member.look.wait_channel).advice if member.kind == CODE else ""
    return by_channel or advice.get(member.kind, advice["otherwise"])


def exits(member: RankState) -> bool:
    """Whether it has left its script, and only its threads keep it alive."""
    return member.place is not None and member.place.op == "exit"


def evidence(case: Case, apart: tuple[RankState, ...]) -> tuple[str, ...]:
    """Proof for up to four of these ranks, and for the wait of the others."""
    proof = []
    for member in sorted(apart, key=lambda member: member.rank)[:4]:
        calls = member.place.calls if member.place else ()
        proof.append(f"rank {member.rank}: {' < '.join(calls[:5]) or member.activity}")
        cpu = f"{percent(member.cpu)} of a core" if member.look.look_s else "unknown CPU"
        proof += [*_workers(member), *_threads(member)]
        proof.append(
            f"rank {member.rank}: {cpu} in {member.look.look_s:.1f} s, state {member.look.state}"
            + (f", in {member.look.wait_channel}" if member.look.wait_channel else "")
        )
    proof += _gpus(case, apart)
    proof.append(
        f"{len(case.stuck)} of {len(case.waiting)} that wait were there in both looks"
        ", and received nothing from other ranks between them"
    )
    return tuple(proof)


def _gpus(case: Case, apart: tuple[RankState, ...]) -> list[str]:
    """A rank that waits inside a collective has a busy GPU; one that has not reached it has not."""
    busy = busy_percents(case.members)
    odd_ranks = {member.rank for member in apart}
    other_percents = [percent for rank, percent in busy.items() if rank not in odd_ranks]
    if not other_percents:
        return []
    others = f"those of the others {min(other_percents)} to {max(other_percents)} %"
    return [
        f"rank {member.rank}: its GPU is {busy[member.rank]} % busy, {others}"
        for member in apart[:2]
        if member.rank in busy
    ]


def _workers(member: RankState) -> list[str]:
    """What the worker processes do for which it waits, in its DataLoader or elsewhere."""
    if member.kind not in ("data", "process", "queue", "lock"):
        return []
    places = [(worker.pid, place_of(worker.stacks)) for worker in member.look.workers[:2]]
    lines = [
        f"rank {member.rank}: its worker (pid {pid}): {' < '.join(place.calls[:3])}"
        for pid, place in places
        if place is not None and place.calls
    ]
    if member.look.dead_children:
        lines.append(
            f"rank {member.rank}: {count(member.look.dead_children, 'process')} of its own died"
        )
    return lines


def _threads(member: RankState) -> list[str]:
    """What its other threads do, if its main thread waits for them."""
    if not (exits(member) or member.kind in ("queue", "lock")):
        return []
    stacks = member.look.later or member.look.stacks
    lines = []
    for thread in stacks.threads if stacks else ():
        user = next((frame for frame in thread.frames if not in_library(frame.file)), None)
        if user is not None and not thread.main and thread.name != "MainThread":
            name = f" {thread.name}" if thread.name else ""
            lines.append(f"rank {member.rank}: its thread{name}: {short(user)} in {user.function}")
    return lines[:2]


def at_common_function(member: RankState) -> RankState:
    """The same rank, placed at the innermost user function that all looks have in common.

    What an evaluation does at the last look (a file, a layer) is chance; that it evaluates is
    not. Unchanged if all looks agree, or have no user function in common.
    """
    looks = _looks(member)
    place = member.place
    if place is None or len(looks) < 2:  # noqa: PLR2004  nothing to compare
        return member
    common = reversed(_common_calls(looks))
    user = next((frame for frame in common if not in_library(frame.file)), None)
    if user is None or user == place.user:
        return member
    kinds = {seen.kind for seen in (*member.places, *(sampled for sampled, _ in member.seen))}
    if kinds == {place.kind} and place.kind != CODE:
        return replace(member, place=replace(place, user=user))
    return replace(member, place=Place(kind=CODE, waits="idle", user=user, calls=place.calls))


def _looks(member: RankState) -> list[tuple[Frame, ...]]:
    """Its stacks, outermost call first; the last look comes first, because its lines are shown."""
    look = member.look
    sampled = [sighting.frames for sighting in look.sightings]
    stacks = [main_frames(look.later), main_frames(look.stacks), *sampled]
    return [tuple(reversed(frames)) for frames in stacks if frames]


def _common_calls(looks: list[tuple[Frame, ...]]) -> list[Frame]:
    """The calls with which all stacks begin; the line of the last one may differ."""
    shared: list[Frame] = []
    for frames in zip(*looks, strict=False):
        if len({(frame.file, frame.function) for frame in frames}) > 1:
            break
        shared.append(frames[0])
        if len({frame.line for frame in frames}) > 1:
            break
    return shared


_LATELY_S = 60.0
"""A shorter wait may be part of a step; torch's shortest default timeout is ten times that."""

_LOOK_AGAIN = "look again in a minute: work that ends in time is no hang; otherwise, "


def judge(case: Case) -> Diagnosis | None:
    """Ranks that are elsewhere while all others are stuck waiting."""
    waiting = case.stuck
    apart = (*case.elsewhere, *case.ended)
    if not waiting or not apart:
        return None
    if len(apart) + len(case.unreadable) > len(case.waiting):
        return _most_are_elsewhere(case, apart)
    groups = case.spots(tuple(at_common_function(member) for member in apart))
    sentence = "; ".join(describe(group) for group in groups[:3])
    working = _all_work(apart)
    may_arrive = f"; {verb(len(apart), 'it is', 'they are')} at work and may still arrive" * working
    may_be_a_step = working or _data_passed_lately(case)
    return Diagnosis(
        category="odd_rank",
        culprits=rank_names(apart),
        sentence=f"{sentence}, while {waits_for(case, len(apart))}{may_arrive}",
        advice=_LOOK_AGAIN * may_be_a_step + advice_for(groups[0][0]),
        line=line_of(groups[0]),
        evidence=evidence(case, apart),
        confidence=_confidence(case, apart),
        alternatives=_alternatives(case, apart),
        next=next_of(groups[0][0]) or lint_of(case.waiting),
    )


def waits_for(case: Case, culprits: int) -> str:
    """`31 ranks wait for it in all_reduce (train.py:41)`."""
    number = len(case.waiting)
    groups = case.spots(case.waiting)
    place = groups[0][0].place
    pronoun = verb(culprits, "it", "them")
    where = place.where if place else ""
    more = f" and {count(len(groups) - 1, 'other place')}" if len(groups) > 1 else ""
    return f"{count(number)} {verb(number, 'waits', 'wait')} for {pronoun} in {where}{more}"


def _most_are_elsewhere(case: Case, apart: tuple[RankState, ...]) -> Diagnosis | None:
    """Few ranks wait and most do not: the few differ, or the others share a problem."""
    few = case.waiting
    if len(case.ended) > len(few) + len(case.unreadable) and len(case.ended) * 2 > len(apart):
        return Diagnosis(
            category="desync",
            culprits=rank_names(few),
            sentence=f"{describe(few)}, which {count(len(case.ended))} "
            "will not reach: they have finished",
            advice=knowledge().advice["end"],
            line=line_of(few),
            evidence=evidence(case, few),
            confidence=0.7,
            next=lint_of(few),
        )
    largest = case.spots(apart)[0]
    why = "no single rank is odd, look at what they share"
    if case.unreadable:
        why = f"too few are visible to name it ({count(len(case.unreadable))} cannot be read)"
    return Diagnosis(
        sentence=f"{len(largest)} of {case.world} ranks: {describe(largest)}, "
        f"while {waits_for(case, len(apart))}: {why}",
        advice="look at what most of them do: the file system, the data, the server that they use",
        line=line_of(largest),
        evidence=evidence(case, apart),
        confidence=0.4,
        alternatives=(Alternative("odd_rank", "they are late, each for its own reason", 0.3),),
        next="preflight check",
    )


def _confidence(case: Case, apart: tuple[RankState, ...]) -> float:
    surely = all(member.place and member.place.waits == "yes" for member in case.waiting)
    sure = 0.92 if surely else 0.8
    if len(apart) * 2 > len(case.waiting):
        sure -= 0.1
    if any(_may_wait_itself(member) for member in apart):
        sure -= 0.05
    if _all_work(apart):
        sure -= 0.25
    elif _data_passed_lately(case):
        sure -= 0.15
    if any(exits(member) for member in apart):
        sure -= 0.1
    return sure


def _data_passed_lately(case: Case) -> bool:
    """Whether data passed between ranks a moment ago: a hang is older when someone looks."""
    return case.quiet_s is not None and case.quiet_s < _LATELY_S


def _all_work(apart: tuple[RankState, ...]) -> bool:
    """Whether all of them work: then the culprit is certain, but not that the job hangs."""
    return all(member.moved for member in apart)


def _may_wait_itself(member: RankState) -> bool:
    """Whether its line may itself wait for others in C++."""
    if member.kind != CODE or member.moved or member.look.state == "disk":
        return False
    return channel_words(member.look.wait_channel) in ("", LOCKED)


def _alternatives(case: Case, apart: tuple[RankState, ...]) -> tuple[Alternative, ...]:
    alternatives = []
    if any(member.moved for member in apart) or _data_passed_lately(case):
        healthy = 0.4 if _all_work(apart) else 0.2
        sentence = "no hang: it will arrive, if its work ends before the group's timeout"
        alternatives.append(Alternative("progresses", sentence, healthy))
    if any(_may_wait_itself(member) for member in apart):
        alternatives.append(
            Alternative("desync", "its line may itself wait for an earlier collective", 0.15)
        )
    return tuple(alternatives)


_MOST, _FEW = 0.75, 0.25
"""Shares of the job's ranks: those in one wait channel, and the others."""


def judge_blind(case: Case) -> Diagnosis | None:
    """Ranks without a stack that compute, or sleep in another wait channel than the rest."""
    if not case.unreadable or case.elsewhere or case.ended or (case.readable and not case.stuck):
        return None
    if any(member.fed for member in case.members):
        return None
    resting = [member for member in case.members if _is_at_rest(member)]
    channel, number = _common_channel(case, resting)
    odd = tuple(member for member in case.unreadable if _differs(member, channel))
    if not channel or not odd or number < _MOST * case.world:
        return None
    if len(odd) > _FEW * case.world or number + len(odd) < len(case.members):
        return None
    oddities = "; ".join(f"{member.name} {_oddity(member)}" for member in odd[:3])
    return Diagnosis(
        category="odd_rank",
        culprits=rank_names(odd),
        sentence=f"{oddities}, while {count(number)} {verb(number, 'sleeps', 'sleep')} in "
        f"{channel}; no stack of {describe_ranks(odd)} could be read, so its line is unknown",
        advice="make its stack readable (below), and look again",
        evidence=tuple(
            f"rank {member.rank}: {percent(member.cpu)} of a core, state {member.look.state}, "
            f"in {member.look.wait_channel or 'no sleep'}"
            for member in odd[:6]
        ),
        confidence=0.55 if case.readable else 0.45,
        alternatives=(Alternative("unknown", "it sleeps elsewhere by chance", 0.3),),
        next="preflight diagnose",
    )


def _common_channel(case: Case, resting: list[RankState]) -> tuple[str, int]:
    """The wait channel of ranks known to wait, otherwise of most; and the number of ranks in it."""
    stuck = {member.rank for member in case.stuck}
    sleepers = [member for member in resting if member.rank in stuck] or resting
    counts = Counter(member.look.wait_channel for member in sleepers if member.look.wait_channel)
    channel = max(counts, key=lambda name: (counts[name], name), default="")
    return channel, sum(member.look.wait_channel == channel for member in resting)


def _is_at_rest(member: RankState) -> bool:
    return member.look.state == "sleeping" and member.cpu < IDLE


def _differs(member: RankState, channel: str) -> bool:
    in_another = member.look.wait_channel not in ("", channel)
    return member.computes or (in_another and _is_at_rest(member))


def _oddity(member: RankState) -> str:
    if member.computes:
        return f"computes ({percent(member.cpu)} of a core)"
    channel = member.look.wait_channel
    words = channel_words(channel)
    return f"sleeps in {channel}{f' ({words})' if words else ''}"
