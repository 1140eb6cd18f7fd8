"""NVLinks that are up run at full speed and without errors; links down are gpu.topology's."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Group, Node
from preflight.facts.gpu_verdict import conclude_gpus
from preflight.facts.gpu_ways import nvlink_troubles
from preflight.facts.nvlink_counts import undated
from preflight.verdict import Conclude, Outcome, Verdict, not_run, unknown

CHECK = Check(
    "gpu.nvlink",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung"),
    drains=True,
)


def judge(promised: int | None, facts: Facts, group: Group) -> Verdict:
    """Tell slow links, links that retrain, and links that send again too often."""
    verdict = conclude_gpus(
        promised,
        facts,
        what="NVLink counters",
        needs=("link_errors",),
        troubles=nvlink_troubles(facts, group),
        fine="every NVLink that is up runs at full speed, without recoveries",
    )
    if verdict.outcome is not Outcome.OK:
        return verdict
    if old := undated(facts):
        more = f" (and {len(old) - 1} more)" if len(old) > 1 else ""
        return unknown(
            f"{old[0]}{more}: a total, and nothing says since when",
            advice="take a second reading after a known time, or ask the live node",
            totals=list(old),
        )
    if _none_up(facts):
        return not_run("no NVLink is up: gpu.topology tells whether one should be")
    return verdict


def _none_up(facts: Facts) -> bool:
    links = [link for gpu in facts.gpus or () for link in gpu.links or ()]
    told = [link for gpu in facts.gpus or () if gpu.health for link in gpu.health.link_errors or ()]
    return not told and not any(link.up for link in links)


def test_gpu_nvlink(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.promised.gpus, node.facts, node.group))
