"""Judges what a job waits for from its ranks' places; answers "unknown" rather than guess."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from preflight.core.statistics import grouped
from preflight.core.text import and_more
from preflight.fleet.nodeset import fold
from preflight.hang.answer_text import Alternative, rows
from preflight.hang.diagnose import all_wait, communicators, dead_ranks, odd_rank, stragglers
from preflight.hang.diagnose.job_ranks import Case, case_of, jobs_of
from preflight.hang.diagnose.job_state import (
    Category,
    Diagnosis,
    JobState,
    NodeState,
    count,
    describe,
    fold_ranks,
    in_plural,
    line_of,
    lint_of,
    ranks,
    verb,
)
from preflight.hang.diagnose.places import LOCKED, channel_words

_NO_STACK = "no stack was read"
_GRANT = "run this as the job's user or as root"


def _without_ranks(state: JobState) -> Diagnosis:
    """No rank was found: no job, no permission to read it, or no node that answers."""
    unanswered = state.unanswered
    looks = state.looks.values()
    hidden = sum(look.hidden for look in looks)
    launchers = sum(len(look.launchers) for look in looks)
    if launchers and not state.job:
        answer = _launchers_alone(launchers, hidden)
    elif unanswered and not looks:
        answer = _unanswered(unanswered)
    else:
        answer = _no_job(state, len(looks), hidden, certain=not unanswered)
    answer = communicators.answer_without_ranks(answer, state)
    unseen = tuple(f"node {node.node}: {node.why}" for node in unanswered)
    return replace(answer, unseen=(*unseen, *answer.unseen))


def _launchers_alone(launchers: int, hidden: int) -> Diagnosis:
    """A launcher has no visible ranks: not yet started, ended, or another user's."""
    if hidden:
        others = _hidden_words(hidden)
        return Diagnosis(
            sentence=f"{count(launchers, 'launcher')}, and {others}: these are probably its ranks",
            advice=_GRANT,
            next="sudo preflight diagnose",
            unseen=(others,),
        )
    return Diagnosis(
        sentence=f"{count(launchers, 'launcher')} but no rank: it has not started any yet, "
        "or they have ended",
        advice="if it has run, read its log: a rank may have died, and the launcher ended the "
        "others; if it only starts, start it on every node, with the same endpoint on all",
        confidence=0.3,
        next="preflight explain LOG",
    )


def _unanswered(nodes: tuple[NodeState, ...]) -> Diagnosis:
    """No node answers; if there are several, the cause may be this machine."""
    first = nodes[0]
    why = first.why
    if len(nodes) > 1:
        return Diagnosis(
            sentence=f"none of {count(len(nodes), 'node')} answers, the first: {why}",
            advice="check this machine first: its load, its network to the nodes, its login; then "
            "try again",
            next=f"preflight check --nodes={fold(node.node for node in nodes)} -k reach",
        )
    if first.late:
        return Diagnosis(
            sentence=f"{first.node} was reached, but its answer did not come in time: {why}",
            advice="check its load (uptime, top) and try again; to read one process alone: "
            "py-spy dump --nonblocking --pid N",
            next="preflight diagnose",
        )
    return Diagnosis(
        category="node_unreachable",
        culprits=(f"node {first.node}",),
        sentence=f"no node answers: {why}",
        advice=first.advice or "reach the nodes first",
        confidence=0.5,
        next=f"preflight check --nodes={first.node} -k reach",
    )


def _no_job(state: JobState, nodes: int, hidden: int, *, certain: bool) -> Diagnosis:
    of_job = f" of the job {state.job}" if state.job else " of a distributed job"
    others = f"; {_hidden_words(hidden)}" if hidden else ""
    if served := [node for node, look in state.looks.items() if look.ras and not hidden]:
        others = f"; another user's job has its RAS service on {fold(served)}"
    advice = "name the job's nodes, or its process with --pid"
    if jobs := jobs_of(replace(state, job="")):
        others = f"; {_jobs_running(jobs)}{others}"
        advice = f"choose one of these: --job=NAME; or {advice}" if any(jobs) else advice
    return Diagnosis(
        category="no_job",
        sentence=f"no process{of_job} was found on {count(nodes, 'node')}{others}",
        advice=_GRANT if hidden or served else advice,
        confidence=0.9 if certain and not (hidden or served) else 0.4,
    )


def _hidden_words(hidden: int) -> str:
    return f"{count(hidden, 'process')} of other users cannot be read"


def _jobs_running(jobs: tuple[str, ...]) -> str:
    names = ", ".join(job or "(without a name)" for job in jobs[:6])
    return f"{count(len(jobs), 'job')} {verb(len(jobs), 'runs', 'run')} on these nodes: {names}"


def unknown(case: Case) -> Diagnosis:
    """No judge found a culprit."""
    if case.unreadable and not case.readable:
        return _unreadable(case)
    if case.world == 1 and case.readable:
        return _single_rank(case)
    if (shared := _waits_outside_job(case)) is not None:
        return shared
    visible = f"{len(case.readable)} of {case.world} ranks"
    longer = all_wait.look_longer(case)
    let_read = "; let py-spy read all ranks, on all nodes"
    return Diagnosis(
        sentence=f"{visible} show where they are, and that shows no culprit",
        advice=("look longer: a step may take more time than that" if longer else "look again")
        + let_read * (len(case.readable) < case.world),
        next=longer or "preflight explain LOG",
    )


def _unreadable(case: Case) -> Diagnosis:
    why = case.unreadable[0].look.no_stacks or _NO_STACK
    return Diagnosis(
        sentence=f"none of {count(len(case.unreadable))} shows where it is: {why}",
        advice="make their stacks readable, then look again "
        "(docs/reference/diagnose.md: Stacks, and py-spy)",
        next="sudo preflight diagnose" if "root" in why else "preflight diagnose",
    )


def _single_rank(case: Case) -> Diagnosis:
    """A job of one rank waits for no other rank: only its line matters."""
    member = case.readable[0]
    return Diagnosis(
        sentence=f"{member.name} is alone in its job, and {member.activity}",
        advice="look at that line: it waits for no other rank",
        line=line_of((member,)),
        evidence=member.place.calls[:5] if member.place else (),
        next=all_wait.look_longer(case) or lint_of((member,)),
    )


def _waits_outside_job(case: Case) -> Diagnosis | None:
    """Most ranks wait at one line, and the kernel shows that they wait for no rank."""
    largest = max(case.spots(case.readable), key=len, default=())
    waits = {channel_words(member.look.wait_channel) for member in largest}
    if len(largest) * 2 <= case.world or len(waits) != 1 or waits & {"", LOCKED, "sleeps"}:
        return None
    return Diagnosis(
        sentence=f"{describe(largest)}: what they wait for is outside the job",
        advice=odd_rank.advice_for(largest[0]),
        line=line_of(largest),
        next="preflight check",
    )


_JUDGES: tuple[Callable[[Case], Diagnosis | None], ...] = (
    dead_ranks.judge_ended,
    dead_ranks.judge_stopped,
    dead_ranks.judge_dead,
    stragglers.judge,
    odd_rank.judge,
    dead_ranks.judge_unanswered,
    all_wait.judge_calls,
    all_wait.judge_network,
    odd_rank.judge_blind,
    all_wait.judge_places,
    unknown,
)
"""The first with an answer decides: what a process shows comes before conclusions from it."""


_BY_NAME = re.compile(r" --nodes=\S+")
_PROBLEMS = 8
"""At most this many different problems of nodes are listed."""

_ABSENT_RANKS: frozenset[Category] = frozenset({"node_unreachable", "dead_rank", "out_of_memory"})
"""Categories in which ranks are not seen because they do not exist."""


def diagnose(state: JobState) -> Diagnosis:
    """Name the ranks that a job waits for, their line, and the confidence."""
    answer = _judge(state)
    return replace(
        answer,
        alternatives=_with_the_rest(answer),
        next=_BY_NAME.sub("", answer.next) if state.here else answer.next,
    )


def _with_the_rest(answer: Diagnosis) -> tuple[Alternative, ...]:
    """The alternatives; together they get no more than what the answer leaves of 100 %."""
    total = sum(alternative.confidence for alternative in answer.alternatives)
    factor = min(1.0, (1 - answer.confidence) / total) if total else 1.0
    return tuple(
        replace(alternative, confidence=int(100 * alternative.confidence * factor + 0.01) / 100)
        for alternative in answer.alternatives
    )


def _judge(state: JobState) -> Diagnosis:
    jobs = jobs_of(state)
    if not jobs:
        return _without_ranks(state)
    if len(jobs) > 1:
        return Diagnosis(sentence=_jobs_running(jobs), advice="choose one: --job=NAME")
    case = case_of(state, jobs[0])
    first = next(filter(None, (judge(case) for judge in _JUDGES)))
    answer = communicators.joined_with_ras(_completed(first, case), case)
    return _with_pids_for_ranks(answer) if case.without_ranks else answer


def _completed(answer: Diagnosis, case: Case) -> Diagnosis:
    """Add the table and what was not seen; lower the confidence if little was seen."""
    hidden = len(case.unreadable) + len(case.absent)
    share = hidden / max(1, case.world) if answer.category not in _ABSENT_RANKS else 0.0
    return replace(
        answer,
        confidence=round(answer.confidence * (1 - share / 2), 2),
        standings=case.standings,
        unseen=_unseen(case, answer.category),
    )


def _with_pids_for_ranks(answer: Diagnosis) -> Diagnosis:
    """Say "pid" instead of "rank" for processes without ranks."""
    with_pids = partial(re.sub, r"\brank(s?) (?=\d)", r"pid\1 ")
    return replace(
        answer,
        sentence=with_pids(answer.sentence),
        culprits=tuple(map(with_pids, answer.culprits)),
        evidence=tuple(map(with_pids, answer.evidence)),
        unseen=tuple(map(with_pids, answer.unseen)),
    )


def _unseen(case: Case, category: Category) -> tuple[str, ...]:
    reasons = grouped(
        (member.look.no_stacks or _NO_STACK, member.rank)
        for member in (*case.in_kernel, *case.unreadable)
        if member.look.state not in ("zombie", "gone")
    )
    entries = [f"{ranks(numbers)}: {why}" for why, numbers in reasons.items()]
    entries += [
        f"node {node.node}: {node.why}{f'; {node.advice}' * bool(node.advice)}"
        for node in case.state.unanswered
    ]
    if case.absent and not case.state.unanswered and category not in _ABSENT_RANKS:
        entries.append(f"{ranks(case.absent)}: not on these nodes; name all nodes of the job")
    for node, look in case.state.looks.items():
        if look.hidden:
            processes = count(look.hidden, "process")
            entries.append(
                f"node {node}: {processes} of another user; run this as that user or as root"
            )
    return (*entries, *_problems(case))


def _problems(case: Case) -> list[str]:
    """What the nodes could not read themselves, such as a driver that does not answer."""
    looks = case.state.looks
    nodes = grouped((problem, node) for node, look in looks.items() for problem in look.problems)
    return [
        f"node {names[0]}{and_more(len(names) - 1)}: {problem}" for problem, names in nodes.items()
    ][:_PROBLEMS]


_ROWS = 12
"""Rows of the table; --json has all."""


def lines(answer: Diagnosis, width: int) -> list[str]:
    """The lines of the answer, wrapped."""
    table = [
        f"{fold_ranks(row.ranks)}  {in_plural(row.what or row.where, len(row.ranks))}"
        for row in answer.standings
    ]
    more = len(table) - _ROWS
    labelled = (
        ("what", [answer.sentence]),
        ("who", [_culprit_list(answer.culprits)]),
        ("line", [answer.line]),
        ("do", [answer.advice]),
        ("next", [answer.next]),
        ("proof", answer.evidence),
        ("or", [alternative.words for alternative in answer.alternatives]),
        ("ranks", table[:_ROWS] + [f"and {more} more rows: --json"] * (more > 0)),
        ("unseen", answer.unseen),
    )
    return [_cut(line, width) for line in rows(answer.category, answer.confidence, labelled, width)]


def _culprit_list(culprits: tuple[str, ...]) -> str:
    """The culprits in one line, with their ranks folded."""
    numbers = [int(name.removeprefix("rank ")) for name in culprits if name.startswith("rank ")]
    others = [name for name in culprits if not name.startswith("rank ")]
    return ", ".join([ranks(numbers), *others] if numbers else others)


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: max(width - 3, 1)] + "..."
