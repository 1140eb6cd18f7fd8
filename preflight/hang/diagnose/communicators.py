"""Judges by NCCL's RAS report for which ranks the others wait; it needs no stacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.fleet.nodeset import fold
from preflight.hang.answer_text import Alternative
from preflight.hang.diagnose.job_state import (
    Diagnosis,
    JobState,
    count,
    line_of,
    lint_of,
    rank_names,
    ranks,
    verb,
)
from preflight.hang.diagnose.odd_rank import advice_for
from preflight.hang.diagnose.ras_view import RasView, Waits, causes_of, odd_order, view_of, waits_of
from preflight.hang.ras_report import REMOTE

if TYPE_CHECKING:
    from preflight.hang.diagnose.job_ranks import Case


def judge(view: RasView) -> Diagnosis | None:
    """Name the ranks for which the others wait; None if the report shows none."""
    answer = _missing(view) or _failed(view) or _early_leavers(view) or _by_counts(view)
    if answer is None or view.case is None:
        return answer
    culprits = set(answer.culprits)
    if any(member.moved for member in view.case.members if f"rank {member.rank}" not in culprits):
        return None
    return answer


def _missing(view: RasView) -> Diagnosis | None:
    """Ranks whose RAS thread is dead or does not answer."""
    absent = view.absent("dead", "unresponsive")
    if not absent or len(absent) * 2 > view.world:
        return None
    dead = all(why == "dead" for why in absent.values())
    states = view.states(absent)
    nodes = view.whole_nodes(absent)
    alive = bool(states) and all(member.look.state in ("running", "sleeping") for member in states)
    # Those who do not answer may be the sound half: the rank that was asked may be cut off itself.
    halves = len(absent) * 2 == view.world and (alive or view.case is None)
    cut_off = nodes and alive and len(states) == len(absent)
    names = view.names(absent)
    if halves and cut_off:
        return _between_halves(view, absent, nodes)
    does = "is dead or cut off" if dead else "does not answer"
    many = "are dead or cut off" if dead else "do not answer"
    words = f"{names} {verb(len(absent), does, many)}, by NCCL's RAS network"
    if cut_off:
        words += ", while its processes live: their node's network does not reach the others"
    if halves:
        words += "; or the other half of the ranks, whose answer this is"
    return Diagnosis(
        category="link" if cut_off else "dead_rank" if dead else "stopped_rank",
        culprits=rank_names(absent, nodes),
        sentence=words,
        advice="look at the network interface that NCCL uses there (NCCL_SOCKET_IFNAME)"
        if cut_off
        else "read the log of these ranks: an error, a signal or the kernel may have ended them",
        line=line_of(states),
        evidence=(f"RAS: {ranks(absent)}: {'considered dead' if dead else 'no answer in time'}",),
        confidence=0.45 if halves else 0.75 if dead else 0.65,
        next="preflight explain LOG",
    )


def _between_halves(view: RasView, absent: Iterable[int], nodes: list[str]) -> Diagnosis:
    """One half of the nodes does not reach the other, and nothing shows on which side that lies."""
    half = set(range(view.world)).difference(absent)
    other_nodes = view.whole_nodes(half)
    pair = len(nodes) == len(other_nodes) == 1
    return Diagnosis(
        category="link",
        culprits=(f"path {min(nodes + other_nodes)}-{max(nodes + other_nodes)}",) if pair else (),
        sentence=f"{view.names(half)} and {view.names(absent)} do not reach each other, by NCCL's "
        "RAS network, while all of their processes live",
        advice="measure the path between them, and look at the network interface that NCCL uses "
        "at both ends (NCCL_SOCKET_IFNAME)",
        evidence=(f"RAS: {ranks(absent)}: no answer to a rank of the other half",),
        confidence=0.7,
        next=f"preflight check --nodes={fold(nodes + other_nodes)}",
    )


def _failed(view: RasView) -> Diagnosis | None:
    """Ranks that reported an error of their own, or aborted a communicator."""
    errors = {
        rank: member.error or "it aborted a communicator"
        for group in view.report.communicators
        for member in group.members
        for rank in [view.number(group, member)]
        if rank is not None and (member.error not in ("", REMOTE) or member.status == "abort")
    }
    if not errors or len(errors) * 2 > view.world:
        return None
    return Diagnosis(
        category="odd_rank",
        culprits=rank_names(errors),
        sentence=f"{view.names(errors)} reported: {next(iter(errors.values()))}",
        advice="read its log from the first error on: the other ranks wait for it",
        line=line_of(view.states(errors)),
        evidence=tuple(f"RAS: rank {rank}: {why}" for rank, why in list(errors.items())[:4]),
        confidence=0.75,
        next="preflight explain LOG",
    )


def _early_leavers(view: RasView) -> Diagnosis | None:
    """Ranks that have destroyed a communicator in which others still wait."""
    left = set(view.absent("left"))
    members = set()
    for group in view.report.communicators:
        numbers = {view.number(group, member): member.status for member in group.members}
        done = {rank for rank, status in numbers.items() if status == "finalize"}
        if done and len(done) < len(numbers):
            left |= {rank for rank in done if rank is not None}
        if group.absent or done:
            members |= {rank for rank in numbers if rank is not None}
    minority = left if len(left) <= len(members - left) else members - left
    if not left or not minority:
        return None
    number = len(minority)
    words = f"{verb(number, 'has', 'have')} left a communicator in which others wait"
    if minority is not left:
        words = f"{verb(number, 'waits', 'wait')} in a communicator that the others have left"
    return Diagnosis(
        category="desync",
        culprits=rank_names(minority),
        sentence=f"{view.names(minority)} {words}",
        advice="make the ranks do equally many steps: drop_last=True, equal batches, join()",
        line=line_of(view.states(minority)),
        evidence=(f"RAS: {ranks(left)} answered, but not for this communicator",),
        confidence=0.7,
        next=lint_of(view.states(minority)),
    )


def _by_counts(view: RasView) -> Diagnosis | None:
    waits = waits_of(view)
    if view.report.number and waits.alike:
        return _none_is_late(view)
    apart = set(waits.apart)
    causes, candidates = (apart - apart, apart - apart) if apart else causes_of(view, waits)
    if not (apart or causes or candidates):
        apart = odd_order(view, waits)
    if len(apart) > 1:
        in_others = [member.kind == "p2p" for member in view.states(apart)]
        return None if in_others and all(in_others) else _in_kernel(view, apart, waits)
    late = apart or causes
    number = len(set(waits.ahead) - late)
    awaited = waits.awaited  # perhaps at fault, too
    if not late or len(late) * 2 > view.world:
        unread = all(member.place is None for member in view.states(awaited))
        return _several(view, candidates or (awaited if unread else set()), waits)
    states = view.states(late)
    # A rank that only lacks calls launched others in their place if it is seen to wait itself.
    lacking = not waits.apart and late <= awaited and all(member.place is None for member in states)
    other = bool(apart) and not lacking
    calls = "other collectives" if other else "fewer collectives"
    others = (
        f"the {count(number)} that {verb(number, 'waits', 'wait')}" if number else "those that wait"
    )
    doing = f"; {states[0].activity}" if states and states[0].place else ""
    return Diagnosis(
        category="desync" if other else "odd_rank",
        culprits=rank_names(late),
        sentence=f"{view.names(late)} {verb(len(late), 'has', 'have')} launched {calls} than "
        f"{others} for {verb(len(late), 'it', 'them')}{doing}",
        advice=_SAME_ORDER
        if other
        else advice_for(states[0])
        if states and states[0].place
        else _FIND_CAUSE,
        line=line_of(states),
        evidence=waits.evidence(late),
        confidence=0.7 if apart or candidates or awaited - late else 0.8,
        alternatives=(Alternative("progresses", "RAS counts once: a slow job looks alike", 0.15),),
        next=lint_of(states) if states else "",
    )


def _none_is_late(view: RasView) -> Diagnosis | None:
    """All ranks launched the same: the kernels of the last collective do not end, or it is slow."""
    case, progress = view.case, "a step takes longer than this look: RAS counts once"
    number = len(case.stuck) if case else 0
    if case is None or number + len(view.busy) < view.world:
        return None
    all_stuck = number == view.world
    waits = f"all {count(number)} wait" if all_stuck else f"all {count(len(view.busy), 'GPU')} work"
    return Diagnosis(
        category="link",
        sentence=f"all {count(view.world)} launched the same collectives, by NCCL's RAS network, "
        f"and {waits}: none is late; data does not get through, or a kernel does not end",
        advice="measure the links and GPUs between these ranks; read the flight recorder's dumps",
        line=line_of(case.stuck) if all_stuck else "",
        confidence=0.55 if all_stuck else 0.45,
        alternatives=(
            Alternative("progresses", progress, 0.2 if all_stuck else 0.35),
            Alternative("desync", "a send or a receive has no partner: RAS counts neither", 0.15),
        ),
        next="preflight check --tier=standard",
    )


def _in_kernel(view: RasView, members: set[int], waits: Waits) -> Diagnosis:
    """All ranks of one communicator have launched the same, and the others wait for all of them."""
    return Diagnosis(
        category="link",
        culprits=rank_names(members),
        sentence=f"{view.names(members)} launched the same collectives in a communicator of "
        f"{len(members)} and do not come out of it, and the others wait for them",
        advice="measure the links and GPUs between these ranks",
        line=line_of(view.states(members)),
        evidence=waits.evidence(members),
        confidence=0.6,
        next="preflight check --tier=standard",
    )


_SAME_ORDER = "let all ranks of a group call its collectives in the same order: no branch by rank"
_FIND_CAUSE = "look at what this rank does: the others are in a collective that it has not reached"


def _several(view: RasView, candidates: set[int], waits: Waits) -> Diagnosis | None:
    """Ranks that may wait for each other in a send or receive, which NCCL does not count."""
    if not candidates or len(candidates) * 2 > view.world:
        return None
    return Diagnosis(
        sentence=f"{'one of ' * (len(candidates) > 1)}{view.names(candidates)} keeps the others "
        "waiting, unless it waits itself in a send, a receive or a call that all have launched: "
        "NCCL does not count that",
        advice="make their stacks readable (below), and look again",
        line=line_of(view.states(candidates)),
        evidence=waits.evidence(candidates),
        confidence=0.4,
        alternatives=tuple(
            Alternative("odd_rank", f"rank {rank}", round(0.8 / len(candidates), 2))
            for rank in sorted(candidates)[:4]
        ),
        next="preflight diagnose",
    )


_SURE = 0.97
_MUCH_SURER = 0.2
"""A desync must be this much surer than the counts, as by a flight recorder."""
_FINAL_CATEGORIES = ("no_job", "progresses", "stopped_rank", "out_of_memory", "node_unreachable")


def joined_with_ras(answer: Diagnosis, case: Case) -> Diagnosis:
    """Join the answer from stacks and kernels with that of RAS."""
    if case.state.ras is None:
        return answer
    view = view_of(case.state.ras, case)
    if isinstance(view, str):
        return replace(answer, unseen=(*answer.unseen, view))
    by_ras = judge(view)
    if by_ras is None:
        return _add_counts(answer, view)
    culprits, by_counts = set(answer.culprits), set(by_ras.culprits)
    agree = bool(by_counts) and by_counts == culprits
    # A rank in another line is no culprit where the counts show another one.
    disagree = bool(by_counts) and not culprits & by_counts and answer.category == "desync"
    needed = by_ras.confidence + _MUCH_SURER * disagree
    surer = answer.confidence >= needed and bool(culprits)
    if agree or surer or answer.category in _FINAL_CATEGORIES:
        sure = min(_SURE, answer.confidence + 0.05 * agree)
        evidence = (*answer.evidence, *by_ras.evidence)
        return replace(answer, evidence=evidence, confidence=round(sure, 2))
    doubt = Alternative(answer.category, answer.sentence, round(answer.confidence / 4, 2))
    return replace(
        by_ras,
        alternatives=(doubt, *by_ras.alternatives) if answer.culprits else by_ras.alternatives,
        standings=answer.standings,
        unseen=answer.unseen,
    )


def _add_counts(answer: Diagnosis, view: RasView) -> Diagnosis:
    """Add what was launched; a minority in another place is none if the counts differ."""
    waits, number = waits_of(view), view.report.number
    if waits.levels and answer.category == "desync" and len(answer.culprits) > 1:
        return replace(answer, culprits=(), line="", confidence=round(answer.confidence / 2, 2))
    if waits.behind:
        differ = waits.evidence({*waits.behind, *waits.ahead})
        return replace(answer, evidence=(*answer.evidence, *differ))
    if not (number and waits.alike):
        return answer
    same = f"RAS: all ranks launched the same collectives in {count(number, 'communicator')}: "
    same += "none of them is late"
    return replace(answer, evidence=(*answer.evidence, same))


def answer_without_ranks(answer: Diagnosis, state: JobState) -> Diagnosis:
    """The answer of RAS about a job none of whose ranks this login may read."""
    if state.ras is None:
        return answer
    view = view_of(state.ras, None)
    if not isinstance(view, str):
        view = _why_another_job(view, state, state.ras.host) or view
    if isinstance(view, str):
        return replace(answer, unseen=(*answer.unseen, view))
    by_ras = judge(view)
    if by_ras is None:
        return answer
    return replace(by_ras, confidence=round(by_ras.confidence * 0.75, 2))


def _why_another_job(view: RasView, state: JobState, host: str) -> str:
    """Why the report may be of another job than the one meant; empty if no other job runs there."""
    hidden = sum(look.hidden for look in state.looks.values())
    there = sum(look.hidden for look in state.looks.values() if look.host == host)
    by_node = Counter(address for address, _ in view.processes)
    if there in by_node.values() or hidden == view.world or not (hidden or state.job):
        return ""
    return (
        f"RAS was not used: its report has {count(view.world)}, and {there} processes of other "
        f"users on {host} look like ranks, so that it may be of another job; "
        "run this as the job's user or as root"
    )
