"""Every GPU is well below the temperature at which the hardware halves its clocks."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.gpu_heat import margin, temperature_troubles
from preflight.facts.gpu_verdict import conclude_gpus, healths
from preflight.verdict import Conclude, Verdict

CHECK = Check(
    "gpu.temperature",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung"),
    drains=True,
    heals=True,
)


def judge(promised: int | None, facts: Facts) -> Verdict:
    """Tell GPUs that are within a few degrees of their slowdown."""
    return conclude_gpus(
        promised,
        facts,
        what="temperature and slowdown threshold",
        needs=("margin_c", "slowdown_c"),
        troubles=temperature_troubles(facts),
        fine=_fine(facts),
        cause="heat",
    )


def _fine(facts: Facts) -> str:
    known = [left for _, health in healths(facts) if (left := margin(health)) is not None]
    return f"at least {min(known)} C below slowdown" if known else "no GPU is hot"


def test_gpu_temperature(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.promised.gpus, node.facts))
