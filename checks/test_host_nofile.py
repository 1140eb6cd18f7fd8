"""Every peer, channel and loader costs open files: a job at its limit dies when it grows."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Majority, Node
from preflight.facts.job_limits import held, nofile_of
from preflight.facts.limits import limit
from preflight.verdict import Conclude, Verdict, fail, ok, unknown, warn

CHECK = Check("host.nofile", stage="facts", tier="prolog", requires=("reach.answer",))

ADVICE = (
    "set LimitNOFILE=1048576 for the service that starts jobs and nofile in "
    "/etc/security/limits.d; then see ulimit -n inside a job"
)


def judge(facts: Facts, transport: str, usual: Majority[float] | None = None) -> Verdict:
    """Below what every program may count on is a fault where it is surely the job's."""
    seen = held("nofile", facts, transport)
    if seen is None:
        return unknown("the limit of open files could not be read", advice="mount /proc")
    said = f"{count(seen.value)} may be open: the limit {seen.whose}"
    enough = limit("nofile_enough")
    if seen.value >= enough or (not seen.sure and seen.most >= enough):
        return ok(said if seen.value >= enough else f"{said}; it may raise it to {seen.most:.0f}")
    odd = usual is not None and usual.decides and usual.value > seen.value
    if usual is not None and odd:
        said += f"; {usual.votes} of {usual.of} nodes of its group have {count(usual.value)}"
    else:
        said += f"; a training job wants at least {count(enough)}"
    small = seen.value < limit("nofile_least")
    conclude = fail if small and (seen.sure or odd) else warn
    return conclude(said, advice=ADVICE, files=seen.value)


def count(files: float) -> str:
    """1024 files, any number of files."""
    return "any number of files" if files == float("inf") else f"{files:.0f} files"


def test_host_nofile(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.facts, node.reach.transport, node.group.majority(nofile_of)))
