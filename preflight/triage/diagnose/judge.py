"""Whom a job waits for: from all ranks' places to one sentence; unknown rather than a guess."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.triage.diagnose import alike, blind, links, lost, odd, pace, recorded
from preflight.triage.diagnose.case import Case
from preflight.triage.diagnose.model import Diagnosis
from preflight.triage.diagnose.roll import jobs_of, roll_of
from preflight.triage.diagnose.words import count, ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.triage.diagnose.model import Category, JobState

_JUDGES: tuple[Callable[[Case], Diagnosis | None], ...] = (
    lost.stopped,
    lost.dead,
    pace.judge,
    odd.judge,
    lost.silent,
    recorded.judge,
    links.judge,
    blind.judge,
    alike.judge,
)
"""The first that knows answers: what is seen on a process stands before what follows from it."""


_PROBLEMS = 8
"""So many different troubles of nodes are told."""

_LOST: frozenset[Category] = frozenset({"node_unreachable", "dead_rank", "out_of_memory"})
"""Categories of ranks that are not seen because they are not there."""


def diagnose(state: JobState) -> Diagnosis:
    """Name the ranks that a job waits for, their line, and how sure that is."""
    jobs = jobs_of(state)
    wanted = (state.job,) if state.job else jobs
    if not any(job in jobs for job in wanted):
        return _nothing(state)
    if len(wanted) > 1:
        return _several(jobs)
    case = Case(state, roll_of(state, wanted[0]))
    for judge in _JUDGES:
        found = judge(case)
        if found is not None:
            return _finished(found, case)
    return _finished(_unknown(case), case)


def _finished(told: Diagnosis, case: Case) -> Diagnosis:
    """Add the table, and what could not be seen; less is sure where less was seen."""
    unseen = _unseen(case, told.category)
    hidden = len(case.unread) + len(case.roll.absent)
    share = hidden / max(1, case.roll.world) if told.category not in _LOST else 0.0
    answer = replace(
        told,
        confidence=round(told.confidence * (1 - share / 2), 2),
        standings=case.standings,
        unseen=unseen,
    )
    return _pids(answer) if case.roll.nameless else answer


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
        for node in case.roll.silent
    ]
    if case.roll.absent and not case.roll.silent and category not in _LOST:
        told.append(f"{ranks(case.roll.absent)}: on no node that was looked at; name all its nodes")
    for node in case.state.nodes:
        if node.look is not None and node.look.hidden:
            several = count(node.look.hidden, "process")
            told.append(f"node {node.node}: {several} of another user; ask as that user or as root")
    return (*told, *_problems(case))


def _problems(case: Case) -> list[str]:
    """What the nodes themselves could not read: a driver that does not answer is told here."""
    nodes: dict[str, list[str]] = {}
    for node in case.state.nodes:
        for problem in node.look.problems if node.look else ():
            nodes.setdefault(problem, []).append(node.node)
    return [f"{_first(some)}: {problem}" for problem, some in nodes.items()][:_PROBLEMS]


def _first(nodes: list[str]) -> str:
    return f"node {nodes[0]}" + f" and {len(nodes) - 1} more" * (len(nodes) > 1)


def _nothing(state: JobState) -> Diagnosis:
    silent = [node for node in state.nodes if node.look is None]
    looks = [node.look for node in state.nodes if node.look is not None]
    hidden = sum(look.hidden for look in looks)
    launchers = sum(len(look.launchers) for look in looks)
    unseen = tuple(f"node {one.node}: {one.sentence or 'no answer'}" for one in silent)
    if launchers and not state.job:
        return Diagnosis(
            category="unknown",
            sentence=f"{count(launchers, 'launcher')} but no rank: it has not started any yet, "
            "or they have ended",
            advice="start the launch on every node; see that all name the same endpoint",
            confidence=0.3,
            next="preflight explain LOG",
            unseen=unseen,
        )
    where = f"on {count(len(looks), 'node')}"
    wanted = f" of the job {state.job}" if state.job else " of a distributed job"
    grant = "ask as the user whose job it is, or as root" if hidden else ""
    if len(silent) > 1 and not looks:
        # What all of them have in common is the machine that asks.
        return Diagnosis(
            category="unknown",
            sentence=f"none of {count(len(silent), 'node')} answers, the first: "
            f"{silent[0].sentence or 'no answer'}",
            advice="look at this machine first: its load, its way to the nodes, the login; then "
            "ask again",
            confidence=0.0,
            next="pytest --preflight -k reach",
            unseen=unseen,
        )
    if silent and not looks and silent[0].late:
        return Diagnosis(
            category="unknown",
            sentence=f"{silent[0].node} is there, and could not look in time: "
            f"{silent[0].sentence or 'no answer'}",
            advice="look at its load (uptime, top) and ask again; one process alone is read by: "
            "py-spy dump --nonblocking --pid N",
            confidence=0.0,
            next="preflight diagnose",
            unseen=unseen,
        )
    if silent and not looks:
        return Diagnosis(
            category="node_unreachable",
            culprits=tuple(f"node {one.node}" for one in silent),
            sentence=f"no node answers: {silent[0].sentence or 'no answer'}",
            advice=silent[0].advice or "reach the nodes first",
            confidence=0.5,
            next="pytest --preflight -k reach",
            unseen=unseen,
        )
    return Diagnosis(
        category="no_job",
        sentence=f"no process{wanted} was found {where}"
        + (f"; {count(hidden, 'process')} of other users may not be read" if hidden else ""),
        advice=grant or "name the job's nodes, or its process with --pid",
        confidence=0.9 if not (hidden or silent) else 0.4,
        unseen=unseen,
    )


def _several(jobs: tuple[str, ...]) -> Diagnosis:
    named = ", ".join(job or "(without a name)" for job in jobs[:6])
    return Diagnosis(
        category="unknown",
        sentence=f"{len(jobs)} jobs run on these nodes: {named}",
        advice="say which one is meant with --job",
        confidence=0.0,
    )


def _unknown(case: Case) -> Diagnosis:
    seen = f"{len(case.read)} of {case.roll.world} ranks"
    longer = alike.look_longer(case)
    let_read = "; let py-spy read all ranks, on all nodes"
    return Diagnosis(
        category="unknown",
        sentence=f"{seen} show where they stand, and that names nobody",
        advice=("look longer: a step may take more time than that" if longer else "look again")
        + let_read * (len(case.read) < case.roll.world),
        confidence=0.0,
        next=longer or "preflight explain LOG",
    )
