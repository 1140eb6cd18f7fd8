"""Every variable of the job's environment is read by somebody: a misspelt one does nothing."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - read like its documentation

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.environ.editions import editions
from preflight.facts.environ.names import unread
from preflight.facts.environ.remark import UNKNOWN_JOB, verdict
from preflight.facts.environ.variables import variables
from preflight.facts.words import count
from preflight.verdict import Conclude, Verdict, not_run, ok

CHECK = Check("env.exists", stage="facts", tier="prolog", requires=("reach.answer",), user=True)


def judge(environ: Mapping[str, str] | None, origin: str, facts: Facts | None = None) -> Verdict:
    """Hold the names against those that NCCL, torch, CUDA and gloo read, in the versions here."""
    if environ is None:
        return not_run(UNKNOWN_JOB)
    known = sum(name in variables() for name in environ)
    said = f"{count(known, 'variable')} of NCCL, torch, CUDA and gloo, each read by one of them"
    fine = ok(said if known else "it sets no variable of NCCL, torch, CUDA or gloo")
    return verdict(unread(environ, editions(facts, environ)), fine, origin)


def test_env_exists(node: Node, conclude: Conclude) -> None:
    """Joins the job's environment on a node and the judgement; the frame does the rest."""
    conclude(judge(node.environ, node.job.environ_origin, node.facts))
