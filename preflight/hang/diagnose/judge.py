"""Whom a job waits for: from all ranks' places to one sentence; unknown rather than a guess."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.core.text import whole
from preflight.hang.answer_text import rows
from preflight.hang.diagnose import all_wait, call_order, dead_ranks, odd_rank, stragglers
from preflight.hang.diagnose.job_ranks import Case, case_of, jobs_of
from preflight.hang.diagnose.model import (
    Diagnosis,
    count,
    doing,
    folded,
    line_of,
    lint_of,
    named,
    ranks,
)
from preflight.hang.diagnose.odd_rank import advice_for
from preflight.hang.diagnose.places import LOCKED, channel_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.hang.diagnose.model import Category, JobState, NodeState


_NO_ANSWER = "no answer"
_GRANT = "ask as the user whose job it is, or as root"


def nothing(state: JobState) -> Diagnosis:
    """No rank was seen: no job, or none that may be read, or no node that answers."""
    silent = [node for node in state.nodes if node.look is None]
    looks = state.looks.values()
    hidden = sum(look.hidden for look in looks)
    launchers = sum(len(look.launchers) for look in looks)
    if launchers and not state.job:
        told = _launchers_alone(launchers, hidden)
    elif silent and not looks:
        told = _unanswered(silent)
    else:
        told = _no_job(state.job, len(looks), hidden, certain=not silent)
    unseen = tuple(f"node {one.node}: {one.sentence or _NO_ANSWER}" for one in silent)
    return replace(told, unseen=(*unseen, *told.unseen))


def _launchers_alone(launchers: int, hidden: int) -> Diagnosis:
    """Ranks are not there yet, or not any more, or are another user's."""
    if hidden:
        others = _others(hidden)
        return Diagnosis(
            sentence=f"{count(launchers, 'launcher')}, and {others}: its ranks, as far as one can "
            "tell",
            advice=_GRANT,
            next="sudo preflight diagnose",
            unseen=(others,),
        )
    return Diagnosis(
        sentence=f"{count(launchers, 'launcher')} but no rank: it has not started any yet, "
        "or they have ended",
        advice="start the launch on every node; see that all name the same endpoint",
        confidence=0.3,
        next="preflight explain LOG",
    )


def _unanswered(silent: list[NodeState]) -> Diagnosis:
    """No node shows anything; what several have in common is the machine that asks."""
    first = silent[0]
    why = first.sentence or _NO_ANSWER
    if len(silent) > 1:
        return Diagnosis(
            sentence=f"none of {count(len(silent), 'node')} answers, the first: {why}",
            advice="look at this machine first: its load, its way to the nodes, the login; then "
            "ask again",
            next="pytest --preflight -k reach",
        )
    if first.late:
        return Diagnosis(
            sentence=f"{first.node} is there, and could not look in time: {why}",
            advice="look at its load (uptime, top) and ask again; one process alone is read by: "
            "py-spy dump --nonblocking --pid N",
            next="preflight diagnose",
        )
    return Diagnosis(
        category="node_unreachable",
        culprits=(f"node {first.node}",),
        sentence=f"no node answers: {why}",
        advice=first.advice or "reach the nodes first",
        confidence=0.5,
        next="pytest --preflight -k reach",
    )


def _no_job(job: str, nodes: int, hidden: int, *, certain: bool) -> Diagnosis:
    wanted = f" of the job {job}" if job else " of a distributed job"
    others = f"; {_others(hidden)}" if hidden else ""
    return Diagnosis(
        category="no_job",
        sentence=f"no process{wanted} was found on {count(nodes, 'node')}{others}",
        advice=_GRANT if hidden else "name the job's nodes, or its process with --pid",
        confidence=0.9 if certain and not hidden else 0.4,
    )


def _others(hidden: int) -> str:
    return f"{count(hidden, 'process')} of other users may not be read"


def several(jobs: tuple[str, ...]) -> Diagnosis:
    """Several jobs run on these nodes."""
    names = ", ".join(job or "(without a name)" for job in jobs[:6])
    return Diagnosis(
        sentence=f"{len(jobs)} jobs run on these nodes: {names}",
        advice="say which one is meant with --job",
    )


def unknown(case: Case) -> Diagnosis:
    """What was seen names nobody."""
    if case.unread and not case.read:
        return _unreadable(case)
    if case.world == 1 and case.read:
        return _alone(case)
    if (shared := _together(case)) is not None:
        return shared
    seen = f"{len(case.read)} of {case.world} ranks"
    longer = all_wait.look_longer(case)
    let_read = "; let py-spy read all ranks, on all nodes"
    return Diagnosis(
        sentence=f"{seen} show where they stand, and that names nobody",
        advice=("look longer: a step may take more time than that" if longer else "look again")
        + let_read * (len(case.read) < case.world),
        next=longer or "preflight explain LOG",
    )


def _unreadable(case: Case) -> Diagnosis:
    why = case.unread[0].look.no_stacks or "no stack was read"
    return Diagnosis(
        sentence=f"none of {count(len(case.unread))} shows where it stands: {why}",
        advice="let their stacks be read, then look again (docs/diagnose.md: Stacks, and py-spy)",
        next="sudo preflight diagnose" if "root" in why else "preflight diagnose",
    )


def _alone(case: Case) -> Diagnosis:
    """A job of one rank waits for no other: its line is all that there is to tell."""
    one = case.read[0]
    return Diagnosis(
        sentence=f"{one.name} is alone in its job, and {doing(one)}",
        advice="look at that line: it waits for no other rank",
        line=line_of((one,)),
        evidence=one.place.calls[:5] if one.place else (),
        next=all_wait.look_longer(case) or lint_of((one,)),
    )


def _together(case: Case) -> Diagnosis | None:
    """Most ranks wait at one line, and the kernel says for what: for none of them."""
    largest = max(case.spots(case.read), key=len, default=())
    waits = {channel_words(one.look.wait_channel) for one in largest}
    if len(largest) * 2 <= case.world or len(waits) != 1 or waits & {"", LOCKED, "sleeps"}:
        return None
    return Diagnosis(
        sentence=f"{named(largest)} {doing(largest[0], len(largest))}: what they wait for is "
        "outside of the job",
        advice=advice_for(largest[0]),
        line=line_of(largest),
        next="pytest --preflight",
    )


_JUDGES: tuple[Callable[[Case], Diagnosis | None], ...] = (
    dead_ranks.over,
    dead_ranks.stopped,
    dead_ranks.dead,
    stragglers.judge,
    odd_rank.judge,
    dead_ranks.silent,
    call_order.judge,
    all_wait.judge_network,
    odd_rank.judge_blind,
    all_wait.judge_places,
)
"""The first that knows answers: what is seen on a process stands before what follows from it."""


_BY_NAME = re.compile(r" --preflight-nodes=\S+")
_PROBLEMS = 8
"""So many different troubles of nodes are told."""

_LOST: frozenset[Category] = frozenset({"node_unreachable", "dead_rank", "out_of_memory"})
"""Categories of ranks that are not seen because they are not there."""


def diagnose(state: JobState) -> Diagnosis:
    """Name the ranks that a job waits for, their line, and how sure that is."""
    jobs = jobs_of(state)
    wanted = (state.job,) if state.job else jobs
    if not any(job in jobs for job in wanted):
        return nothing(state)
    if len(wanted) > 1:
        return several(jobs)
    case = case_of(state, wanted[0])
    for judge in _JUDGES:
        found = judge(case)
        if found is not None:
            return _finished(found, case)
    return _finished(unknown(case), case)


def _finished(told: Diagnosis, case: Case) -> Diagnosis:
    """Add the table, and what could not be seen; less is sure where less was seen."""
    unseen = _unseen(case, told.category)
    hidden = len(case.unread) + len(case.absent)
    share = hidden / max(1, case.world) if told.category not in _LOST else 0.0
    answer = replace(
        told,
        confidence=round(told.confidence * (1 - share / 2), 2),
        standings=case.standings,
        unseen=unseen,
        next=_BY_NAME.sub("", told.next) if case.state.here else told.next,
    )
    return _pids(answer) if case.nameless else answer


def _pids(told: Diagnosis) -> Diagnosis:
    """The same of processes without ranks: what stands for their rank is their pid."""

    def words(text: str) -> str:
        return re.sub(r"\brank(s?) (?=\d)", r"pid\1 ", text)

    return replace(
        told,
        sentence=words(told.sentence),
        culprits=tuple(words(one) for one in told.culprits),
        evidence=tuple(words(one) for one in told.evidence),
        unseen=tuple(words(one) for one in told.unseen),
    )


def _unseen(case: Case, category: Category) -> tuple[str, ...]:
    told = []
    reasons: dict[str, list[int]] = {}
    for seat in (*case.held, *case.unread):
        if seat.look.state not in ("zombie", "gone"):
            reasons.setdefault(seat.look.no_stacks or "no stack was read", []).append(seat.rank)
    told += [f"{ranks(some)}: {why}" for why, some in reasons.items()]
    told += [
        f"node {node.node}: {node.sentence or 'no answer'}{f'; {node.advice}' * bool(node.advice)}"
        for node in case.silent
    ]
    if case.absent and not case.silent and category not in _LOST:
        told.append(f"{ranks(case.absent)}: on no node that was looked at; name all its nodes")
    for node, look in case.state.looks.items():
        if look.hidden:
            several = count(look.hidden, "process")
            told.append(f"node {node}: {several} of another user; ask as that user or as root")
    return (*told, *_problems(case))


def _problems(case: Case) -> list[str]:
    """What the nodes themselves could not read: a driver that does not answer is told here."""
    nodes: dict[str, list[str]] = {}
    for node, look in case.state.looks.items():
        for problem in look.problems:
            nodes.setdefault(problem, []).append(node)
    return [f"{_first(some)}: {problem}" for problem, some in nodes.items()][:_PROBLEMS]


def _first(nodes: list[str]) -> str:
    return f"node {nodes[0]}" + f" and {len(nodes) - 1} more" * (len(nodes) > 1)


_ROWS = 12
"""Of the table; what else there is, is in --json."""


def lines(told: Diagnosis, width: int) -> list[str]:
    """Everything of it, wrapped."""
    table = [f"{folded(one.ranks)}  {one.what or one.where}" for one in told.standings]
    left = len(table) - _ROWS
    labelled = (
        ("what", [told.sentence]),
        ("who", [_who(told.culprits)]),
        ("line", [told.line]),
        ("do", [told.advice]),
        ("next", [told.next]),
        ("proof", told.evidence),
        ("or", [one.words for one in told.alternatives]),
        ("ranks", table[:_ROWS] + [f"and {left} more rows: --json"] * (left > 0)),
        ("unseen", told.unseen),
    )
    shown = rows(told.category, told.confidence, labelled, width)
    return [_cut(line, width) for line in shown]


def _who(culprits: tuple[str, ...]) -> str:
    """Ranks folded, the rest as it is."""
    ranks = {one: whole(one.removeprefix("rank ")) for one in culprits if one.startswith("rank ")}
    numbers = [number for number in ranks.values() if number is not None]
    words = [one for one in culprits if ranks.get(one) is None]
    folded_ranks = [f"rank{'s' * (len(numbers) > 1)} {folded(numbers)}"] if numbers else []
    return ", ".join([*folded_ranks, *words])


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: max(width - 3, 1)] + "..."
