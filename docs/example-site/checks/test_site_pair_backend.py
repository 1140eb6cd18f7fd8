"""Every pair of nodes talks over the backend that this site's jobs use."""

from __future__ import annotations

from preflight.check import Check
from preflight.fabric.pair_summary import Pair
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown

CHECK = Check("site.pair_backend", stage="fabric", requires=("reach.answer",))

WANTED = "gloo"
"""For this example, which needs no GPU; a site with GPUs writes nccl."""


def judge(pair: Pair) -> Verdict:
    """Compare the backend that the sweep spoke with the one that jobs will speak."""
    if pair.state == "not_run" and not pair.trouble:
        return not_run(pair.error or "not measured", stopped=pair.waited)
    if pair.state != "measured":
        return unknown(pair.error or pair.state, advice="run fabric.allreduce on this pair")
    if pair.backend != WANTED:
        return fail(
            f"{pair.a} and {pair.b} speak {pair.backend}, {WANTED} wanted",
            advice="look at what torch was built with in the job's Python of both",
        )
    return ok(f"speaks {pair.backend}")


def test_site_pair_backend(preflight_pair: Pair, conclude: Conclude) -> None:
    """Joins a pair and the judgement."""
    conclude(judge(preflight_pair))
