"""Neither hardware nor heat holds the clocks of a GPU down: one slow GPU slows the whole job."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.gpu_heat import throttle_troubles
from preflight.facts.gpu_verdict import conclude_gpus
from preflight.verdict import Conclude, Verdict

CHECK = Check(
    "gpu.throttle",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung"),
    drains=True,
    heals=True,
)


def judge(promised: int | None, facts: Facts) -> Verdict:
    """Tell slowdowns by hardware or heat; being idle, a power cap and set clocks are no fault."""
    return conclude_gpus(
        promised,
        facts,
        what="reasons for its clocks",
        needs=("clock_reasons",),
        troubles=throttle_troubles(facts),
        fine="neither hardware nor heat holds clocks down",
        cause="heat",
    )


def test_gpu_throttle(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.promised.gpus, node.facts))
