"""Every GPU may draw the power it should: a lower limit makes it slow under load only."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Group, Node
from preflight.facts.gpu_heat import power_troubles
from preflight.facts.gpu_verdict import conclude_gpus, healths
from preflight.fleet.model import Promise
from preflight.verdict import Conclude, Verdict

CHECK = Check(
    "gpu.power",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung"),
)


def judge(promised: Promise, facts: Facts, group: Group) -> Verdict:
    """Compare the enforced limit with the promise, the group, the siblings, then the default."""
    return conclude_gpus(
        promised.gpus,
        facts,
        what="power limit",
        needs=("power_limit_w",),
        troubles=power_troubles(promised.power_limit_w, facts, group),
        fine=_fine(facts),
    )


def _fine(facts: Facts) -> str:
    limits = sorted({health.power_limit_w or 0.0 for _, health in healths(facts)})
    return f"power limit {' and '.join(f'{watts:.0f}' for watts in limits)} W"


def test_gpu_power(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.promised, node.facts, node.group))
