"""Reasons why a working GPU is slow: heat, a power brake, a forgotten power limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from preflight.check import Check
from preflight.checks.gpu.readings import (
    NVML,
    Expectation,
    Question,
    Trouble,
    best_on_a_board,
    expected_of_kind,
    healths,
    judge_gpus,
    uptime_s,
)
from preflight.core.text import age
from preflight.core.thresholds import Thresholds
from preflight.facts import Facts, Gpu, Node
from preflight.facts.boards import board
from preflight.facts.gpu import GpuHealth
from preflight.verdict import Conclude

CHECKS = (
    Check("gpu.temperature", stage="facts", tier="prolog", requires=NVML, drains=True, heals=True),
    Check("gpu.throttle", stage="facts", tier="prolog", requires=NVML, drains=True, heals=True),
    Check("gpu.power", stage="facts", tier="prolog", requires=NVML),
)


HEAT: Final = "look at fans, air flow or coolant of this node; drain it if it stays hot"
_BRAKE: Final = "look at power supplies and the power brake input (BMC log); drain until it is off"

_FAULTS: Final = {
    "hw_thermal": ("a hardware thermal slowdown", HEAT, True),
    "hw_power_brake": ("the hardware power brake", _BRAKE, True),
    "hw_slowdown": ("a hardware slowdown", "look at power, heat and the BMC log; drain", True),
    "sw_thermal": ("a thermal slowdown by the driver", HEAT, False),
}
"""Reasons that are a fault, the most specific first. The others are normal, idle or at work."""


def throttle_troubles(facts: Facts, limit: Thresholds) -> Iterator[Trouble]:
    """GPUs whose clocks are held down by hardware or heat now, or often were."""
    for gpu, health in healths(facts):
        active = [reason for reason in _FAULTS if reason in (health.clock_reasons or ())]
        if active:
            cause, advice, grave = _FAULTS[active[0]]
            now = f"{cause} holds its clocks down now; no such reason is expected"
            yield Trouble(gpu, now, advice, grave=grave)
            continue
        most, uptime = limit("throttled_pct"), uptime_s(facts)
        for seconds, cause, advice in (
            (health.hw_thermal_s, "hardware thermal slowdown", HEAT),
            (health.hw_brake_s, "hardware power brake", _BRAKE),
        ):
            share = 100 * (seconds or 0) / uptime if uptime else 0.0
            if seconds and share > most:
                often = f"{cause} for {age(seconds)} since boot, {share:.1f} % of the time"
                yield Trouble(gpu, f"{often}; at most {most:g} % is usual", advice, grave=False)


def power_troubles(node: Node) -> Iterator[Trouble]:
    """GPUs whose enforced power limit is below the expected one: they are slow under load."""
    facts, slack_w = node.facts, node.limit("power_limit_slack_w")
    best, by_inventory = best_on_a_board(facts), node.expected.power_limit_w
    # A T4 among A100s has a limit of its own.
    usual = expected_of_kind("power_limit_w", facts, node.group, best, by_inventory)
    # Kinds of which a GPU here has its board's default: no site caps only the others.
    uncapped_kinds = {
        (gpu.name, health.power_default_w)
        for gpu, health in healths(facts)
        if (health.power_limit_w or 0.0) >= (health.power_default_w or 0.0) - slack_w
    }
    for gpu, health in healths(facts):
        limit_w = health.power_limit_w
        expected = None if limit_w is None else _expected_limit(gpu, health, usual, slack_w)
        if limit_w is None or expected is None or abs(limit_w - expected.value) <= slack_w:
            continue
        sentence = f"power limit {limit_w:.0f} W, {expected.value:.0f} W {expected.origin}"
        set_watts = f"nvidia-smi -i {gpu.index} -pl {expected.value:.0f}"
        set_it = f"{set_watts}; look for a cap by BMC or rack"
        if limit_w > expected.value:
            yield Trouble(gpu, sentence, f"correct the inventory, or: {set_it}", grave=False)
            continue
        group_decides = usual is not None and usual.by == "group"
        others_uncapped = (gpu.name, expected.value) in uncapped_kinds and not group_decides
        yield Trouble(gpu, sentence, set_it, grave=expected.by != "default" or others_uncapped)


def _expected_limit(
    gpu: Gpu, health: GpuHealth, usual: Expectation[float] | None, slack_w: float
) -> Expectation[float] | None:
    """The usual limit; the board's default where none is usual, or where all GPUs are capped."""
    limit_w, default_w, origin = health.power_limit_w or 0.0, health.power_default_w, "by default"
    spec = board(gpu.name)
    # The table of nvidia-smi has no default limit: the lowest one of this board stands in.
    if default_w is None and spec and spec.default_w and limit_w < spec.default_w - slack_w:
        default_w, origin = float(spec.default_w), "on its board"
    if not default_w:
        return usual
    if usual is not None and (
        usual.by == "expectation" or not usual.value - slack_w <= limit_w < default_w - slack_w
    ):
        return usual
    return Expectation(default_w, origin, "default")


def temperature_troubles(facts: Facts, limit: Thresholds) -> Iterator[Trouble]:
    """GPUs that are near the point where the hardware halves their clocks."""
    for gpu, health in healths(facts):
        margin_c = margin(health)
        if margin_c is None or margin_c > limit("thermal_margin_c"):
            continue
        now = "" if health.temperature_c is None else f"{health.temperature_c} C, "
        side = "below" if margin_c >= 0 else "beyond"
        expected = f"over {limit('thermal_margin_c'):.0f} C below it expected"
        sentence = f"{now}{abs(margin_c)} C {side} its slowdown; {expected}"
        yield Trouble(gpu, sentence, HEAT, grave=margin_c <= 0)


def margin(health: GpuHealth) -> int | None:
    """Degrees until the hardware slows down; None where NVML reported neither number."""
    if health.margin_c is not None or health.refused("margin_c"):
        return health.margin_c
    if health.temperature_c is None or health.slowdown_c is None:
        return None
    return health.slowdown_c - health.temperature_c


_MARGIN: Final = Question(
    "temperature and slowdown threshold", ("margin_c", "slowdown_c"), "heat", ("temperature_c",)
)
_REASONS: Final = Question(
    "reasons for its clocks", ("clock_reasons",), "heat", ("hw_thermal_s", "hw_brake_s")
)
_POWER: Final = Question("power limit", ("power_limit_w",), also=("power_default_w",))


def test_gpu_temperature(node: Node, conclude: Conclude) -> None:
    """Every GPU is well below the temperature at which the hardware halves its clocks."""
    margins = [gap for _, health in healths(node.facts) if (gap := margin(health)) is not None]
    fine = f"at least {min(margins)} C below slowdown" if margins else "no GPU is hot"
    conclude(judge_gpus(node, _MARGIN, temperature_troubles(node.facts, node.limit), fine))


def test_gpu_throttle(node: Node, conclude: Conclude) -> None:
    """Neither hardware nor heat holds the clocks of a GPU down: one slow GPU slows the whole job."""  # noqa: E501  `preflight list-checks` prints it
    fine = "neither hardware nor heat holds clocks down"
    conclude(judge_gpus(node, _REASONS, throttle_troubles(node.facts, node.limit), fine))


def test_gpu_power(node: Node, conclude: Conclude) -> None:
    """Every GPU may draw the power it should: a lower limit makes it slow under load only."""
    limits = sorted({health.power_limit_w or 0.0 for _, health in healths(node.facts)})
    fine = f"power limit {' and '.join(f'{watts:.0f}' for watts in limits)} W"
    conclude(judge_gpus(node, _POWER, power_troubles(node), fine))
