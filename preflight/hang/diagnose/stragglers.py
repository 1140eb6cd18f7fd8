"""Whether the job goes on, and if it does only slowly, at whose pace."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from preflight.core.statistics import grouped, median
from preflight.hang.answer_text import Alternative
from preflight.hang.diagnose.model import (
    Diagnosis,
    count,
    line_words,
    named,
    rank_names,
    ranks,
    verb,
)
from preflight.hang.diagnose.places import short

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.facts.job import Frame
    from preflight.hang.diagnose.job_ranks import Case
    from preflight.hang.diagnose.model import Seat
    from preflight.hang.diagnose.places import Place

_MOST = 0.5
_SAMPLES = 12
"""Quick looks at a rank, of fewer its shares say too little."""
_GAP, _TIMES = 0.2, 1.5
"""The slow work for so much more of the time than any other, and so many times as long as these."""
_PEERS, _CLOCK, _AT_WORK = 4, 0.8, 50
"""GPUs to compare with; a clock below that part of theirs; percent of the time it is busy."""
_LITTLE, _MANY_TIMES = 0.1, 3.0
"""The same of CPU time, where steps are mostly waiting for something else."""
_SEEN, _CPU = "the time", "a core"
_WAITERS = {"collective", "p2p", "rendezvous", "sync", "backward"}
"""Kinds in which the fast ones spend what is left of a step; in backward DDP waits."""


def judge(case: Case) -> Diagnosis | None:
    """No rank is stuck and most went on: no hang, but perhaps some are behind."""
    if case.stuck or not case.moving or len(case.moving) < _MOST * len(case.seats):
        return None
    return (
        _straggler(case)
        or _slow_gpu(case)
        or Diagnosis(
            category="progresses",
            sentence=f"no hang: it progresses; {len(case.moving)} of {count(len(case.seats))} "
            "went on between two looks",
            advice="nothing to mend; look again if it stops",
            confidence=0.9 if len(case.moving) == len(case.seats) else 0.75,
            alternatives=_perhaps(case),
        )
    )


def slow_ones(
    own: Mapping[int, float], *, gap: float = _GAP, times: float = _TIMES
) -> tuple[int, ...]:
    """Those that work for clearly longer than all the rest, where they are the fewer; else none."""
    ranked = sorted(own, key=lambda rank: own[rank])
    if len(ranked) < 2:  # noqa: PLR2004  somebody to compare with
        return ()
    gaps = [own[b] - own[a] for a, b in pairwise(ranked)]
    at = max(range(len(gaps)), key=lambda place: gaps[place]) + 1
    fast, slow = ranked[:at], ranked[at:]
    clear = gaps[at - 1] >= gap and own[slow[0]] >= times * own[fast[-1]]
    return tuple(sorted(slow)) if clear and len(slow) <= len(fast) else ()


def _straggler(case: Case) -> Diagnosis | None:
    if case.unread:
        return None
    shares = {one.rank: _share(one) for one in case.read}
    sampled = {rank: share for rank, share in shares.items() if share is not None}
    by_cpu = {one.rank: min(one.cpu, 1.0) for one in case.read if not one.look.gpus}
    if len(sampled) == len(case.read) and (slow := slow_ones(sampled)):
        return _told(case, slow, sampled, _SEEN, 0.85)
    if len(by_cpu) == len(case.read):
        slow = slow_ones(by_cpu) or slow_ones(by_cpu, gap=_LITTLE, times=_MANY_TIMES)
        behind = frozenset(slow)
        if slow and _met_waiting([one for one in case.read if one.rank not in behind]):
            return _told(case, slow, by_cpu, _CPU, 0.7)
    return None


def _met_waiting(seats: Sequence[Seat]) -> bool:
    """Whether the fast ones were met waiting in most looks: else they wait for nobody."""
    places = [place for one in seats for place in (one.place, one.before) if place is not None]
    waits = [place for place in places if place.kind in _WAITERS]
    return len(waits) * 2 >= len(places)


def _slow_gpu(case: Case) -> Diagnosis | None:
    """GPUs at work whose clock is far below that of the job's other GPUs: all go at their pace."""
    found = [(one, gpu) for one in case.seats if (gpu := one.gpu_look) is not None]
    clocks = [gpu.clock_mhz for _, gpu in found if gpu.clock_mhz]
    if len(clocks) < _PEERS or len(clocks) < len(case.seats):
        return None
    usual = median(clocks)
    slow = [
        (one, gpu)
        for one, gpu in found
        if (gpu.clock_mhz or 0) < _CLOCK * usual and (gpu.busy_percent or 0) >= _AT_WORK
    ]
    if not slow or len(slow) * 4 > len(found):
        return None
    seats = tuple(one for one, _ in slow)
    told = [
        f"GPU {gpu.index} of {one.node}: {gpu.clock_mhz} MHz, the others {usual:.0f}"
        + (f"; held back: {', '.join(gpu.throttled)}" if gpu.throttled else "")
        for one, gpu in slow[:6]
    ]
    return Diagnosis(
        category="straggler",
        culprits=rank_names(seats),
        sentence=f"it progresses; {named(seats)} {verb(len(seats), 'has', 'have')} a GPU at "
        f"{slow[0][1].clock_mhz} MHz where the others run at {usual:.0f}: all wait for the slowest",
        advice="look at its cooling, power and caps; drain the node if its clock stays low",
        evidence=tuple(told),
        confidence=0.65 if any(gpu.throttled for _, gpu in slow) else 0.5,
        next=f"pytest --preflight --preflight-tier=standard --preflight-nodes={seats[0].node}",
    )


def _perhaps(case: Case) -> tuple[Alternative, ...]:
    """A few that were at work of their own in both looks while all others waited in both."""
    own = {one.rank: sum(_works(place) for place in (one.place, one.before)) for one in case.read}
    slow = [rank for rank, times in own.items() if times == 2]  # noqa: PLR2004  both looks
    if not slow or len(slow) * 2 >= len(own) or sum(own.values()) > 2 * len(slow):
        return ()
    told = f"{ranks(slow)} may set the pace: at work in both looks, while the others waited in both"
    return (Alternative("straggler", told, 0.3),)


def _works(place: Place | None) -> bool:
    return place is not None and place.kind not in _WAITERS


def _share(seat: Seat) -> float | None:
    """How much of the time it was seen at work of its own."""
    total = sum(times for _, times in seat.seen)
    if total < _SAMPLES:
        return None
    return sum(times for place, times in seat.seen if place.kind not in _WAITERS) / total


def _told(
    case: Case, slow: tuple[int, ...], own: Mapping[int, float], unit: str, sure: float
) -> Diagnosis:
    behind = frozenset(slow)
    seats = tuple(one for one in case.read if one.rank in behind)
    rest = [own[one.rank] for one in case.read if one.rank not in behind]
    line = _busiest(seats)
    at = f" in {line.function} at {short(line)}" if line is not None else ""
    nodes = _whole_nodes(case, slow)
    theirs, others = median([own[rank] for rank in slow]), median(rest)
    return Diagnosis(
        category="straggler",
        culprits=(*(f"rank {rank}" for rank in slow), *(f"node {node}" for node in nodes)),
        sentence=f"it progresses, at the pace of {named(seats)}{at}: "
        f"{verb(len(slow), 'it is', 'they are')} at work for {theirs:.0%} of {unit}, the "
        f"other {count(len(rest))} for {others:.0%}, and {verb(len(rest), 'waits', 'wait')} then",
        advice="compare that rank's data, CPU and GPU with its peers': "
        + (
            f"all ranks of {', '.join(nodes)} are slow, so look at the node"
            if nodes
            else "its share of the work, its cores, its clocks"
        ),
        line=line_words(line),
        evidence=(
            *(f"rank {one.rank}: {own[one.rank]:.0%} of {unit}" for one in seats[:6]),
            f"the others: {min(rest):.0%} to {max(rest):.0%}",
            *_clocks(case, seats),
        ),
        confidence=sure,
        next=f"pytest --preflight --preflight-tier=standard --preflight-nodes={seats[0].node}",
    )


def _busiest(seats: tuple[Seat, ...]) -> Frame | None:
    """The user's line at which they were seen working most."""
    seen: Counter[Frame] = Counter()
    for seat in seats:
        looks = [*seat.seen, *((one, 1) for one in (seat.place, seat.before) if one is not None)]
        for place, times in looks:
            if place.user is not None and place.kind not in _WAITERS:
                seen[place.user] += times
    return max(seen, key=lambda one: (seen[one], one.file, one.line), default=None)


def _whole_nodes(case: Case, slow: tuple[int, ...]) -> list[str]:
    """Nodes of which all ranks, two or more, are slow."""
    behind = frozenset(slow)
    of_node = grouped((one.node, one.rank) for one in case.seats)
    return [node for node, own in of_node.items() if len(own) > 1 and behind.issuperset(own)]


def _clocks(case: Case, seats: tuple[Seat, ...]) -> list[str]:
    """What holds their GPUs back, as the driver tells."""
    theirs = {(one.node, one.gpu) for one in seats}
    held = [
        (gpu, node)
        for node, look in case.state.looks.items()
        for gpu in look.gpus or ()
        if gpu.throttled and (node, gpu.index) in theirs
    ]
    return [
        f"GPU {gpu.index} of {node} is held back: {', '.join(gpu.throttled)}"
        for gpu, node in held[:4]
    ]
