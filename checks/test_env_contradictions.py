"""No setting is defeated by another one: both look right, and one of them does nothing."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - read like its documentation

from preflight.check import Check
from preflight.facts import Node
from preflight.facts.environ.clashes import clashes
from preflight.facts.environ.launching import launching
from preflight.facts.environ.remark import UNKNOWN_JOB, verdict
from preflight.verdict import Conclude, Verdict, not_run, ok

CHECK = Check(
    "env.contradictions", stage="facts", tier="prolog", requires=("reach.answer",), user=True
)


def judge(environ: Mapping[str, str] | None, origin: str) -> Verdict:
    """Hold the settings against one another, and against the launch line beside them."""
    if environ is None:
        return not_run(UNKNOWN_JOB)
    return verdict([*clashes(environ), *launching(environ)], ok("no two settings clash"), origin)


def test_env_contradictions(node: Node, conclude: Conclude) -> None:
    """Joins the job's environment on a node and the judgement; the frame does the rest."""
    conclude(judge(node.environ, node.job.environ_origin))
