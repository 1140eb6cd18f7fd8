"""No variable is one that was renamed or removed: the next version will not read it."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - read like its documentation

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.environ.editions import editions
from preflight.facts.environ.names import outdated
from preflight.facts.environ.remark import UNKNOWN_JOB, verdict
from preflight.verdict import Conclude, Verdict, not_run, ok

CHECK = Check("env.deprecated", stage="facts", tier="prolog", requires=("reach.answer",), user=True)


def judge(environ: Mapping[str, str] | None, origin: str, facts: Facts | None = None) -> Verdict:
    """Name what takes the place of each old variable, and since when."""
    if environ is None:
        return not_run(UNKNOWN_JOB)
    return verdict(outdated(environ, editions(facts, environ)), ok("no old names"), origin)


def test_env_deprecated(node: Node, conclude: Conclude) -> None:
    """Joins the job's environment on a node and the judgement; the frame does the rest."""
    conclude(judge(node.environ, node.job.environ_origin, node.facts))
