"""Whether the job progresses, and which ranks slow it down."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from preflight.core.statistics import grouped, median
from preflight.core.text import percent
from preflight.hang.answer_text import Alternative
from preflight.hang.diagnose.job_state import (
    Diagnosis,
    count,
    describe_ranks,
    line_words,
    rank_names,
    ranks,
    verb,
)
from preflight.hang.diagnose.places import short

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.facts.job import Frame
    from preflight.hang.diagnose.job_ranks import Case
    from preflight.hang.diagnose.job_state import RankState

_MOST = 0.5
_SAMPLES = 12
"""Quick looks at a rank; with fewer, its shares mean too little."""
_GAP, _TIMES = 0.2, 1.5
"""Slow ranks work this much more of the time than any other, and this many times as long."""
_PEERS, _CLOCK, _AT_WORK = 4, 0.8, 50
"""GPUs to compare with; the share of their clock below which one is slow; its busy percent."""
_LITTLE, _MANY_TIMES = 0.1, 3.0
"""The same for CPU time, for steps that mostly wait for something else."""
_FAINT = 0.03
"""The same where other programs leave the ranks little CPU time: only a hint."""
_SHARE_OF_TIME, _SHARE_OF_CORE = "the time", "a core"
_WAITERS = {"collective", "p2p", "rendezvous", "sync", "backward"}
"""Kinds of places in which fast ranks spend the rest of a step; DDP waits in backward."""


def judge(case: Case) -> Diagnosis | None:
    """No rank is stuck and most moved on: no hang, but some may be slow."""
    if case.stuck or not case.moving or len(case.moving) < _MOST * len(case.members):
        return None
    if diagnosis := _straggler(case) or _slow_gpu(case):
        return diagnosis
    alternatives = _possible_stragglers(case)
    return Diagnosis(
        category="progresses",
        sentence=f"no hang: it progresses; {len(case.moving)} of {count(len(case.members))} "
        "moved on between two looks",
        advice="nothing to repair; look again if it stops",
        confidence=0.9 if len(case.moving) == len(case.members) and not alternatives else 0.75,
        alternatives=alternatives,
    )


def slow_ranks(
    shares: Mapping[int, float], *, gap: float = _GAP, times: float = _TIMES
) -> set[int]:
    """The ranks that work clearly longer than all the rest, if they are the minority."""
    ranked = sorted(shares, key=lambda rank: shares[rank])
    if len(ranked) < 2:  # noqa: PLR2004  nothing to compare with
        return set()
    gaps = [shares[b] - shares[a] for a, b in pairwise(ranked)]
    split = max(range(len(gaps)), key=lambda place: gaps[place]) + 1
    fast, slow = ranked[:split], ranked[split:]
    clear = gaps[split - 1] >= gap and shares[slow[0]] >= times * shares[fast[-1]]
    return set(slow) if clear and len(slow) <= len(fast) else set()


def _straggler(case: Case) -> Diagnosis | None:
    if case.unreadable:
        return None
    shares = {member.rank: _share(member) for member in case.readable}
    sampled = {rank: share for rank, share in shares.items() if share is not None}
    by_cpu = {
        member.rank: min(member.cpu, 1.0)
        for member in case.readable
        if not member.look.gpus and (member.cpu or not member.went_on)  # else its time was not read
    }
    if len(sampled) == len(case.readable) and (slow := slow_ranks(sampled)):
        return _diagnose_straggler(case, slow, sampled, _SHARE_OF_TIME, 0.85)
    if len(by_cpu) == len(case.readable):
        slow = slow_ranks(by_cpu) or slow_ranks(by_cpu, gap=_LITTLE, times=_MANY_TIMES)
        if slow and _met_waiting([member for member in case.readable if member.rank not in slow]):
            return _diagnose_straggler(case, slow, by_cpu, _SHARE_OF_CORE, 0.7)
    return None


def _met_waiting(members: Sequence[RankState]) -> bool:
    """Whether the fast ranks wait in most looks; otherwise they wait for no rank."""
    places = [place for member in members for place in member.places]
    return sum(place.kind in _WAITERS for place in places) * 2 >= len(places)


def _slow_gpu(case: Case) -> Diagnosis | None:
    """Busy GPUs whose clock is far below that of the job's other GPUs slow down all."""
    pairs = [(member, gpu) for member in case.members if (gpu := member.gpu_look) is not None]
    clocks = [gpu.clock_mhz for _, gpu in pairs if gpu.clock_mhz]
    if len(clocks) < _PEERS or len(clocks) < len(case.members):
        return None
    median_mhz = median(clocks)
    slow = [
        (member, gpu)
        for member, gpu in pairs
        if (gpu.clock_mhz or 0) < _CLOCK * median_mhz and (gpu.busy_percent or 0) >= _AT_WORK
    ]
    if not slow or len(slow) * 4 > len(pairs):
        return None
    members = tuple(member for member, _ in slow)
    evidence = [
        f"GPU {gpu.index} of {member.node}: {gpu.clock_mhz} MHz, the others {median_mhz:.0f}"
        + (f"; throttled: {', '.join(gpu.throttled)}" if gpu.throttled else "")
        for member, gpu in slow[:6]
    ]
    return Diagnosis(
        category="straggler",
        culprits=rank_names(members),
        sentence=f"it progresses; {describe_ranks(members)} {verb(len(members), 'has', 'have')} a "
        f"GPU at {slow[0][1].clock_mhz} MHz where the others run at {median_mhz:.0f}: all wait "
        "for the slowest",
        advice="check its cooling, power and caps; drain the node if its clock stays low",
        evidence=tuple(evidence),
        confidence=0.65 if any(gpu.throttled for _, gpu in slow) else 0.5,
        next=f"preflight check --tier=standard --nodes={members[0].node}",
    )


def _possible_stragglers(case: Case) -> tuple[Alternative, ...]:
    """A few ranks that worked in both looks while all others waited, or used far more CPU time."""
    works = {
        member.rank: sum(place.kind not in _WAITERS for place in member.places)
        for member in case.readable
    }
    slow = [rank for rank, times in works.items() if times == 2]  # noqa: PLR2004  both looks
    why = "at work in both looks, while the others waited in both"
    if not slow or len(slow) * 2 >= len(works) or sum(works.values()) > 2 * len(slow):
        by_cpu = {member.rank: member.cpu for member in case.readable if not member.look.gpus}
        slow = sorted(slow_ranks(by_cpu, gap=_FAINT, times=_MANY_TIMES))
        why = "with far more CPU time than the others, if little"
    if not slow:
        return ()
    return (Alternative("straggler", f"{ranks(slow)} may set the pace: {why}", 0.3),)


def _share(member: RankState) -> float | None:
    """The share of quick looks that saw it at work."""
    total = sum(times for _, times in member.seen)
    if total < _SAMPLES:
        return None
    return sum(times for place, times in member.seen if place.kind not in _WAITERS) / total


def _diagnose_straggler(
    case: Case, slow: set[int], shares: Mapping[int, float], unit: str, sure: float
) -> Diagnosis:
    members = tuple(member for member in case.readable if member.rank in slow)
    other_shares = [shares[member.rank] for member in case.readable if member.rank not in slow]
    line = _most_seen_line(members)
    where = f" in {line.function} at {short(line)}" if line is not None else ""
    nodes = _whole_nodes(case, slow)
    to_compare = "its share of the work, its cores, its clocks"
    if nodes:
        to_compare = f"all ranks of {', '.join(nodes)} are slow, so look at the node"
    slow_median, other_median = median([shares[rank] for rank in slow]), median(other_shares)
    return Diagnosis(
        category="straggler",
        culprits=rank_names(slow, nodes),
        sentence=f"it progresses, at the pace of {describe_ranks(members)}{where}: "
        f"{verb(len(slow), 'it works', 'they work')} for {percent(slow_median)} of {unit}, the "
        f"other {count(len(other_shares))} for {percent(other_median)}, "
        f"and then {verb(len(other_shares), 'waits', 'wait')}",
        advice=f"compare that rank's data, CPU and GPU with its peers': {to_compare}",
        line=line_words(line),
        evidence=(
            *(
                f"rank {member.rank}: {percent(shares[member.rank])} of {unit}"
                for member in members[:6]
            ),
            f"the others: {percent(min(other_shares))} to {percent(max(other_shares))}",
            *_throttled(members),
        ),
        confidence=sure,
        next=f"preflight check --tier=standard --nodes={members[0].node}",
    )


def _most_seen_line(members: tuple[RankState, ...]) -> Frame | None:
    """The user's line that most looks saw them working at."""
    by_line: Counter[Frame] = Counter()
    for member in members:
        for place, times in (*member.seen, *((place, 1) for place in member.places)):
            if place.user is not None and place.kind not in _WAITERS:
                by_line[place.user] += times
    return max(by_line, key=lambda frame: (by_line[frame], frame.file, frame.line), default=None)


def _whole_nodes(case: Case, slow: set[int]) -> list[str]:
    """Nodes whose ranks, two or more, are all slow."""
    of_node = grouped((member.node, member.rank) for member in case.members)
    return [node for node, own in of_node.items() if len(own) > 1 and slow.issuperset(own)]


def _throttled(members: tuple[RankState, ...]) -> list[str]:
    """Why the driver throttles their GPUs."""
    lines = [
        f"GPU {gpu.index} of {member.node} is throttled: {', '.join(gpu.throttled)}"
        for member in members
        if (gpu := member.gpu_look) is not None and gpu.throttled
    ]
    return list(dict.fromkeys(lines))[:4]
