"""Every GPU of a node reaches the nodes of its NVLink domain over NVLink, as fast as its peers."""

from __future__ import annotations

from typing import Any

from preflight.check import Check
from preflight.fabric.domain_judge import over_nvlink
from preflight.fabric.words import gbs, size
from preflight.facts import Gpu, Node
from preflight.facts.nvlink_domain import OverNvlink
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown

CHECK = Check(
    "fabric.nvlink_domain",
    stage="fabric",
    tier="quick",
    requires=("reach.answer", "host.driver_hung", "net.ports"),
    disturbs=True,
)


def judge(name: str, one: OverNvlink | None, gpus: tuple[Gpu, ...] | None = None) -> Verdict:
    """Condemn a node whose NVLink to its neighbours is slow or not used, where it is its fault."""
    if one is None:
        return not_run("NVML tells no NVLink domain that goes beyond this node")
    if one.state == "alone":
        return not_run("no other node of its NVLink domain takes part with NCCL")
    if one.state == "not_run":
        return not_run(one.reason, stopped=one.stopped)
    if one.state == "trouble":
        advice = f"read what {name} said, run again, or exclude {name}"
        return unknown(f"{name} fell out of the sweep: {one.reason}", advice=advice, cause="sweep")
    return _measured(name, over_nvlink(one, gpus or ()))


def _measured(name: str, one: OverNvlink) -> Verdict:
    evidence: dict[str, Any] = {
        "nvlink_domain": one.domain,
        "nodes": one.nodes,
        "rail": one.rail,
        "partners": list(one.partners),
        "way": one.way,
        "size_bytes": one.at_bytes,
        "best_gbs": one.best_gbs,
        "peers_gbs": one.peers_gbs,
    }
    if one.why and one.proven:
        return fail(one.why, advice=one.advice, **evidence)
    if one.why:
        why = f"{one.why}; whether {name} is at fault is not known"
        return unknown(why, advice=one.advice, **evidence)
    reached = f"{gbs(one.best_gbs or 0.0)} at best at {size(one.at_bytes)}"
    where = f"on the slowest of its {one.rails} GPUs with {' and '.join(one.partners)}"
    return ok(f"{reached} {where}, over {one.way}; {one.nodes} nodes are in its domain", **evidence)


def test_fabric_nvlink_domain(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.name, node.over_nvlink, node.facts.gpus))
