"""Every device comes up, and comes through its burn-in: a GPU that hangs takes the job with it."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Node
from preflight.facts.burn import Burn
from preflight.facts.words import count
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn

CHECK = Check(
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


def judge(burn: Burn | None) -> Verdict:
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
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.burn))
