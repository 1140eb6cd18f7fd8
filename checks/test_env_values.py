"""Every value is one that its reader takes, and the sentence says what it will do."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - read like its documentation

from preflight.check import Check
from preflight.facts import Node
from preflight.facts.environ.effects import effect
from preflight.facts.environ.remark import UNKNOWN_JOB, verdict
from preflight.facts.environ.values import read_all
from preflight.facts.environ.variables import variables
from preflight.facts.words import count
from preflight.verdict import Conclude, Verdict, not_run, ok

CHECK = Check("env.values", stage="facts", tier="prolog", requires=("reach.answer",), user=True)


def judge(environ: Mapping[str, str] | None, origin: str) -> Verdict:
    """Read each value as NCCL, torch, CUDA or gloo will."""
    if environ is None:
        return not_run(UNKNOWN_JOB)
    told = [one for name, one in variables().items() if name in environ and one.type != "untold"]
    does = [effect(one.effect, environ) for one in told if one.effect]
    meant = "; ".join(dict.fromkeys(filter(None, does)))
    fine = count(len(told), "setting") + " of NCCL, torch, CUDA and gloo, each in its range"
    return verdict(read_all(environ), ok(f"{fine}; {meant}" if meant else fine), origin)


def test_env_values(node: Node, conclude: Conclude) -> None:
    """Joins the job's environment on a node and the judgement; the frame does the rest."""
    conclude(judge(node.environ, node.job.environ_origin))
