"""RDMA registers memory by locking it: with a small limit no queue pair can be made."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Majority, Node
from preflight.facts.job_limits import held, memlock_of
from preflight.facts.limits import limit
from preflight.facts.words import memory
from preflight.fleet.model import Promise
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn

CHECK = Check("host.memlock", stage="facts", tier="prolog", requires=("reach.answer",))

GIB = 1 << 30
ADVICE = (
    "set LimitMEMLOCK=infinity for the service that starts jobs (slurmd; containers: "
    "--ulimit memlock=-1) and memlock unlimited in /etc/security/limits.d; in Slurm also "
    "PropagateResourceLimitsExcept=MEMLOCK; then see ulimit -l inside a job"
)


def judge(
    promised: Promise, facts: Facts, transport: str, usual: Majority[float] | None = None
) -> Verdict:
    """Below the least a job fails where it surely has that limit, or its peers have more."""
    if facts.nics == () and not (promised.nics or promised.hcas or promised.nic_gbits):
        return not_run("no RDMA devices promised, none here: nothing locks memory")
    seen = held("memlock", facts, transport)
    if seen is None:
        return unknown("the limit of locked memory could not be read", advice="mount /proc")
    said = f"{size(seen.value)} may be locked: the limit {seen.whose}"
    least, enough = limit("memlock_least_gib") * GIB, limit("memlock_enough_gib") * GIB
    if seen.value >= enough:
        return ok(said)
    if usual is not None and usual.decides and usual.value > seen.value:
        said += f"; {usual.votes} of {usual.of} nodes of its group have {size(usual.value)}"
        odd = True
    else:
        said += f"; RDMA needs unlimited, or at least {size(enough)}"
        odd = False
    conclude = fail if seen.value < least and (seen.sure or odd) else warn
    return conclude(said, advice=ADVICE, bytes=seen.value)


def size(limit_bytes: float) -> str:
    """64 KiB, 8 MiB, 32.0 GiB, any amount."""
    if limit_bytes == float("inf"):
        return "any amount"
    mib = limit_bytes / (1 << 20)
    return memory(mib) if mib >= 1 else f"{limit_bytes / 1024:.0f} KiB"


def test_host_memlock(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    usual = node.group.majority(memlock_of)
    conclude(judge(node.promised, node.facts, node.reach.transport, usual))
