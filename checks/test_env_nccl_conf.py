"""No file of NCCL settings on the node breaks the job behind its back."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - read like its documentation
from shlex import quote

from preflight.check import Check
from preflight.facts import Facts, Group, Node
from preflight.facts.environ.conf import GRANT, drift, left_over, remarks, shared
from preflight.facts.environ.remark import verdict
from preflight.facts.words import count
from preflight.fleet.model import Promise
from preflight.verdict import Conclude, Verdict, ok, unknown

CHECK = Check("env.nccl_conf", stage="facts", tier="prolog", requires=("reach.answer",), user=True)


def judge(
    environ: Mapping[str, str] | None, promised: Promise, facts: Facts, group: Group
) -> Verdict:
    """Read the files as NCCL does: environment, then the user's file, then the system's."""
    files = facts.nccl_conf
    if files is None:
        said = "whether ~/.nccl.conf and /etc/nccl.conf set anything could not be read"
        return unknown(said, advice="look why the home or /etc does not answer, then run again")
    job = environ or {}
    found = [one for file in files for one in remarks(file, job, facts)]
    found += left_over(files, job, promised, facts) + drift(shared(facts), group)
    closed = next((file for file in files if file.error), None)
    if closed is not None and not found:
        said = f"{closed.path} is there and cannot be read: {closed.error}"
        return unknown(
            said, advice=f"sudo cat {quote(closed.path)}, or make it readable", grant=GRANT
        )
    told = [f"{file.path}: {count(len(file.settings), 'setting')}" for file in files]
    return verdict(found, ok(", ".join(told) + ", all right" if told else "no nccl.conf here"))


def test_env_nccl_conf(node: Node, conclude: Conclude) -> None:
    """Joins a node, its files and the judgement; the frame does the rest."""
    conclude(judge(node.environ, node.promised, node.facts, node.group))
