"""The ranks of the job agree on the settings that they must share."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Node
from preflight.facts.environ.alike import differing, uneven
from preflight.facts.environ.remark import UNKNOWN_JOB, verdict
from preflight.facts.words import count
from preflight.fleet.model import Job
from preflight.verdict import Conclude, Verdict, not_run, ok

CHECK = Check("env.ranks", stage="facts", tier="prolog", requires=("reach.answer",), user=True)


def judge(name: str, job: Job) -> Verdict:
    """Compare this node with the others, and its ranks among themselves."""
    if job.environ is None:
        return not_run(UNKNOWN_JOB)
    told = [node for node in job.environ if node]
    within = job.uneven.get(name, {})
    if len(told) < 2 and not within:  # noqa: PLR2004 - it takes two to differ
        return not_run(f"one environment for all nodes ({job.environ_origin}): nothing to compare")
    fine = ok(f"{count(len(told), 'node')}, alike in what ranks must share")
    return verdict([*differing(name, job.environ), *uneven(within)], fine, job.environ_origin)


def test_env_ranks(node: Node, conclude: Conclude) -> None:
    """Joins a node, the job's environments and the judgement; the frame does the rest."""
    conclude(judge(node.name, node.job))
