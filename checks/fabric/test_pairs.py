"""All-reduces between nodes, inside a node, and over NVLink between nodes."""

from __future__ import annotations

from collections.abc import Sequence

# A hook loads every check: what judges a sweep is imported where one is judged.
from typing import Any

from preflight.check import Check
from preflight.core.text import gbs, size, time_us
from preflight.core.thresholds import Thresholds
from preflight.fabric.pair_summary import Pair
from preflight.facts import Gpu, Node
from preflight.facts.burn import Inside, OverNvlink
from preflight.verdict import Conclude, Verdict, fail, flaky, not_run, ok, unknown

_REQUIRES = ("reach.answer", "host.driver_hung", "net.ports")
CHECKS = (
    Check("fabric.allreduce", stage="fabric", tier="quick", requires=_REQUIRES),
    Check("fabric.intra_node", stage="fabric", tier="quick", requires=_REQUIRES),
    Check("fabric.nvlink_domain", stage="fabric", tier="quick", requires=_REQUIRES),
)


_PAIR_KEYS = (
    "state", "error", "backend", "rail", "busbw_gbs", "peers_gbs", "limit_gbs", "limit_origin",
    "decided_by", "latency_us", "latency_limit_us", "size_bytes",
)  # fmt: skip
_NODE_KEYS = (
    "state", "backend", "rails", "size_bytes", "busbw_gbs", "best_gbs", "peers_gbs", "peers",
    "limit_gbs", "limit_origin", "latency_us", "error",
)  # fmt: skip
_DOMAIN_KEYS = (
    "nvlink_domain", "nodes", "rail", "partners", "way", "size_bytes", "best_gbs", "peers_gbs",
)  # fmt: skip


def _evidence(
    result: Pair | Inside | OverNvlink, keys: Sequence[str], **names: str
) -> dict[str, Any]:
    """What was measured, under the keys of the report; `names`: the field where it differs."""
    return {key: getattr(result, names.get(key, key)) for key in keys}


def judge_allreduce(pair: Pair) -> Verdict:
    """Blame the node that the whole sweep blames for this pair, not simply its two ends."""
    if pair.trouble:
        # No other check has seen it, and a missing measurement is not a pass.
        return unknown(
            pair.error,
            advice=pair.advice
            or f"read the output of {pair.blamed}, run again, or exclude {pair.blamed}",
            blame=pair.blamed,
            cause=f"ports of {pair.blamed}" if pair.shut else "sweep",
        )
    if pair.state == "not_run" or pair.lost:
        return not_run(
            pair.error or "not measured", stopped=pair.waited or pair.lost, busy=pair.busy
        )
    evidence = _evidence(pair, _PAIR_KEYS, size_bytes="at_bytes")
    if pair.events:
        return flaky(pair.events, pair.operations, pair.why, **_blame(pair), **evidence)
    if pair.bad or pair.doubt:
        return _slow_or_broken(pair, evidence)
    if pair.busbw_gbs is None or pair.latency_us is None or pair.limit_gbs is None or pair.no_limit:
        return unknown(
            pair.short or pair.no_limit,
            advice=f"look for loss and errors on the links of {pair.a} and {pair.b} (ip -s link)"
            if pair.short
            else "set nic_gbits (400, ...) or allreduce_min_gbs in the inventory",
            **evidence,
        )
    return ok(
        f"median {gbs(pair.busbw_gbs)} at {size(pair.at_bytes)} "
        f"(limit {gbs(pair.limit_gbs)}, {pair.limit_origin}), {time_us(pair.latency_us)}"
        + pair.remarks,
        **evidence,
    )


def _slow_or_broken(pair: Pair, evidence: dict[str, Any]) -> Verdict:
    if pair.doubt:
        from preflight.fabric.phrases import ADVICE

        advice, blame = ADVICE["pair"]["doubted"], f"pair {pair.a}-{pair.b}"
        return unknown(pair.doubt, advice=advice, blame=blame, **evidence)
    # The port stage found the same path closed: one cause, one finding.
    cause = f"ports of {pair.blamed}" if pair.state == "no_connect" else ""
    return fail(pair.why, cause=cause, **_blame(pair), **evidence)


def _blame(pair: Pair) -> dict[str, Any]:
    nodes = {"culprits": pair.culprits, "suspects": pair.suspects}
    return {"advice": pair.advice, "blame": pair.blamed, **nodes}


def test_fabric_allreduce(pair: Pair, conclude: Conclude) -> None:
    """Every pair of nodes all-reduces as fast as its peers, with the right sums."""
    conclude(judge_allreduce(pair))


def judge_intra_node(
    name: str, inside: Inside | None, gpus: tuple[Gpu, ...] | None = None, *, limit: Thresholds
) -> Verdict:
    """Fail a node whose GPUs are slow, late or wrong among themselves, whatever the network."""
    if inside is None or (inside.state == "one_rail" and not inside.lacks):
        return not_run("it has one rail, nothing to all-reduce inside it")
    if inside.state == "not_run":
        return not_run(inside.reason, stopped=inside.stopped)
    if inside.state == "trouble":
        advice = inside.advice or f"read the output of {name}, run again, or exclude {name}"
        return unknown(inside.reason, advice=advice, cause="sweep")
    from preflight.fabric.node_allreduce import judge_by_nvlink

    return _intra_node_verdict(judge_by_nvlink(inside, gpus or (), limit("nvlink.inside_share")))


def _intra_node_verdict(inside: Inside) -> Verdict:
    evidence = _evidence(inside, _NODE_KEYS, size_bytes="at_bytes", error="reason")
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
            f"no peers: {inside.peers} other nodes like it, and no expected bandwidth",
            advice="set intra_node_min_gbs in the inventory",
            **evidence,
        )
    return ok(
        f"{gbs(inside.best_gbs)} at best at {size(inside.at_bytes)} among {inside.rails} rails "
        f"(limit {gbs(inside.limit_gbs)}, {inside.limit_origin}), {time_us(inside.latency_us)}",
        **evidence,
    )


def test_fabric_intra_node(node: Node, conclude: Conclude) -> None:
    """All GPUs of a node all-reduce among themselves as fast as its peers', with the right sums."""
    conclude(judge_intra_node(node.name, node.inside, node.facts.gpus, limit=node.limit))


def judge_nvlink_domain(
    name: str, domain: OverNvlink | None, gpus: tuple[Gpu, ...] | None = None, *, limit: Thresholds
) -> Verdict:
    """Fail a node whose NVLink to its neighbours is slow or unused, if that is its own fault."""
    if domain is None:
        return not_run("NVML reports no NVLink domain that reaches beyond this node")
    if domain.state == "alone":
        return not_run("no other node of its NVLink domain takes part with NCCL")
    if domain.state == "not_run":
        return not_run(domain.reason, stopped=domain.stopped)
    if domain.state == "trouble":
        advice = f"read the output of {name}, run again, or exclude {name}"
        return unknown(
            f"{name} fell out of the sweep: {domain.reason}", advice=advice, cause="sweep"
        )
    from preflight.fabric.nvlink_domain import judge_domain_by_nvlink

    return _nvlink_domain_verdict(
        name, judge_domain_by_nvlink(domain, gpus or (), limit("nvlink.inside_share"))
    )


def _nvlink_domain_verdict(name: str, domain: OverNvlink) -> Verdict:
    evidence = _evidence(domain, _DOMAIN_KEYS, nvlink_domain="domain", size_bytes="at_bytes")
    evidence["partners"] = list(domain.partners)
    if domain.why and domain.proven:
        return fail(domain.why, advice=domain.advice, **evidence)
    if domain.why:
        why = f"{domain.why}; whether {name} is at fault is not known"
        return unknown(why, advice=domain.advice, **evidence)
    speed = f"{gbs(domain.best_gbs or 0.0)} at best at {size(domain.at_bytes)}"
    where = f"on the slowest of its {domain.rails} GPUs with {' and '.join(domain.partners)}"
    return ok(
        f"{speed} {where}, over {domain.way}; {domain.nodes} nodes are in its domain", **evidence
    )


def test_fabric_nvlink_domain(node: Node, conclude: Conclude) -> None:
    """Every GPU of a node reaches the nodes of its NVLink domain over NVLink, as fast as its peers."""  # noqa: E501  `preflight list-checks` prints it
    conclude(judge_nvlink_domain(node.name, node.over_nvlink, node.facts.gpus, limit=node.limit))
