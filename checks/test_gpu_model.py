"""Every GPU is of the model that was promised, or that the group has."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Group, Node
from preflight.facts.gpu_settings import model_troubles
from preflight.facts.gpu_verdict import conclude_gpus
from preflight.fleet.model import Promise
from preflight.verdict import Conclude, Verdict

CHECK = Check(
    "gpu.model",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung"),
)


def judge(promised: Promise, facts: Facts, group: Group) -> Verdict:
    """Compare the names that NVML tells with the promise, the group, then the siblings."""
    return conclude_gpus(
        promised.gpus,
        facts,
        what="model",
        needs=("name",),
        troubles=model_troubles(promised.gpu_model, facts, group),
        fine=_fine(facts),
    )


def _fine(facts: Facts) -> str:
    return " and ".join(sorted({gpu.name for gpu in facts.gpus or ()}))


def test_gpu_model(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.promised, node.facts, node.group))
