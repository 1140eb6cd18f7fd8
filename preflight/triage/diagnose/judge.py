"""Whom a job waits for: from all ranks' places to one sentence; unknown rather than a guess."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.triage.diagnose import alike, blind, links, lost, nobody, odd, pace, recorded
from preflight.triage.diagnose.case import Case
from preflight.triage.diagnose.roll import jobs_of, roll_of
from preflight.triage.diagnose.words import count, ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.triage.diagnose.model import Category, Diagnosis, JobState

_JUDGES: tuple[Callable[[Case], Diagnosis | None], ...] = (
    lost.over,
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
        return nobody.nothing(state)
    if len(wanted) > 1:
        return nobody.several(jobs)
    case = Case(state, roll_of(state, wanted[0]))
    for judge in _JUDGES:
        found = judge(case)
        if found is not None:
            return _finished(found, case)
    return _finished(nobody.unknown(case), case)


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
        next=_BY_NAME.sub("", told.next) if case.state.here else told.next,
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
