"""All GPUs of a node all-reduce among themselves as fast as its peers', with the right sums."""

from __future__ import annotations

from typing import Any

from preflight.check import Check
from preflight.fabric.inside_judge import held_to_nvlink
from preflight.fabric.words import gbs, size, time_us
from preflight.facts import Gpu, Node
from preflight.facts.inside import Inside
from preflight.verdict import Conclude, Verdict, fail, flaky, not_run, ok, unknown

CHECK = Check(
    "fabric.intra_node",
    stage="fabric",
    tier="quick",
    requires=("reach.answer", "host.driver_hung", "net.ports"),
    disturbs=True,
)


def judge(name: str, inside: Inside | None, gpus: tuple[Gpu, ...] | None = None) -> Verdict:
    """Condemn a node whose GPUs are slow, late or wrong among themselves, whatever the network."""
    if inside is None or (inside.state == "one_rail" and not inside.lacks):
        return not_run("it has one rail, nothing to all-reduce inside of it")
    if inside.state == "not_run":
        return not_run(inside.reason, stopped=inside.stopped)
    if inside.state == "trouble":
        advice = inside.advice or f"read what {name} said, run again, or exclude {name}"
        return unknown(inside.reason, advice=advice, cause="sweep")
    return _measured(held_to_nvlink(inside, gpus or ()))


def _measured(inside: Inside) -> Verdict:
    evidence: dict[str, Any] = {
        "state": inside.state,
        "backend": inside.backend,
        "rails": inside.rails,
        "size_bytes": inside.at_bytes,
        "busbw_gbs": inside.busbw_gbs,
        "best_gbs": inside.best_gbs,
        "peers_gbs": inside.peers_gbs,
        "peers": inside.peers,
        "limit_gbs": inside.limit_gbs,
        "limit_origin": inside.limit_origin,
        "latency_us": inside.latency_us,
        "error": inside.reason,
    }
    if inside.events:
        return flaky(inside.events, inside.operations, inside.why, advice=inside.advice, **evidence)
    if inside.why:
        return fail(inside.why, advice=inside.advice, **evidence)
    if inside.lacks:
        gpus = f"{inside.rails} GPUs all-reduce among themselves"
        return unknown(
            f"it lacks {inside.lacks}; {gpus}, which is compared with no other node",
            advice="look at gpu.count, and at CUDA_VISIBLE_DEVICES there; recheck",
            **evidence,
        )
    if inside.best_gbs is None or inside.limit_gbs is None or inside.latency_us is None:
        return unknown(
            f"no peers: {inside.peers} other nodes like it, no promise and no floor",
            advice="promise intra_node_min_gbs in the inventory",
            **evidence,
        )
    return ok(
        f"{gbs(inside.best_gbs)} at best at {size(inside.at_bytes)} among {inside.rails} rails "
        f"(limit {gbs(inside.limit_gbs)}, {inside.limit_origin}), {time_us(inside.latency_us)}",
        **evidence,
    )


def test_fabric_intra_node(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.name, node.inside, node.facts.gpus))
