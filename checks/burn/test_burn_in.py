"""Every device survives its burn-in, computes correctly, and keeps its speed."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from preflight.check import Check
from preflight.checks.burn.worst_unit import judge_units, table, unjudged
from preflight.core.text import count
from preflight.facts import Node
from preflight.facts.burn import Burn, Throttle
from preflight.verdict import Conclude, Outcome, Verdict, fail, not_run, ok, unknown, warn

_BEFORE = ("reach.answer", "host.driver_hung", "gpu.count")
_LOADED = ("burn.device",)
_LOADING = partial(Check, stage="local", tier="standard")
CHECKS = (
    _LOADING("burn.device", requires=_BEFORE, drains=True),
    _LOADING("burn.integrity", requires=_BEFORE, drains=True),
    _LOADING("burn.sustained", requires=_LOADED),
    _LOADING("burn.gemm", requires=_LOADED),
    _LOADING("burn.memory", requires=_LOADED),
    _LOADING("burn.launch", requires=_LOADED),
    _LOADING("burn.pcie", requires=_LOADED),
    _LOADING("burn.p2p", requires=_LOADED),
    _LOADING("burn.host", requires=_LOADED),
    _LOADING("burn.nic", requires=_LOADED),
)


XIDS = "look for Xids (dmesg) and D-state processes; reset or power-cycle {0}, then recheck"
VISIBLE = "look at CUDA_VISIBLE_DEVICES and at what the allocation grants, then run again"
LOAD = "look at what else runs on this node, then run again"


def judge_device(burn: Burn | None) -> Verdict:
    """Name the devices that failed, or say why the node has no results."""
    if burn is None:
        return not_run("no burn-in was measured")
    if burn.lost:
        return _lost_verdict(burn)
    if burn.state == "not_run":
        return not_run(burn.reason, stopped=burn.stopped)
    if burn.state != "measured":
        advice = burn.advice or "read the node's output, run again, or exclude this node"
        return unknown(burn.reason, advice=advice)
    if not burn.devices:
        return unknown("torch sees no device", advice=VISIBLE)
    return _passed_verdict(burn)


def _passed_verdict(burn: Burn) -> Verdict:
    if burn.unseen:
        of = burn.devices + burn.unseen
        summary = f"torch sees {burn.devices} of {of} GPUs, the others were not loaded"
        return warn(summary, advice=VISIBLE)
    word = "GPU" if burn.kind == "cuda" else "CPU slot"
    summary = f"{count(burn.devices, word)} came through {burn.seconds:.0f} s of burn-in"
    if burn.unplaced:
        summary += f"; of {burn.unplaced} the PCI address is unknown: clocks and NUMA not checked"
    return ok(summary)


def _lost_verdict(burn: Burn) -> Verdict:
    """Name the devices that failed; the checks that compare speeds go on with the others."""
    candidates = [flaw for flaw in burn.lost if not flaw.held] or burn.lost
    first = next((flaw for flaw in candidates if not flaw.starved), candidates[0])
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
    """Every device starts and survives its burn-in: a GPU that hangs takes the job with it."""
    conclude(judge_device(node.burn))


def judge_integrity(burn: Burn | None) -> Verdict:
    """A single wrong bit fails the node; without a proof of right bits it does not pass."""
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
        sentence = (
            f"{burn.proven} of {count(burn.devices, 'device')} proved that their bits are right"
        )
        return unknown(sentence, advice="run again, or with a longer --preflight-budget")
    if not burn.proven:
        return not_run("no device came through (burn.device)", blocked=True)
    return ok(
        f"{count(burn.proven, 'device')}: {burn.proofs} products and passes over memory, every bit "
        "right",
    )


def test_burn_integrity(node: Node, conclude: Conclude) -> None:
    """Every device computes and remembers right, to the bit: silent corruption ruins a model."""
    conclude(judge_integrity(node.burn))


def judge_speed(name: str, burn: Burn | None) -> Verdict:
    """Compare each unit with its peers, here and on other nodes."""
    return judge_units(burn, **table()["checks"][name])


def judge_sustained(burn: Burn | None) -> Verdict:
    """If NVML reported what held the clocks down, that is the reason to name."""
    verdict = judge_speed("sustained", burn)
    if burn is None or not burn.throttled or verdict.outcome is Outcome.NOT_RUN:
        return verdict
    return _throttle_verdict(burn.throttled)


def _throttle_verdict(throttles: tuple[Throttle, ...]) -> Verdict:
    worst = max(throttles, key=lambda throttle: throttle.looks / throttle.of)
    others = ", ".join(throttle.name for throttle in throttles if throttle is not worst)
    more = f"; {others} too" * (len(throttles) > 1)
    return fail(
        f"{worst.name}: {', '.join(worst.reasons)} held its clocks down in {worst.looks} of "
        f"{worst.of} looks under load ({worst.remark}), expected in none{more}",
        advice=table()["throttled"][worst.reasons[0]].format(worst.name),
        cause=worst.cause if len(throttles) == 1 else "",
        throttled=[f"{throttle.name}: {throttle.remark}" for throttle in throttles],
    )


def test_burn_sustained(node: Node, conclude: Conclude) -> None:
    """Every device holds its speed under a long load: heat and power brakes show only then."""
    conclude(judge_sustained(node.burn))


def test_burn_gemm(node: Node, conclude: Conclude) -> None:
    """Every device multiplies matrices as fast as its peers: the slow one of eight holds up all."""
    conclude(judge_speed("gemm", node.burn))


def test_burn_memory(node: Node, conclude: Conclude) -> None:
    """Every device's memory moves data as fast as its peers': a lost stack or a low clock shows."""
    conclude(judge_speed("memory", node.burn))


def test_burn_launch(node: Node, conclude: Conclude) -> None:
    """Every device starts its smallest kernel as soon as its peers: slow CPUs and drivers show."""
    conclude(judge_speed("launch", node.burn))


def test_burn_pcie(node: Node, conclude: Conclude) -> None:
    """Every GPU talks to the host as fast as its peers, from near and far NUMA sides."""
    conclude(judge_speed("pcie", node.burn))


def judge_p2p(burn: Burn | None) -> Verdict:
    """Compare each way between two GPUs; a GPU alone has none."""
    if burn is not None and (burn.state, burn.kind, burn.devices) == ("measured", "cuda", 1):
        return not_run("1 GPU here: no other to copy to")
    return judge_speed("p2p", burn)


def test_burn_p2p(node: Node, conclude: Conclude) -> None:
    """Every two GPUs of a node copy to each other as fast as pairs that are joined alike."""
    conclude(judge_p2p(node.burn))


def test_burn_host(node: Node, conclude: Conclude) -> None:
    """Each side of the host moves and computes as fast as its peers: DIMMs and governors show."""
    conclude(judge_speed("host", node.burn))


FAILED = "run ib_write_bw by hand on it, against 127.0.0.1; look at memlock and the port's state"


def judge_nic(burn: Burn | None) -> Verdict:
    """A NIC that cannot be measured is unknown; without perftest none is measured."""
    if burn is not None and burn.state == "measured":
        failed = [line.removeprefix("nic ") for line in burn.troubles if line.startswith("nic ")]
        if burn.nic_absent:
            return not_run(burn.nic_absent)
        verdict = judge_speed("nic", burn)
        if failed and verdict.outcome is not Outcome.FAIL:
            verdict = unknown(f"ib_write_bw failed on {'; '.join(failed)}", advice=FAILED)
        if burn.nics_no_time:
            return replace(verdict, sentence=verdict.sentence + _no_time(burn, len(failed)))
        return verdict
    return judge_speed("nic", burn)


def _no_time(burn: Burn, failed: int) -> str:
    without_time = burn.nics_no_time
    nics = len(without_time) + len(burn.of("nic_gbits")) + failed
    return f"; no time for {len(without_time)} of {nics} NICs: {', '.join(without_time)}"


def test_burn_nic(node: Node, conclude: Conclude) -> None:
    """Every RDMA NIC carries to itself what its peers do: its slot and its engine, without a cable."""  # noqa: E501  `preflight list-checks` prints it
    conclude(judge_nic(node.burn))
