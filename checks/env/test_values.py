"""Variables that are misspelt, renamed, or hold what their reader does not take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.check import Check
from preflight.checks.env.remark import UNKNOWN_JOB, editions, verdict
from preflight.checks.env.values import effect, read_all
from preflight.checks.env.variables import outdated, unread, variables
from preflight.facts import Facts, Node
from preflight.facts.words import count
from preflight.verdict import Conclude, Verdict, not_run, ok

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECKS = (
    Check("env.values", stage="facts", tier="prolog", requires=("reach.answer",), user=True),
    Check("env.exists", stage="facts", tier="prolog", requires=("reach.answer",), user=True),
    Check("env.deprecated", stage="facts", tier="prolog", requires=("reach.answer",), user=True),
)


def judge_values(environ: Mapping[str, str] | None, origin: str) -> Verdict:
    """Read each value as NCCL, torch, CUDA or gloo will."""
    if environ is None:
        return not_run(UNKNOWN_JOB)
    told = [one for name, one in variables().items() if name in environ and one.type != "untold"]
    does = [effect(one.effect, environ) for one in told if one.effect]
    meant = "; ".join(dict.fromkeys(filter(None, does)))
    fine = count(len(told), "setting") + " of NCCL, torch, CUDA and gloo, each in its range"
    return verdict(read_all(environ), ok(f"{fine}; {meant}" if meant else fine), origin)


def test_env_values(node: Node, conclude: Conclude) -> None:
    """Every value is one that its reader takes, and the sentence says what it will do."""
    conclude(judge_values(node.environ, node.job.environ_origin))


def judge_exists(
    environ: Mapping[str, str] | None, origin: str, facts: Facts | None = None
) -> Verdict:
    """Hold the names against those that NCCL, torch, CUDA and gloo read, in the versions here."""
    if environ is None:
        return not_run(UNKNOWN_JOB)
    known = sum(name in variables() for name in environ)
    said = f"{count(known, 'variable')} of NCCL, torch, CUDA and gloo, each read by one of them"
    fine = ok(said if known else "it sets no variable of NCCL, torch, CUDA or gloo")
    return verdict(unread(environ, editions(facts, environ)), fine, origin)


def test_env_exists(node: Node, conclude: Conclude) -> None:
    """Every variable of the job's environment is read by somebody: a misspelt one does nothing."""
    conclude(judge_exists(node.environ, node.job.environ_origin, node.facts))


def judge_deprecated(
    environ: Mapping[str, str] | None, origin: str, facts: Facts | None = None
) -> Verdict:
    """Name what takes the place of each old variable, and since when."""
    if environ is None:
        return not_run(UNKNOWN_JOB)
    return verdict(outdated(environ, editions(facts, environ)), ok("no old names"), origin)


def test_env_deprecated(node: Node, conclude: Conclude) -> None:
    """No variable is one that was renamed or removed: the next version will not read it."""
    conclude(judge_deprecated(node.environ, node.job.environ_origin, node.facts))
