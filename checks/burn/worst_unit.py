"""Turns the results of many devices into one verdict, which names the worst and its limit."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from preflight.core.files import shipped_table
from preflight.core.text import count, first_few, percent
from preflight.verdict import Verdict, fail, flaky, not_run, ok, unknown, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.facts.burn import Burn, Measure, Unit

_LESS_IS_BETTER = ("launch_us",)
_BASELINE = "set or learn a baseline (preflight learn), or judge more nodes at once"
_SET_MODEL = f"set gpu_model in the inventory, or {_BASELINE}"
_OF_HOSTS = frozenset({"host_copy_gbs", "host_gflops"})
_BUSY = "look at what else runs on this node, then run again"
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
    units = burn.of(*measures) if burn is not None else ()
    if burn is not None and burn.stopped and units:
        odd = _slow(units, what, advice) or _flaky(units, what, advice)
        return odd or _interrupted(burn, units, what)
    nothing = unjudged(burn, what)
    if nothing is not None or burn is None:
        return nothing or not_run(f"no {what} was measured")
    if not units:
        return _unmeasured(burn, what)
    odd = _slow(units, what, advice) or _flaky(units, what, advice) or _missing(burn, units, what)
    return odd or _starved(units, what) or _fine(units, what)


def _fine(units: Sequence[Unit], what: str) -> Verdict:
    """Nothing is slow; but without peers or a limit to compare with, that proves nothing.

    The inventory gives no speed for a host's memory and CPUs: alone they count against no node.
    """
    unheld = {unit.measure for unit in units if unit.held == "unheld"}
    if unheld:
        sentence = f"no peers: {_range(units, what)}, and no floor known"
        advice, give = (_BASELINE, _BASELINE) if unheld <= _OF_HOSTS else (_SET_MODEL, "")
        return unknown(sentence, advice=advice, grant=give, **_evidence(units))
    return ok(_range(units, what) + _limits(units), **_evidence(units))


def _interrupted(burn: Burn, units: Sequence[Unit], what: str) -> Verdict:
    """The time was up: what every device had measured by then counts, the rest is not run.

    How many ways, NUMA nodes and NICs were still to be measured is not known.
    """
    if all(unit.cause for unit in units) and _missing(burn, units, what) is None:
        return _starved(units, what) or _fine(units, what)
    sentence = f"{burn.reason}; measured until then, nothing slow: {_range(units, what)}"
    return not_run(sentence, stopped=True, **_evidence(units))


def unjudged(burn: Burn | None, what: str) -> Verdict | None:
    """The reason why there is nothing to judge, if there is nothing."""
    if burn is None:
        return not_run(f"no {what} was measured")
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
        names = first_few(sorted(causes, key=_natural), _MOST_NAMED)
    more = f"; slow as well: {first_few(others, _MOST_NAMED)}" if others else ""
    return fail(
        f"{worst.name}: {_against(worst, what)}{more}",
        advice=advice.format(names),
        cause=causes.pop() if len(causes) == 1 else "",
        **_evidence(units),
    )


def _flaky(units: Sequence[Unit], what: str, advice: str) -> Verdict | None:
    come = [unit for unit in units if unit.held == "flaky"]
    if not come:
        return None
    worst = max(come, key=lambda unit: unit.bad / unit.samples)
    sentence = f"samples of {worst.name} were slow: {_against(worst, what)}"
    return flaky(
        worst.bad, worst.samples, sentence, advice=advice.format(worst.name), **_evidence(units)
    )


def _starved(units: Sequence[Unit], what: str) -> Verdict | None:
    starved = [unit for unit in units if unit.held == "starved"]
    if not starved:
        return None
    worst = min(starved, key=_ratio)
    wait = f"; it waited for a CPU for {percent(worst.waited)} of the time"
    return warn(f"{worst.name}: {_against(worst, what)}{wait}", advice=_BUSY, **_evidence(units))


def _against(unit: Unit, what: str) -> str:
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
        span = high if low == high else f"{low.removesuffix(' ' + symbol)} to {high}"
        clauses.append(span)
    return f"{what} {', '.join(clauses)} ({_things(units)})"


def _things(units: Sequence[Unit]) -> str:
    """How many of what was measured: "8 GPUs", "56 ways", "1 NUMA node"."""
    first = units[0]
    word = table()["parts"].get(first.measure) or first.cause.partition(" ")[0] or "part"
    number = len({unit.cause or unit.name for unit in units})
    return count(number, word)


def _limits(units: Sequence[Unit]) -> str:
    """The limit that came nearest to deciding."""
    with_limit = [unit for unit in units if unit.limit is not None]
    nearest = min(with_limit, key=_ratio)
    return f"; limit {amount(nearest.limit or 0, nearest.measure)} ({nearest.limit_origin})"


def _ratio(unit: Unit) -> float:
    """How much of its limit it reached; less is worse."""
    if unit.limit is None:
        return float("inf")
    less = unit.measure in _LESS_IS_BETTER
    return unit.limit / unit.best if less else unit.best / unit.limit


def _evidence(units: Sequence[Unit]) -> dict[str, Any]:
    parts = [
        {**{name: getattr(unit, name) for name in _FIELDS}, "clocks": unit.remark} for unit in units
    ]
    return {"parts": parts}


def _natural(name: str) -> tuple[int, str]:
    return len(name), name
