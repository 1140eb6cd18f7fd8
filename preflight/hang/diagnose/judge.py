"""What is said where nobody can be named: no job, several, no stack, or nothing that stands out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.triage.diagnose import alike, lost
from preflight.triage.diagnose.model import Diagnosis
from preflight.triage.diagnose.places import LOCKED, channel_words
from preflight.triage.diagnose.remedy import advice_for
from preflight.triage.diagnose.words import count, doing, named

if TYPE_CHECKING:
    from preflight.triage.diagnose.case import Case
    from preflight.triage.diagnose.model import JobState, NodeState

_NO_ANSWER = "no answer"
_GRANT = "ask as the user whose job it is, or as root"


def nothing(state: JobState) -> Diagnosis:
    """No rank was seen: no job, or none that may be read, or no node that answers."""
    silent = [node for node in state.nodes if node.look is None]
    looks = [node.look for node in state.nodes if node.look is not None]
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
            category="unknown",
            sentence=f"{count(launchers, 'launcher')}, and {others}: its ranks, as far as one can "
            "tell",
            advice=_GRANT,
            confidence=0.0,
            next="sudo preflight diagnose",
            unseen=(others,),
        )
    return Diagnosis(
        category="unknown",
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
            category="unknown",
            sentence=f"none of {count(len(silent), 'node')} answers, the first: {why}",
            advice="look at this machine first: its load, its way to the nodes, the login; then "
            "ask again",
            confidence=0.0,
            next="pytest --preflight -k reach",
        )
    if first.late:
        return Diagnosis(
            category="unknown",
            sentence=f"{first.node} is there, and could not look in time: {why}",
            advice="look at its load (uptime, top) and ask again; one process alone is read by: "
            "py-spy dump --nonblocking --pid N",
            confidence=0.0,
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
        category="unknown",
        sentence=f"{len(jobs)} jobs run on these nodes: {names}",
        advice="say which one is meant with --job",
        confidence=0.0,
    )


def unknown(case: Case) -> Diagnosis:
    """What was seen names nobody."""
    if case.unread and not case.read:
        return _unreadable(case)
    if case.roll.world == 1 and case.read:
        return _alone(case)
    if (shared := _together(case)) is not None:
        return shared
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


def _unreadable(case: Case) -> Diagnosis:
    why = case.unread[0].look.no_stacks or "no stack was read"
    return Diagnosis(
        category="unknown",
        sentence=f"none of {count(len(case.unread))} shows where it stands: {why}",
        advice="let their stacks be read, then look again (docs/diagnose.md: Stacks, and py-spy)",
        confidence=0.0,
        next="sudo preflight diagnose" if "root" in why else "preflight diagnose",
    )


def _alone(case: Case) -> Diagnosis:
    """A job of one rank waits for no other: its line is all that there is to tell."""
    one = case.read[0]
    return Diagnosis(
        category="unknown",
        sentence=f"{one.name} is alone in its job, and {doing(one)}",
        advice="look at that line: it waits for no other rank",
        line=lost.line_of((one,)),
        evidence=one.place.calls[:5] if one.place else (),
        confidence=0.0,
        next=alike.look_longer(case) or lost.lint_of((one,)),
    )


def _together(case: Case) -> Diagnosis | None:
    """Most ranks wait at one line, and the kernel says for what: for none of them."""
    largest = max(case.spots(case.read), key=len, default=())
    waits = {channel_words(one.look.wait_channel) for one in largest}
    if len(largest) * 2 <= case.roll.world or len(waits) != 1 or waits & {"", LOCKED, "sleeps"}:
        return None
    return Diagnosis(
        category="unknown",
        sentence=f"{named(largest)} {doing(largest[0], len(largest))}: what they wait for is "
        "outside of the job",
        advice=advice_for(largest[0]),
        line=lost.line_of(largest),
        confidence=0.0,
        next="pytest --preflight",
    )
