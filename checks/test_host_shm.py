"""NCCL and loaders talk through /dev/shm: a container's default of 64 MiB kills them at start."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.file_systems import SHM, SHM_FULL, lying_on
from preflight.facts.limits import limit
from preflight.facts.words import memory
from preflight.verdict import Conclude, Verdict, fail, ok, unknown, warn

CHECK = Check("host.shm", stage="facts", tier="prolog", requires=("reach.answer",))

ENLARGE = (
    "give the container more: --shm-size=8g or --ipc=host; in Kubernetes an emptyDir with "
    "medium: Memory at /dev/shm"
)
CLEAR = "look at ls -l /dev/shm, end who holds it, and remove what dead jobs left there"


def judge(facts: Facts) -> Verdict:
    """Its size as a container was given it, then what of it others have left."""
    found = lying_on(facts, SHM)
    if found is None or found.size_mib is None or found.free_mib is None:
        why = f": {found.error or found.state}" if found is not None else ""
        return unknown(f"{SHM} could not be looked at{why}", advice="see df /dev/shm there")
    seen = f"{memory(found.free_mib)} of {memory(found.size_mib)} of {SHM} are free"
    mib = {"size": found.size_mib, "free": found.free_mib}
    if found.kind != "tmpfs":
        # A folder of the root disk: it works, and every message between ranks is written to disk.
        return warn(
            f"{SHM} is no memory but a folder on {found.kind} at {found.mount}",
            advice="mount -t tmpfs tmpfs /dev/shm, and put it into /etc/fstab",
            mib=mib,
        )
    least, enough = limit("shm_least_mib"), limit("shm_enough_mib")
    if found.size_mib <= least:
        return fail(f"{seen}; {memory(enough)} are needed", advice=ENLARGE, mib=mib)
    if found.refused or found.free_mib <= least:
        why = f"; {found.refused[0]}" if found.refused else f"; {memory(enough)} are needed"
        return fail(seen + why, advice=CLEAR, cause=SHM_FULL, mib=mib)
    if found.free_mib < enough:
        advice = ENLARGE if found.size_mib < enough else CLEAR
        return warn(f"{seen}; {memory(enough)} are advised", advice=advice, mib=mib)
    return ok(seen, mib=mib)


def test_host_shm(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.facts))
