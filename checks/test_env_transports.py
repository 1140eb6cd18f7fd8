"""The job may use the fast ways that the node has: none is switched off since the last hunt."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - read like its documentation

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.environ.remark import UNKNOWN_JOB, verdict
from preflight.facts.environ.transports import switched_off, unjudged
from preflight.fleet.model import Promise
from preflight.verdict import Conclude, Verdict, not_run, ok

CHECK = Check("env.transports", stage="facts", tier="prolog", requires=("reach.answer",), user=True)


def judge(
    environ: Mapping[str, str] | None, origin: str, promised: Promise, facts: Facts
) -> Verdict:
    """What is promised decides first, then what is there."""
    if environ is None:
        return not_run(UNKNOWN_JOB)
    found = switched_off(environ, promised, facts)
    if not found and (setting := unjudged(environ, facts)):
        return not_run(f"{setting}: nothing here tells whether that node has what it switches off")
    fine = ok("no fast way that is promised or here is switched off")
    return verdict(found, fine, origin)


def test_env_transports(node: Node, conclude: Conclude) -> None:
    """Joins a node, the job's environment there and the judgement; the frame does the rest."""
    conclude(judge(node.environ, node.job.environ_origin, node.promised, node.facts))
