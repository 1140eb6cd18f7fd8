"""All ranks wait: find the path, node or GPU that passes no data, or the call where they differ."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from preflight.core.statistics import shared_cause
from preflight.hang.answer_text import Alternative
from preflight.hang.call_waits import Root, follow
from preflight.hang.diagnose.job_state import (
    Diagnosis,
    busy_percents,
    count,
    describe,
    describe_ranks,
    fold_ranks,
    line_of,
    lint_of,
    rank_names,
    ranks,
    verb,
)
from preflight.hang.diagnose.places import short
from preflight.hang.flight_recorder import Recording, open_dump
from preflight.hang.plain_pickle import Allowance

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from preflight.facts.job import PortLook
    from preflight.hang.diagnose.job_ranks import Case, Wire
    from preflight.hang.diagnose.job_state import RankState


_SPINS, _IDLES = 90, 5
"""Percent: a GPU that waits inside a collective is fully busy; one without work is at 0."""
_FEW_GPUS = 0.25
"""Share of the GPUs that may be idle: of more, the idle ones are not the odd ones."""
_PARTLY = 0.7
"""Factor on confidence if some ranks' connections are unknown: more paths may be stuck."""
_HARMFUL = re.compile(r"^(?!.*(?:drop|discard|missed|wait|congest|ecn|cnp|pause|out_of_buffer))")
"""Excludes counters that also move on healthy ports."""
_XID = re.compile(r"NVRM: Xid \(([^)]{0,99})\): (\d+)")


def judge_network(case: Case) -> Diagnosis | None:
    """Judge by TCP retransmissions first, then by port counters, then by idle GPUs."""
    if not case.stuck:
        return None
    return _stuck_connections(case) or _bad_ports(case) or _idle_gpu(case)


# -- connections


def _stuck_connections(case: Case) -> Diagnosis | None:
    stuck = [wire for wire in case.wires if wire.stuck]
    pairs = sorted({tuple(sorted((wire.node, wire.peer_node))) for wire in stuck})
    if not pairs:
        return None
    culprits, words, sure = _culprits_of(pairs, case)
    if any(not member.look.connections for member in case.waiting):
        sure *= _PARTLY
    worst = sorted(stuck, key=lambda wire: -wire.end.retries)[:4]
    return Diagnosis(
        category="link",
        culprits=culprits,
        sentence=f"{_all_wait(case)}; {words}: packets are sent again and not acknowledged",
        advice="measure that path alone, look at its cable, port and switch; start the job "
        "again without that node if this persists",
        line=line_of(case.waiting),
        evidence=(
            *(_proof(wire) for wire in worst),
            *(f"{node}: {port.name} {why}" for node, port, why in _odd_ports(case)[:4]),
        ),
        confidence=sure,
        alternatives=(Alternative("link", "a firewall or route between them", 0.2),),
        next=f"preflight check --nodes={','.join(sorted(set(sum(pairs, ()))))}",
    )


def _culprits_of(
    pairs: Sequence[tuple[str, ...]], case: Case
) -> tuple[tuple[str, ...], str, float]:
    """One path; otherwise the node that all paths share; otherwise the paths."""
    if len(pairs) == 1:
        node, other = pairs[0]
        if node == other:
            return (f"node {node}",), f"connections inside {node} are stuck", 0.6
        return (f"path {node}-{other}",), f"nothing gets through between {node} and {other}", 0.9
    ends = Counter(name for pair in pairs for name in set(pair))
    name, number = max(ends.items(), key=lambda item: (item[1], item[0]))
    if number == len(pairs) and sum(times == number for times in ends.values()) == 1:
        others = sorted({end for pair in pairs for end in pair} - {name})
        return (
            (f"node {name}",),
            f"nothing gets through between {name} and {', '.join(others[:4])}",
            0.9,
        )
    nodes = {member.node for member in case.members}
    names = sorted("-".join(pair) for pair in pairs)
    if shared_cause(len(ends), len(nodes)):
        words = f"{len(pairs)} paths are stuck ({', '.join(names[:4])}): a switch, or a setting"
        return (), words, 0.6
    return tuple(f"path {path}" for path in names), f"{', '.join(names[:4])} are stuck", 0.75


def _proof(wire: Wire) -> str:
    end = wire.end
    peer = f"rank {wire.peer_rank}" if wire.peer_rank is not None else "a rank"
    return (
        f"rank {wire.rank} ({wire.node}) to {peer} ({wire.peer_node}), {end.local} to {end.peer}: "
        f"{end.unacked} bytes not acknowledged, sent again {max(end.retries, end.resent)} times"
    )


# -- ports


def _bad_ports(case: Case) -> Diagnosis | None:
    """The ports of one node are down or count errors, and those of no other node."""
    if any(look.ports is None for look in case.looks.values()):
        return None  # a port that was not read may be as bad
    odd = _odd_ports(case)
    nodes = sorted({node for node, _, _ in odd})
    if len(nodes) != 1:
        return None
    node, port, why = odd[0]
    return Diagnosis(
        category="link",
        culprits=(f"node {node}", *(f"port {port.name}" for _, port, _ in odd)),
        sentence=f"{_all_wait(case)}; {port.name} of {node} {why}, and no port of another node",
        advice="check that port's cable and switch; drain the node if this persists",
        line=line_of(case.waiting),
        evidence=tuple(f"{node}: {port.name} {why}" for _, port, why in odd[:6]),
        confidence=0.6,
        alternatives=(Alternative("unknown", "the errors are older than the hang", 0.3),),
        next=f"preflight check --nodes={node}",
    )


def _odd_ports(case: Case) -> list[tuple[str, PortLook, str]]:
    looks = case.looks
    up = Counter(port.name for look in looks.values() for port in look.ports or () if port.up)
    odd = []
    for node, look in looks.items():
        for port in look.ports or ():
            bad = {name: number for name, number in port.errors.items() if _HARMFUL.search(name)}
            moved = ", ".join(f"{name} +{number}" for name, number in sorted(bad.items()))
            if port.up is False and up[port.name] * 2 > len(looks):
                odd.append((node, port, "is down"))
            elif any(bad.values()):
                odd.append((node, port, f"counts errors ({moved})"))
    return odd


# -- GPUs


def _idle_gpu(case: Case) -> Diagnosis | None:
    """Most GPUs are busy inside the collective, and a few are idle."""
    busy = busy_percents(case.waiting)
    idle = [member for member in case.waiting if busy.get(member.rank, 100) <= _IDLES]
    spinning = [rank for rank, percent in busy.items() if percent >= _SPINS]
    if (
        len(busy) < len(case.waiting)
        or not idle
        or len(idle) > _FEW_GPUS * len(busy)
        or len(idle) + len(spinning) < len(busy)
    ):
        return None
    names = ", ".join(
        f"GPU {member.gpu} of {member.node} (rank {member.rank})" for member in idle[:4]
    )
    xids = [f"{member.node}: {line}" for member in idle for line in _xids(case, member.node)]
    return Diagnosis(
        category="link",
        culprits=(*rank_names(idle), *[f"gpu {idle[0].gpu}"] * (len(idle) == 1)),
        sentence=f"{_all_wait(case)}; {names} {verb(len(idle), 'is', 'are')} at 0 % while "
        f"{count(len(spinning), 'GPU')} {verb(len(spinning), 'is', 'are')} at 100 %: its data "
        "does not arrive, or it has failed",
        advice="check that GPU's link, NIC and cable, and the kernel log; drain the node and "
        "measure it alone",
        line=line_of(tuple(idle)),
        evidence=(
            f"GPUs of ranks {fold_ranks(spinning)}: {_SPINS} % busy or more",
            *(f"GPU of rank {member.rank}: {busy[member.rank]} % busy" for member in idle[:4]),
            *xids[:4],
        ),
        confidence=0.7 if xids else 0.55,
        alternatives=(Alternative("desync", "its call has different shapes", 0.2),),
        next=f"preflight check --nodes={idle[0].node}",
    )


def _xids(case: Case, node: str) -> list[str]:
    look = case.state.looks.get(node)
    lines = look.log.lines if look and look.log else ()
    return [f"Xid {match[2]} of {match[1]}" for line in lines if (match := _XID.search(line.text))]


def _all_wait(case: Case) -> str:
    number = len(case.waiting)
    where = case.meeting(case.waiting)
    return f"{f'all {count(number)}' if number == case.world else count(number)} wait{where}"


# -- places

_FEW_RANKS = 3
"""The largest part of a small job that may be at fault together."""
_ROOTED = re.compile(r"broadcast|(?:reduce|gather|scatter)(?:_object\w*)?$")
"""Calls in which not every rank waits for all: those that are done go on to the next call."""
_LONGEST_S = 10
"""The longest look of `preflight diagnose`."""

_BETWEEN_RANKS = (
    Alternative("link", "the data does not get through", 0.4),
    Alternative(
        "desync", "they are in different iterations of the same line, or their shapes differ", 0.25
    ),
)
"""The alternatives if all ranks wait in one place."""


def judge_places(case: Case) -> Diagnosis | None:
    """Judge ranks that wait in different places, or all in the same one."""
    if not case.stuck:
        return None
    groups = case.spots(case.waiting)
    return _several_places(case, groups) if len(groups) > 1 else _one_place(case, groups[0])


def _several_places(case: Case, groups: list[tuple[RankState, ...]]) -> Diagnosis:
    minority = tuple(member for group in groups[1:] for member in group)
    complete = len(case.waiting) == case.world
    of_two = complete and case.world == 2  # noqa: PLR2004  either may be the wrong one
    rooted = () if of_two else _in_rooted_call(groups[1:])
    # Of a larger part, most may wait for a rank that is elsewhere.
    largest = max(0 if rooted else _FEW_RANKS, case.world // 8)
    is_minority = len(minority) <= largest and 2 * len(groups[0]) > case.world
    passing = any(member.kind == "p2p" for member in case.waiting)
    positions = "; ".join(describe(group) for group in groups[:4])
    single = tuple(group[0] for group in groups if len(group) == 1)
    one_alone = complete and len(single) == 1 and not (of_two or rooted)
    blamed: tuple[RankState, ...] = ()
    sure = 0.4
    if is_minority and not passing:
        blamed, sure = minority, 0.5 if rooted else 0.85 if len(minority) == 1 else 0.65
    elif one_alone:  # a link that carries nothing, or a stage of a pipeline, keeps several
        blamed, sure = single, 0.55
    elif of_two and not passing:
        blamed, sure = case.waiting, 0.65
    return Diagnosis(
        category="desync",
        culprits=rank_names(blamed),
        sentence=f"the ranks wait in different places: {positions}" + _who_skipped(rooted),
        advice="compare how they got there: a branch by rank, one batch more or less, an error "
        "that one rank caught; all must call the same collectives in the same order",
        line=line_of(blamed or rooted or groups[0]),
        evidence=tuple(
            f"rank {group[0].rank}: {' < '.join(group[0].place.calls[:5])}"
            for group in groups[:6]
            if group[0].place
        ),
        confidence=sure,
        alternatives=(
            Alternative(
                "link",
                "they are in different groups, and the data of one does not get through",
                0.4 if passing else 0.1,
            ),
        ),
        next=lint_of(blamed or rooted or groups[0]),
    )


def _who_skipped(group: tuple[RankState, ...]) -> str:
    """What it may mean that these ranks wait in such a call; empty without ranks."""
    place = group[0].place if group else None
    op = place.op if place else ""
    return f": either no other rank called {op}, or one of the others skipped it" if op else ""


def _in_rooted_call(groups: Iterable[tuple[RankState, ...]]) -> tuple[RankState, ...]:
    """The first of these groups whose call has a source or destination, which may wait alone."""
    places = ((group, group[0].place) for group in groups)
    return next((group for group, place in places if place and _ROOTED.match(place.op)), ())


def _one_place(case: Case, group: tuple[RankState, ...]) -> Diagnosis:
    place = group[0].place
    where = place.where if place else ""
    longer = look_longer(case)
    still = f"it progresses, and no step ended within the {_looked_s(case):g} s of this look"
    long_steps = Alternative("progresses", still, 0.2 if longer else 0.1)
    return Diagnosis(
        sentence=f"all {count(len(group))} that can be read wait in {where}, no data moves, and "
        "nothing that was read shows why",
        advice=("look longer first: one step may take more time than that; " * bool(longer))
        + "measure the paths between these nodes; start the next run under preflight watch, "
        "whose flight recorder shows which call differs",
        line=line_of(group),
        alternatives=(*(_BETWEEN_RANKS if case.world > 1 else ()), long_steps),
        next=longer or "preflight check",
    )


def look_longer(case: Case) -> str:
    """The command for the longest look; empty if this look was that long."""
    return f"preflight diagnose --look-s={_LONGEST_S}" if _looked_s(case) < _LONGEST_S else ""


def _looked_s(case: Case) -> float:
    return round(max((member.look.look_s for member in case.members), default=0.0), 1)


# -- calls, in flight recordings

_KINDS = ("differs", "absent", "crossed")
_APART_S = 120.0
"""A file this much older than the newest is from another moment."""


def judge_calls(case: Case) -> Diagnosis | None:
    """A group's ranks number its calls alike: the hang began at the first one that differs."""
    if case.moving and not case.stuck:
        return None
    calls = recordings(case)
    waits = follow(calls, len(case.members) - len(calls))
    usable = (root for root in waits.roots if root.kind in _KINDS and root.few)
    root = next((root for root in usable if root.ranks or root.kind == "differs"), None)
    if root is None:
        return None
    members = {member.rank: member for member in case.members}
    culprits = tuple(members[rank] for rank in root.ranks)
    if root.kind == "absent":
        return _not_reached(root, culprits)
    calls_made = "; ".join(
        f"{ranks(callers)} {verb(len(callers), 'calls', 'call')} {call}"
        for callers, call in root.calls[:4]
    )
    return Diagnosis(
        category="desync",
        culprits=rank_names(root.ranks),
        sentence=f"{root.group}, call {root.number}: {calls_made}"
        + (f"; {describe_ranks(culprits)} differs from the others" if len(culprits) == 1 else ""),
        advice="compare how these ranks got to that call: the shape of a last batch, unused "
        "parameters, a branch by rank; all must make the same call, with the same shapes",
        line=line_of(culprits or case.waiting),
        evidence=(
            *(f"{ranks(callers)}: call {root.number}: {call}" for callers, call in root.calls[:4]),
            *_frames(calls, root.ranks, root.number),
        ),
        confidence=0.95 if root.ranks else 0.85,
        next=lint_of(culprits or case.waiting),
    )


def _not_reached(root: Root, members: tuple[RankState, ...]) -> Diagnosis:
    callers, call = root.calls[0]
    none_waits = not any(member.waits for member in members)
    places = "; ".join(
        f"rank {member.rank} {member.activity}" for member in members[:3] if member.place
    )
    return Diagnosis(
        category="odd_rank" if none_waits else "desync",
        culprits=rank_names(members),
        sentence=f"{describe_ranks(members)} {verb(len(members), 'has', 'have')} not reached call "
        f"{root.number} of {root.group}: {call}, in which {count(len(callers))} "
        f"{verb(len(callers), 'waits', 'wait')}{f'; {places}' if places else ''}",
        advice="find what that rank does instead of this call: a branch by rank, fewer "
        "batches, an error that it caught",
        line=line_of(members),
        evidence=tuple(
            f"ranks {fold_ranks(callers)}: call {root.number}: {call}"
            for callers, call in root.calls
        ),
        confidence=0.9,
        next=lint_of(members),
    )


def recordings(case: Case) -> dict[int, Recording]:
    """Each rank's recording, if it is from this process and this moment."""
    looks = case.state.looks
    fresh = [
        (member, dump)
        for member in case.members
        if (dump := member.look.dump) is not None
        and dump.written_s >= looks[member.node].time_s - member.look.age_s - 1
    ]
    newest = max((dump.written_s for _, dump in fresh), default=0.0)
    by_rank = {}
    allowances: dict[str, Allowance] = defaultdict(Allowance)
    for member, dump in fresh:
        if dump.written_s >= newest - _APART_S:
            recording = open_dump(dump, allowances[member.node])
            if isinstance(recording, Recording):
                by_rank[member.rank] = recording
    return by_rank


def _frames(calls: Mapping[int, Recording], culprits: Iterable[int], number: int) -> list[str]:
    """Where these ranks made the call, if the recorder kept stacks."""
    lines = []
    for rank in list(culprits)[:3]:
        call = next((call for call in calls[rank].calls if call.number == number), None)
        if call is not None and call.frames:
            path = " < ".join(f"{frame.function} ({short(frame)})" for frame in call.frames[:5])
            lines.append(f"rank {rank}: {path}")
    return lines
