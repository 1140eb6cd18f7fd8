"""Every device survives its burn-in, computes correctly, and keeps its speed.

The results of many devices are one verdict, which names the worst and its limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from msgspec.structs import replace

from preflight.check import Check
from preflight.core.files import shipped_table
from preflight.core.text import count, first_few, natural, percent
from preflight.facts import Node
from preflight.facts.burn import Burn, Measure, Throttle, Unit
from preflight.verdict import Conclude, Outcome, Verdict, fail, flaky, not_run, ok, unknown, warn

_BEFORE_LOAD = ("reach.answer", "host.driver_hung", "gpu.count")
_AFTER_DEVICE = ("burn.device",)
_LOAD_CHECK = partial(Check, stage="local", tier="standard")
CHECKS = (
    _LOAD_CHECK("burn.device", requires=_BEFORE_LOAD, drains=True),
    _LOAD_CHECK("burn.integrity", requires=_BEFORE_LOAD, drains=True),
    _LOAD_CHECK("burn.sustained", requires=_AFTER_DEVICE),
    _LOAD_CHECK("burn.gemm", requires=_AFTER_DEVICE),
    _LOAD_CHECK("burn.memory", requires=_AFTER_DEVICE),
    _LOAD_CHECK("burn.launch", requires=_AFTER_DEVICE),
    _LOAD_CHECK("burn.pcie", requires=_AFTER_DEVICE),
    _LOAD_CHECK("burn.p2p", requires=_AFTER_DEVICE),
    _LOAD_CHECK("burn.host", requires=_AFTER_DEVICE),
    _LOAD_CHECK("burn.nic", requires=_AFTER_DEVICE),
)


RESET_ADVICE = "look for Xids (dmesg) and D-state processes; reset or power-cycle {0}, then recheck"
VISIBLE_ADVICE = "look at CUDA_VISIBLE_DEVICES and at what the allocation grants, then run again"
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
        return unknown("torch sees no device", advice=VISIBLE_ADVICE)
    return _passed_verdict(burn)


def _passed_verdict(burn: Burn) -> Verdict:
    if burn.unseen:
        total = burn.devices + burn.unseen
        summary = f"torch sees {burn.devices} of {total} GPUs, the others were not loaded"
        return warn(summary, advice=VISIBLE_ADVICE)
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
    advice = RESET_ADVICE.format(first.name)
    return fail(sentence, advice=advice, cause=first.cause, blocks=False, lost=flaws)


def test_burn_device(node: Node, conclude: Conclude) -> None:
    """Every device starts and survives its burn-in: a GPU that hangs takes the job with it."""
    conclude(judge_device(node.burn))


def judge_integrity(burn: Burn | None) -> Verdict:
    """A single wrong bit fails the node; without a proof of right bits it does not pass."""
    if burn is None:
        return not_run("no proof of integrity was measured")
    if burn.wrong:
        first = burn.wrong[0]
        names = dict.fromkeys(flaw.name for flaw in burn.wrong)
        more = f"; also {', '.join([*names][1:5])}" if len(names) > 1 else ""
        return fail(
            f"{first.name}: {first.what}{more}",
            advice=f"take {first.name} out of service now and run dcgmi diag -r 3 on it",
            cause=f"wrong bits of {first.name}",
            flaws=[f"{flaw.name}: {flaw.what}" for flaw in burn.wrong],
        )
    reason = no_results(burn)
    lost = len({flaw.cause for flaw in burn.lost if flaw.cause})
    incomplete = burn.proven + lost < burn.devices or not burn.devices
    if reason is not None and (incomplete or not burn.stopped):
        return reason
    if incomplete:
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
    if burn is None or burn.state != "measured":
        return judge_speed("nic", burn)
    if burn.nic_absent:
        return not_run(burn.nic_absent)
    failed = [line.removeprefix("nic ") for line in burn.troubles if line.startswith("nic ")]
    verdict = judge_speed("nic", burn)
    if failed and verdict.outcome is not Outcome.FAIL:
        verdict = unknown(f"ib_write_bw failed on {'; '.join(failed)}", advice=FAILED)
    without_time = burn.nics_no_time
    if not without_time:
        return verdict
    nics = len(without_time) + len(burn.of("nic_gbits")) + len(failed)
    no_time = f"; no time for {len(without_time)} of {nics} NICs: {', '.join(without_time)}"
    return replace(verdict, sentence=verdict.sentence + no_time)


def test_burn_nic(node: Node, conclude: Conclude) -> None:
    """Every RDMA NIC carries to itself what its peers do: its slot and its engine, without a cable."""  # noqa: E501  `preflight list-checks` prints it
    conclude(judge_nic(node.burn))


_LESS_IS_BETTER = ("launch_us",)
_BASELINE = "set or learn a baseline (preflight learn), or judge more nodes at once"
_SET_MODEL = f"set gpu_model in the inventory, or {_BASELINE}"
_HOST_MEASURES = frozenset({"host_copy_gbs", "host_gflops"})
_HUNDRED, _MOST_NAMED = 100, 4
_FIELDS = ("name", "measure", "best", "typical", "samples", "peers", "limit", "limit_origin",
         "waited")  # fmt: skip


@cache
def table() -> dict[str, Any]:
    """The checks' measures, words and advice, from speeds.toml."""
    return shipped_table(__file__, "speeds.toml")


def amount(value: float, measure: Measure) -> str:
    """Say "742 TFLOPS": three digits, more where there are more before the point."""
    number = f"{value:,.0f}" if value >= _HUNDRED else f"{value:.3g}"
    return f"{number} {table()['units'][measure]}"


def judge_units(
    burn: Burn | None, measures: Sequence[Measure], *, what: str, advice: str
) -> Verdict:
    """Judge all units of these measures; `what` was measured, in words: "bf16 GEMM".

    `advice` is about a slow one, with "{0}" for its name.
    """
    if burn is None:
        return not_run(f"no {what} was measured")
    units = burn.of(*measures)
    fault = _slow(units, what, advice) or _flaky(units, what, advice)
    if burn.stopped and units:
        return fault or _interrupted(burn, units, what)
    if reason := no_results(burn):
        return reason
    if not units:
        return _unmeasured(burn, what)
    return fault or _missing(burn, units, what) or _starved(units, what) or _fine(units, what)


def _fine(units: Sequence[Unit], what: str) -> Verdict:
    """Nothing is slow; but without peers or a limit to compare with, that proves nothing.

    The inventory gives no speed for a host's memory and CPUs: alone they count against no node.
    """
    unheld = {unit.measure for unit in units if unit.held == "unheld"}
    if unheld:
        sentence = f"no peers: {_range(units, what)}, and no floor known"
        advice, give = (_BASELINE, _BASELINE) if unheld <= _HOST_MEASURES else (_SET_MODEL, "")
        return unknown(sentence, advice=advice, grant=give, **_evidence(units))
    return ok(_range(units, what) + _nearest_limit(units), **_evidence(units))


def _interrupted(burn: Burn, units: Sequence[Unit], what: str) -> Verdict:
    """The time was up: what every device had measured by then counts, the rest is not run.

    How many ways, NUMA nodes and NICs were still to be measured is not known.
    """
    if all(unit.cause for unit in units) and _missing(burn, units, what) is None:
        return _starved(units, what) or _fine(units, what)
    sentence = f"{burn.reason}; measured until then, nothing slow: {_range(units, what)}"
    return not_run(sentence, stopped=True, **_evidence(units))


def no_results(burn: Burn) -> Verdict | None:
    """The reason why there is nothing to judge, if there is nothing."""
    if burn.state == "not_run":
        return not_run(burn.reason, stopped=burn.stopped)
    if burn.state != "measured":
        return not_run(burn.reason, blocked=True)
    return None


def _unmeasured(burn: Burn, what: str) -> Verdict:
    if burn.devices and len({flaw.cause for flaw in burn.lost}) >= burn.devices:
        return not_run("no device came through (burn.device)", blocked=True)
    if burn.kind == "cpu" and not burn.troubles:
        return not_run("no GPUs here")
    why = f": {'; '.join(burn.troubles)}" if burn.troubles else ""
    return unknown(f"{what} was not measured{why}", advice="run again")


def _missing(burn: Burn, units: Sequence[Unit], what: str) -> Verdict | None:
    """For a measure of single devices: those that were neither measured nor lost."""
    causes = {unit.cause for unit in units if unit.cause}
    lost = {flaw.cause for flaw in burn.lost if flaw.cause}
    short = burn.devices - len(causes | lost)
    if not causes or short <= 0:
        return None
    sentence = f"{what}: {count(short, 'device')} of {burn.devices} returned no result"
    return unknown(sentence, advice="run again", **_evidence(units))


def _slow(units: Sequence[Unit], what: str, advice: str) -> Verdict | None:
    slow = sorted((unit for unit in units if unit.held == "slow"), key=_ratio)
    if not slow:
        return None
    worst = slow[0]
    causes = {unit.cause for unit in slow}
    others = [unit.name for unit in slow[1:]]
    names = worst.name
    if all(causes):
        names = first_few(sorted(causes, key=natural), _MOST_NAMED)
    more = f"; slow as well: {first_few(others, _MOST_NAMED)}" if others else ""
    return fail(
        f"{worst.name}: {_comparison(worst, what)}{more}",
        advice=advice.format(names),
        cause=causes.pop() if len(causes) == 1 else "",
        **_evidence(units),
    )


def _flaky(units: Sequence[Unit], what: str, advice: str) -> Verdict | None:
    flaky_units = [unit for unit in units if unit.held == "flaky"]
    if not flaky_units:
        return None
    worst = max(flaky_units, key=lambda unit: unit.bad / unit.samples)
    sentence = f"samples of {worst.name} were slow: {_comparison(worst, what)}"
    return flaky(
        worst.bad, worst.samples, sentence, advice=advice.format(worst.name), **_evidence(units)
    )


def _starved(units: Sequence[Unit], what: str) -> Verdict | None:
    starved = [unit for unit in units if unit.held == "starved"]
    if not starved:
        return None
    worst = min(starved, key=_ratio)
    wait = f"; it waited for a CPU for {percent(worst.waited)} of the time"
    return warn(f"{worst.name}: {_comparison(worst, what)}{wait}", advice=LOAD, **_evidence(units))


def _comparison(unit: Unit, what: str) -> str:
    """The unit's number, its peers' number and the limit, and which of them decided."""
    peers = f"peers' median {amount(unit.peers, unit.measure)}, " if unit.peers else ""
    limit = amount(unit.limit, unit.measure) if unit.limit is not None else "none"
    remark = f" at {unit.remark}" if unit.remark else ""
    return (
        f"{what} {amount(unit.best, unit.measure)}{remark}; {peers}limit {limit} "
        f"({unit.limit_origin})"
    )


def _range(units: Sequence[Unit], what: str) -> str:
    """Say "bf16 GEMM 731 to 745 TFLOPS (8 GPUs)", a clause per measure."""
    clauses = []
    for measure in dict.fromkeys(unit.measure for unit in units):
        values = sorted(unit.best for unit in units if unit.measure == measure)
        low, high = (amount(value, measure) for value in (values[0], values[-1]))
        symbol = table()["units"][measure]
        clauses.append(high if low == high else f"{low.removesuffix(' ' + symbol)} to {high}")
    return f"{what} {', '.join(clauses)} ({_unit_count(units)})"


def _unit_count(units: Sequence[Unit]) -> str:
    """How many of what was measured: "8 GPUs", "56 ways", "1 NUMA node"."""
    first = units[0]
    word = table()["parts"].get(first.measure) or first.cause.partition(" ")[0] or "part"
    number = len({unit.cause or unit.name for unit in units})
    return count(number, word)


def _nearest_limit(units: Sequence[Unit]) -> str:
    """The limit that came nearest to deciding."""
    with_limit = [unit for unit in units if unit.limit is not None]
    nearest = min(with_limit, key=_ratio)
    return f"; limit {amount(nearest.limit or 0, nearest.measure)} ({nearest.limit_origin})"


def _ratio(unit: Unit) -> float:
    """How much of its limit it reached; less is worse."""
    if unit.limit is None:
        return float("inf")
    less_is_better = unit.measure in _LESS_IS_BETTER
    return unit.limit / unit.best if less_is_better else unit.best / unit.limit


def _evidence(units: Sequence[Unit]) -> dict[str, Any]:
    parts = [
        {**{name: getattr(unit, name) for name in _FIELDS}, "clocks": unit.remark} for unit in units
    ]
    return {"parts": parts}
