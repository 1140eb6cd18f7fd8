"""What a container hides from us, leftovers of other jobs above all, is not judged: say so."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.verdict import Conclude, Verdict, ok, unknown

CHECK = Check("host.container", stage="facts", tier="prolog", requires=("reach.answer",))

SHOW = {
    "kubernetes": "hostPID: true in the pod's spec",
    "docker": "docker run --pid=host",
    "podman": "podman run --pid=host",
    "apptainer": "apptainer without --pid",
    "hidepid": "this login the group of the mount of /proc (gid=), or mount it without hidepid",
}
NSENTER = "the process table of the machine: start it there, not in the container"


def judge(facts: Facts) -> Verdict:
    """Whether all processes of the machine are seen; only a missing privilege, so no fault."""
    container = facts.machine.container if facts.machine else None
    if container is None or container.hidden_by is None:
        return unknown(
            "it cannot be told whether a container hides part of the machine",
            advice="mount /proc there",
        )
    where = f"in a container ({container.kind})" if container.kind else "no container"
    if not container.hidden_by:
        return ok(f"{where}; nothing hides other processes")
    seen = facts.processes.seen if facts.processes else 0
    grant = SHOW.get(container.kind or container.hidden_by, NSENTER)
    grant = SHOW["hidepid"] if container.hidden_by == "hidepid" else grant
    what = (
        "other users' processes (hidepid)"
        if container.hidden_by == "hidepid"
        else ("processes of the machine and of other containers")
    )
    load = facts.machine.load if facts.machine else None
    busy = f"; the load average of all is {load.one_minute:.1f}" if load is not None else ""
    return unknown(
        f"{where}: {what} are hidden, {seen} seen{busy}",
        advice=f"to have leftovers and load of others judged, grant {grant}",
        grant=grant,
    )


def test_host_container(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.facts))
