"""The NCCL network plugin that the job names is on the node."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - read like its documentation

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.net_plugin import asked, found, instead
from preflight.facts.software import READ_IT, UNREAD
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn

CHECK = Check("software.nccl_plugin", stage="facts", tier="prolog", requires=("reach.answer",))

_UNKNOWN_JOB = (
    "no job environment known; give --preflight-env-file, --preflight-launch, "
    "or run inside the allocation"
)


def judge(environ: Mapping[str, str] | None, facts: Facts) -> Verdict:
    """Look for the library where the job's loader would."""
    if environ is None:
        return not_run(_UNKNOWN_JOB)
    wanted = asked(environ)
    if wanted is None:
        return not_run("the job names no NCCL network plugin")
    if facts.software is None:
        return unknown(UNREAD, advice=READ_IT)
    there = facts.software.net_plugins
    path = found(wanted, there)
    if path:
        return ok(f"{wanted.setting}: {path}", plugins=there)
    name = wanted.names[0] if wanted.names else "libnccl-net*.so"
    missing = f"{wanted.setting}: {name} is not where the loader looks"
    if other := instead(there):
        return warn(
            f"{missing}; NCCL would take {other} in its place",
            advice="correct the name, or put the plugin's folder into LD_LIBRARY_PATH",
            plugins=there,
        )
    what = (
        "the job ends with an error" if not wanted.names else "NCCL goes over sockets or plain IB"
    )
    return fail(
        f"{missing}: {what}",
        advice="install it (aws-ofi-nccl on EFA), or add its folder to LD_LIBRARY_PATH",
        plugins=there,
    )


def test_software_nccl_plugin(node: Node, conclude: Conclude) -> None:
    """Joins a node, the job's environment there and the judgement; the frame does the rest."""
    conclude(judge(node.environ, node.facts))
