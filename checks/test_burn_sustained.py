"""Every device holds its speed under a long load: heat and power brakes show only then."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Node
from preflight.facts.burn import Burn, Throttle
from preflight.facts.burn_words import conclude as held
from preflight.verdict import Conclude, Outcome, Verdict, fail

CHECK = Check(
    "burn.sustained",
    stage="local",
    tier="standard",
    requires=("burn.device",),
    disturbs=True,
)

SLOW = "look at heat, power limit and clocks of {0} under load (nvidia-smi -q -d PERFORMANCE)"
COOL = {
    "hw_thermal": "look at fans, air flow or coolant of {0}, and at its neighbours' heat",
    "sw_thermal": "look at fans, air flow or coolant of {0}, and at its neighbours' heat",
    "hw_power_brake": "look at the node's power supplies and their cables; {0} is told to brake",
    "hw_slowdown": "look at heat and power supply of {0} (nvidia-smi -q -d PERFORMANCE)",
}


def judge(burn: Burn | None) -> Verdict:
    """What held the clocks down is the better reason, where NVML told it."""
    verdict = held(burn, ("sustained_tflops",), what="sustained GEMM", advice=SLOW)
    if burn is None or not burn.throttled or verdict.outcome is Outcome.NOT_RUN:
        return verdict
    return _throttled(burn.throttled)


def _throttled(found: tuple[Throttle, ...]) -> Verdict:
    worst = max(found, key=lambda one: one.looks / one.of)
    more = f"; {', '.join(one.name for one in found if one is not worst)} too" * (len(found) > 1)
    return fail(
        f"{worst.name}: {', '.join(worst.reasons)} held its clocks down in {worst.looks} of "
        f"{worst.of} looks under load ({worst.remark}), expected in none{more}",
        advice=COOL[worst.reasons[0]].format(worst.name),
        cause=worst.cause if len(found) == 1 else "",
        throttled=[f"{one.name}: {one.remark}" for one in found],
    )


def test_burn_sustained(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.burn))
