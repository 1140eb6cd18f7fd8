"""Every pair of nodes all-reduces as fast as its peers, with the right sums."""

from __future__ import annotations

from typing import Any

from preflight.check import Check
from preflight.fabric.pair import Pair
from preflight.fabric.unsettled import MORE_TIME
from preflight.fabric.words import gbs, size, time_us
from preflight.verdict import Conclude, Verdict, fail, flaky, not_run, ok, unknown

CHECK = Check(
    "fabric.allreduce",
    stage="fabric",
    tier="quick",
    requires=("reach.answer", "host.driver_hung", "net.ports"),
    disturbs=True,
)

_EVIDENCE = (
    *("state", "error", "backend", "rail", "busbw_gbs", "peers_gbs", "limit_gbs", "limit_origin"),
    *("decided_by", "latency_us", "latency_limit_us"),
)


def judge(pair: Pair) -> Verdict:
    """Condemn whoever the whole sweep blames for this pair, not simply its two ends."""
    if pair.trouble:
        # No other check has seen it, and a missing measurement is not a pass.
        return unknown(
            pair.error,
            advice=pair.advice
            or f"read what {pair.blamed} said, run again, or exclude {pair.blamed}",
            blame=pair.blamed,
            cause=f"ports of {pair.blamed}" if pair.blamed.startswith("pair ") else "sweep",
        )
    if pair.state == "not_run" or pair.lost:
        return not_run(
            pair.error or "not measured", stopped=pair.waited or pair.lost, busy=pair.busy
        )
    evidence: dict[str, Any] = {name: getattr(pair, name) for name in _EVIDENCE}
    evidence["size_bytes"] = pair.at_bytes
    if pair.events:
        return flaky(pair.events, pair.operations, pair.why, **_blame(pair), **evidence)
    if pair.bad or pair.doubt:
        return _slow_or_broken(pair, evidence)
    if pair.busbw_gbs is None or pair.latency_us is None or pair.limit_gbs is None or pair.unheld:
        return unknown(
            pair.short or pair.unheld,
            advice=f"look for loss and errors on the links of {pair.a} and {pair.b} (ip -s link)"
            if pair.short
            else "promise nic_gbits (400, ...) or allreduce_min_gbs in the inventory",
            **evidence,
        )
    return ok(
        f"{gbs(pair.busbw_gbs)} at {size(pair.at_bytes)} "
        f"(limit {gbs(pair.limit_gbs)}, {pair.limit_origin}), {time_us(pair.latency_us)}"
        + pair.remarks,
        **evidence,
    )


def _slow_or_broken(pair: Pair, evidence: dict[str, Any]) -> Verdict:
    if pair.doubt:
        return unknown(pair.doubt, advice=MORE_TIME, blame=f"pair {pair.a}-{pair.b}", **evidence)
    # The port stage saw the same way shut: one cause, one finding.
    cause = f"ports of {pair.blamed}" if pair.state == "no_connect" else ""
    return fail(pair.why, cause=cause, **_blame(pair), **evidence)


def _blame(pair: Pair) -> dict[str, Any]:
    nodes = {"culprits": pair.culprits, "suspects": pair.suspects}
    return {"advice": pair.advice, "blame": pair.blamed, **nodes}


def test_fabric_allreduce(pair: Pair, conclude: Conclude) -> None:
    """Joins a pair and the judgement; the frame does the rest."""
    conclude(judge(pair))
