"""Ranks that cannot go on: stopped, dead, killed for memory, or on a node without an answer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from preflight.core.statistics import grouped
from preflight.hang.answer_text import Alternative
from preflight.hang.diagnose.job_state import (
    Diagnosis,
    count,
    describe_ranks,
    line_of,
    rank_names,
    ranks,
    verb,
)

if TYPE_CHECKING:
    from preflight.hang.diagnose.job_ranks import Case
    from preflight.hang.diagnose.job_state import RankState

_KILLED = re.compile(
    r"[Kk]illed process (\d+) ?\(([^)]{0,40})\)(?:.{0,200}kB, UID:(\d{1,10}) pgtables:)?"
)
"""The name is the user's choice, up to 15 characters; the UID is in the lines of Linux 5.4 on."""
_LOGIN = re.compile(r"permission|denied|host key|authentic|password|not allowed|refused the login")


def judge_ended(case: Case) -> Diagnosis | None:
    """All ranks of the job ended during the look."""
    states = {member.look.state for member in case.members}
    if not {"gone"} <= states <= {"gone", "zombie"} or case.state.unanswered or case.absent:
        return None
    return Diagnosis(
        category="no_job",
        sentence=f"the job ended during the look: {count(len(case.members))} "
        f"{verb(len(case.members), 'is', 'are')} gone",
        advice="read in its launcher's output and its log how it ended",
        confidence=0.9,
        next="preflight explain LOG",
    )


def judge_stopped(case: Case) -> Diagnosis | None:
    """A signal or a debugger stops a rank: all others wait for it, whatever its stack shows."""
    stopped_ranks = tuple(
        member for member in case.members if member.look.state in ("stopped", "traced")
    )
    if not stopped_ranks:
        return None
    traced = all(member.look.state == "traced" for member in stopped_ranks)
    word = "held by a debugger or tracer" if traced else "stopped by a signal (state T)"
    pids = ", ".join(str(member.look.pid) for member in stopped_ranks[:8])
    place = next(
        (member.place for member in stopped_ranks if member.place and member.place.user), None
    )
    return Diagnosis(
        category="stopped_rank",
        culprits=rank_names(stopped_ranks),
        sentence=f"{describe_ranks(stopped_ranks)} {verb(len(stopped_ranks), 'is', 'are')} {word}"
        f"{_meanwhile(case, stopped_ranks)}",
        advice=f"detach the tracer of pid {pids}"
        if traced
        else f"continue it: kill -CONT {pids.replace(',', '')}; find out who stopped it",
        line=line_of(stopped_ranks),
        evidence=(f"pid {pids}: state {'t' if traced else 'T'} of /proc/PID/stat",)
        + ((f"it stands in {place.where}",) if place else ()),
        confidence=0.8 if traced else 0.95,
    )


def judge_dead(case: Case) -> Diagnosis | None:
    """A rank's process has ended while others still wait for it."""
    dead_ranks = tuple(member for member in case.members if member.look.state in ("zombie", "gone"))
    gone = (*case.gone, *_ranks_of_empty_nodes(case))
    numbers = [member.rank for member in dead_ranks] + [rank for rank, _ in gone]
    if not numbers:
        return _worker_killed(case)
    nodes = list(
        dict.fromkeys([*(member.node for member in dead_ranks), *(n for _, n in gone if n)])
    )
    alive = [member for member in case.readable if member.look.state not in ("zombie", "gone")]
    if not alive and not case.unreadable:
        return None
    ranks_and_nodes = f"{ranks(numbers)} ({', '.join(nodes[:4]) or 'not on these nodes'})"
    killed = _killed(case, nodes, {member.look.pid for member in dead_ranks})
    if killed:
        return Diagnosis(
            category="out_of_memory",
            culprits=rank_names(numbers, nodes),
            sentence=f"{ranks_and_nodes} {verb(len(numbers), 'was', 'were')} killed: out of memory"
            f"{_meanwhile(case, dead_ranks)}",
            advice="give the job more host memory, or load less data per rank; start it again",
            evidence=killed,
            confidence=0.85,
            next=f"preflight explain LOG; preflight check --nodes={nodes[0]}",
        )
    unreaped = not gone and all(member.look.state == "zombie" for member in dead_ranks)
    state = "dead and not yet reaped (zombie)" if unreaped else "gone"
    waits = f"; {', '.join(case.launchers)} still waits for the others" * bool(case.launchers)
    return Diagnosis(
        category="dead_rank",
        culprits=rank_names(numbers, _empty_nodes(case)),
        sentence=f"{ranks_and_nodes} {verb(len(numbers), 'is', 'are')} {state}"
        f"{_meanwhile(case, dead_ranks)}",
        advice="read its log: an error ended it, or it ran out of data before the others did "
        "(drop_last=True, or join()); then start the job again",
        evidence=tuple(
            f"rank {member.rank}: pid {member.look.pid} "
            + ("is a zombie" if member.look.state == "zombie" else "has ended")
            for member in dead_ranks[:4]
        )
        + tuple(
            f"rank {rank}: no such process on {node or 'any node'}{waits}"
            for rank, node in gone[:4]
        ),
        confidence=0.9 if dead_ranks else 0.85 if case.gone else 0.7 if nodes else 0.4,
        next="preflight explain LOG",
    )


def judge_unanswered(case: Case) -> Diagnosis | None:
    """Nodes without an answer, on which the absent ranks must be."""
    nodes = case.state.unanswered
    if not nodes or not case.absent:
        return None
    unreached = [node for node in nodes if not node.late]
    late = len(unreached) < len(nodes)
    refused = any(_LOGIN.search(node.sentence.lower()) for node in nodes)
    names = ", ".join(node.node for node in nodes[:4]) + (" ..." if len(nodes) > 4 else "")  # noqa: PLR2004
    why = nodes[0].why
    doubted = f"the node is {'slow' if late else 'healthy, and only this machine cannot reach it'}"
    return Diagnosis(
        category="node_unreachable" if unreached else "unknown",
        culprits=tuple(f"node {node.node}" for node in unreached),
        sentence=f"{count(len(nodes), 'node')} {verb(len(nodes), 'does', 'do')} not answer: "
        f"{names} ({why}); {ranks(case.absent)} must be there{_meanwhile(case, ())}",
        advice=nodes[0].advice or "look at its console; drain it and start the job without it",
        evidence=tuple(f"{node.node}: {node.why}" for node in nodes[:6]),
        confidence=0.35 if refused or late else 0.75,
        alternatives=(Alternative("unknown", doubted, 0.5 if refused or late else 0.2),),
        next=f"preflight check --nodes={nodes[0].node} -k reach",
    )


def _empty_nodes(case: Case) -> list[str]:
    """Nodes that answered and show no rank of the job, although ranks are absent."""
    if not case.absent or case.state.unanswered:
        return []
    populated = {member.node for member in case.members}
    looks = case.state.looks.items()
    return [node for node, look in looks if node not in populated and not look.hidden]


def _ranks_of_empty_nodes(case: Case) -> list[tuple[int, str]]:
    """Ranks that no node shows while others wait; their node if only one has no rank."""
    nodes = _empty_nodes(case)
    if not nodes or not case.waiting or any(member.went_on for member in case.waiting):
        return []
    return [(rank, nodes[0] if len(nodes) == 1 else "") for rank in case.absent]


def _worker_killed(case: Case) -> Diagnosis | None:
    """A killed DataLoader worker leaves its rank waiting for a batch."""
    loading = tuple(member for member in case.elsewhere if member.kind == "data")
    if not loading or not case.stuck:
        return None
    nodes = list(dict.fromkeys(member.node for member in loading))
    killed = _killed(case, nodes, set())
    if not killed:
        return None
    return Diagnosis(
        category="out_of_memory",
        culprits=rank_names([member.rank for member in loading], nodes),
        sentence=f"{describe_ranks(loading)} {verb(len(loading), 'waits', 'wait')} for DataLoader "
        f"workers, and a process there was killed: out of memory{_meanwhile(case, loading)}",
        advice="give the job more host memory, or fewer workers and less prefetch; start it again",
        line=line_of(loading),
        evidence=killed,
        confidence=0.8,
        next="preflight explain LOG",
    )


def _killed(case: Case, nodes: list[str], pids: set[int]) -> tuple[str, ...]:
    """Evidence of a kill for memory in the job on these nodes, since it began.

    Others may share the memory cgroup (slurmd's, without Slurm's cgroups): it counts only where the
    log, which has the killed process's user, does not reach back to the job's begin.
    """
    proof = []
    oldest_s = max((member.look.age_s for member in case.members), default=0.0)
    users = {member.look.uid for member in case.members} - {None}
    of_node = grouped((member.node, member.look.oom_kills) for member in case.members)
    for node, look in case.state.looks.items():
        if node not in nodes:
            continue
        begun_s = look.time_s - look.boot_s - oldest_s
        kills = max(of_node.get(node, ()), default=0)
        lines = []
        for line in look.log.lines if look.log else ():
            killed = _KILLED.search(line.text)
            if killed is None or line.last_s is None or line.last_s < begun_s:
                continue
            pid, name, user = killed.groups()
            likely = bool(kills) or "python" in name or name.startswith("pt_")
            of_job = bool(kills) if user is None else int(user) in users
            if int(pid) in pids or (likely and of_job):
                lines.append(f"{node}: {line.text}")
        proof += lines
        log = look.log
        complete = log and log.begins_s is not None and log.begins_s <= begun_s and not log.dropped
        if kills and (lines or not complete):
            proof.append(f"{node}: {count(kills, 'kill')} in the job's memory cgroup")
    return tuple(proof[:6])


def _meanwhile(case: Case, without: tuple[RankState, ...]) -> str:
    """What the others do: ` while 31 ranks wait in all_reduce (train.py:41)`."""
    left_out = {member.rank for member in without}
    waiting = tuple(member for member in case.waiting if member.rank not in left_out)
    if not waiting:
        return ""
    number = len(waiting)
    return f" while {count(number)} {verb(number, 'waits', 'wait')}{case.meeting(waiting)}"
