"""Every device comes through its burn-in, computes right, and holds its speed."""

from __future__ import annotations

from preflight.check import Check
from preflight.checks.burn.words import conclude as held
from preflight.checks.burn.words import unjudged
from preflight.facts import Node
from preflight.facts.burn import Burn, Throttle
from preflight.facts.words import count
from preflight.verdict import Conclude, Outcome, Verdict, fail, not_run, ok, unknown, warn

DEVICE = Check(
    "burn.device",
    stage="local",
    tier="standard",
    requires=("reach.answer", "host.driver_hung", "gpu.count"),
    disturbs=True,
    drains=True,
)

XIDS = "look for Xids (dmesg) and D-state processes; reset or power-cycle {0}, then recheck"
VISIBLE = "look at CUDA_VISIBLE_DEVICES and at what the allocation grants, then run again"
LOAD = "look at what else runs on this node, then run again"


def judge_device(burn: Burn | None) -> Verdict:
    """Name the devices that were lost, and why a node told nothing."""
    if burn is None:
        return not_run("no burn-in was measured")
    if burn.lost:
        return _lost(burn)
    if burn.state == "not_run":
        return not_run(burn.reason, stopped=burn.stopped)
    if burn.state != "measured":
        advice = burn.advice or "read what it said, run again, or exclude this node"
        return unknown(burn.reason, advice=advice)
    if not burn.devices:
        return unknown("torch sees no device", advice=VISIBLE)
    return _through(burn)


def _through(burn: Burn) -> Verdict:
    if burn.unseen:
        of = burn.devices + burn.unseen
        said = f"torch sees {burn.devices} of {of} GPUs, the others were not loaded"
        return warn(said, advice=VISIBLE)
    word = "GPU" if burn.kind == "cuda" else "CPU slot"
    said = f"{count(burn.devices, word)} came through {burn.seconds:.0f} s of burn-in"
    if burn.unplaced:
        said += f"; of {burn.unplaced} the PCI address is unknown: clocks and NUMA not checked"
    return ok(said)


def _lost(burn: Burn) -> Verdict:
    """One by one; the checks that hold speeds against peers go on with the others."""
    own = [flaw for flaw in burn.lost if not flaw.held] or burn.lost
    first = next((flaw for flaw in own if not flaw.starved), own[0])
    others = len({flaw.name for flaw in burn.lost} - {first.name})
    more = f" (and {others} more)" if others else ""
    sentence = f"{first.name} {first.what}{more}"
    flaws = [f"{flaw.name} {flaw.what}" for flaw in burn.lost]
    if first.held:
        return not_run(sentence, busy=True)
    if first.starved:
        return warn(sentence, advice=LOAD, lost=flaws)
    advice = XIDS.format(first.name)
    return fail(sentence, advice=advice, cause=first.cause, blocks=False, lost=flaws)


def test_burn_device(node: Node, conclude: Conclude) -> None:
    """Every device comes up, and comes through its burn-in: a GPU that hangs takes the job with it."""  # noqa: E501  `preflight checks` prints it
    conclude(judge_device(node.burn))


INTEGRITY = Check(
    "burn.integrity",
    stage="local",
    tier="standard",
    requires=("reach.answer", "host.driver_hung", "gpu.count"),
    disturbs=True,
    drains=True,
)


def judge_integrity(burn: Burn | None) -> Verdict:
    """A single wrong bit condemns, whatever else is known; no proof is no pass."""
    if burn is not None and burn.wrong:
        first = burn.wrong[0]
        names = dict.fromkeys(flaw.name for flaw in burn.wrong)
        more = f"; also {', '.join([*names][1:5])}" if len(names) > 1 else ""
        return fail(
            f"{first.name}: {first.what}{more}",
            advice=f"take {first.name} out of service now and run dcgmi diag -r 3 on it",
            cause=f"wrong bits of {first.name}",
            flaws=[f"{flaw.name}: {flaw.what}" for flaw in burn.wrong],
        )
    nothing = unjudged(burn, "proof of integrity")
    if burn is None or (nothing is not None and not burn.stopped):
        return nothing or not_run("no proof of integrity was measured")
    lost = len({flaw.cause for flaw in burn.lost if flaw.cause})
    if burn.proven + lost < burn.devices or not burn.devices:
        if nothing is not None:
            return nothing
        said = f"{burn.proven} of {count(burn.devices, 'device')} proved that their bits are right"
        return unknown(said, advice="run again, or with a longer --preflight-budget")
    if not burn.proven:
        return not_run("no device came through (burn.device)", blocked=True)
    return ok(
        f"{count(burn.proven, 'device')}: {burn.proofs} products and passes over memory, every bit "
        "right",
    )


def test_burn_integrity(node: Node, conclude: Conclude) -> None:
    """Every device computes and remembers right, to the bit: silent corruption ruins a model."""
    conclude(judge_integrity(node.burn))


SUSTAINED = Check(
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


def judge_sustained(burn: Burn | None) -> Verdict:
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
    """Every device holds its speed under a long load: heat and power brakes show only then."""
    conclude(judge_sustained(node.burn))


CHECKS = (DEVICE, INTEGRITY, SUSTAINED)
