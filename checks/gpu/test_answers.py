"""Every node answers with the GPUs its group promises."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Gpu, Node
from preflight.facts.gpu_errors import lost_of
from preflight.facts.gpu_twins import twins
from preflight.facts.odd_gpus import Usual, usual_gpus
from preflight.facts.words import count
from preflight.facts.xid_verdict import missing_slots
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn

CHECK = Check(
    "gpu.count",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung"),
    drains=True,
)


def judge(
    promised: int | None,
    gpus: tuple[Gpu, ...] | None,
    usual: Usual | None = None,
    counted: int | None = None,
    lost: tuple[str, ...] = (),
    *,
    said: tuple[str, ...] = (),
) -> Verdict:
    """Compare the GPUs that answered with the promise, or else with what the group has."""
    by_peers = usual if usual is not None and usual.decides else None
    wanted, origin = promised, ""
    ids = by_peers.value if by_peers is not None else 0
    if wanted is None and by_peers is not None:
        wanted = ids if isinstance(ids, int) else len(ids)
        origin = f"; {by_peers.votes} of {by_peers.of} nodes of its group have {wanted}"
    if wanted is None and counted is not None:
        wanted, origin = counted, "; NVML counts the others too"
    if not gpus and not wanted:
        return not_run("no GPUs promised, none here")
    if gpus is None:
        return unknown("NVML did not answer", advice="load the driver, then recheck")
    if twice := twins(gpus):
        return unknown(twice, advice="reload the driver, look at nvidia-smi -L, then recheck")
    bus_ids = tuple(gpu.bus_id for gpu in gpus)
    if wanted is not None and len(gpus) < wanted:
        gone = sorted(set(ids) - set(bus_ids)) if isinstance(ids, tuple) else list(lost)
        which = f"; missing: {', '.join(gone)}" if len(gone) == wanted - len(gpus) else ""
        which = which or "".join(f"; {line}" for line in said[: wanted - len(gpus)])
        # A GPU that fell off the bus leaves Xid 79 and comes back only after a cold start.
        return fail(
            f"{len(gpus)} of {wanted} GPUs answer{origin}{which}",
            advice="look for Xid 79 in dmesg; drain, power-cycle, recheck",
            bus_ids=bus_ids,
            missing=gone,
        )
    if promised is not None and len(gpus) > promised:
        return warn(
            f"{len(gpus)} GPUs, {promised} promised",
            advice="correct the inventory",
            bus_ids=bus_ids,
        )
    return ok(count(len(gpus), "GPU"), bus_ids=bus_ids)


def test_gpu_count(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    facts, usual, lost = node.facts, usual_gpus(node.group), missing_slots(node.facts)
    counted, said = facts.driver.counted, lost_of(facts)
    conclude(judge(node.promised.gpus, facts.gpus, usual, counted, lost, said=said))
