"""The job logs enough that a hang can be explained, and not so much that it crawls."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - read like its documentation

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.environ.debugging import too_loud, too_quiet
from preflight.facts.environ.remark import UNKNOWN_JOB, verdict
from preflight.verdict import Conclude, Verdict, not_run, ok

CHECK = Check("env.debugging", stage="facts", tier="prolog", requires=("reach.answer",), user=True)


def judge(environ: Mapping[str, str] | None, origin: str, facts: Facts) -> Verdict:
    """Too loud anywhere; too quiet where there are GPUs that a job will use."""
    if environ is None:
        return not_run(UNKNOWN_JOB)
    loud = too_loud(environ)
    if not loud and facts.gpus is None and facts.nonce == "captured":
        return not_run("nothing here tells whether that node has GPUs, of which NCCL would tell")
    if not loud and not facts.gpus:
        return not_run("no GPUs here: no NCCL to explain")
    fine = ok("a hang will leave something to read, and no setting logs every call")
    return verdict([*loud, *(too_quiet(environ) if facts.gpus else ())], fine, origin)


def test_env_debugging(node: Node, conclude: Conclude) -> None:
    """Joins a node, the job's environment there and the judgement; the frame does the rest."""
    conclude(judge(node.environ, node.job.environ_origin, node.facts))
