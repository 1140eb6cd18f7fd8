"""Signs of a failing GPU, and reasons why a working one is slow.

Memory errors, rows to be remapped and requested resets; heat, a power brake, a forgotten power
limit. The meaning of the numbers: NVIDIA's guide to GPU memory errors and the limits in
`limits.toml`.
"""

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
from preflight.core.text import age, count
from preflight.core.thresholds import Thresholds
from preflight.facts import Facts, Gpu, Node
from preflight.facts.boards import board
from preflight.facts.gpu import GpuHealth
from preflight.verdict import Conclude

CHECKS = (
    Check("gpu.ecc", stage="facts", tier="prolog", requires=NVML, drains=True),
    Check("gpu.remap", stage="facts", tier="prolog", requires=NVML, drains=True),
    Check("gpu.recovery", stage="facts", tier="prolog", requires=NVML, drains=True),
    Check("gpu.inforom", stage="facts", tier="prolog", requires=NVML, drains=True),
    Check("gpu.temperature", stage="facts", tier="prolog", requires=NVML, drains=True, heals=True),
    Check("gpu.throttle", stage="facts", tier="prolog", requires=NVML, drains=True, heals=True),
    Check("gpu.power", stage="facts", tier="prolog", requires=NVML),
)


_RESET: Final = "drain; reset the GPU (nvidia-smi --gpu-reset) or reboot, recheck"
_REPLACE: Final = "drain; run the field diagnostic and replace the GPU"
_HOUR_S: Final = 3600.0

_RECOVERY_ADVICE: Final = {
    "GPU reset": _RESET,
    "bus reset": _RESET,
    "drain P2P": "drain its jobs; reset the GPU and its NVLink peers together, recheck",
    "drain and reset": _RESET,
    "recover IMEX domain": "recover the IMEX domain (restart nvidia-imex on its nodes), recheck",
}


def ecc_troubles(facts: Facts, limit: Thresholds) -> Iterator[Trouble]:
    """Errors that ECC could not correct, SRAM that fails too often, and very many corrected."""
    for gpu, health in healths(facts):
        if health.ecc_volatile_uncorrected:
            errors = count(health.ecc_volatile_uncorrected, "uncorrectable ECC error")
            since = "since its driver was loaded, 0 expected"
            yield Trouble(gpu, f"{errors} {since}", _RESET)
        elif health.uncorrected_seen:
            uncounted = "uncorrectable memory errors are reported, but not how many; 0 expected"
            yield Trouble(gpu, uncounted, _RESET)
        sram, most = health.sram_aggregate_uncorrected or 0, limit("sram_uncorrected")
        if health.sram_threshold_exceeded:
            uncounted = f"the driver reports that its SRAM failed too often ({sram} uncorrectable)"
            yield Trouble(gpu, uncounted, _REPLACE)
        elif sram > most and not _driver_judges_sram(health):
            over_limit = f"{sram} uncorrectable SRAM errors in its life, {most:.0f} are the most"
            yield Trouble(gpu, over_limit, _REPLACE)
        hours = uptime_s(facts) / _HOUR_S
        if too_many := _corrected_errors(health.ecc_volatile_corrected or 0, hours, limit):
            advice = "watch it under load; reset the GPU at the next chance"
            yield Trouble(gpu, too_many, advice, grave=False)


def _driver_judges_sram(health: GpuHealth) -> bool:
    """Whether this driver reports a verdict of its own on the SRAM (R550), even if not just now."""
    has_verdict = health.sram_threshold_exceeded is not None
    return has_verdict or health.refused("sram_threshold_exceeded")


def _corrected_errors(number: int, hours: float, limit: Thresholds) -> str:
    """Corrected errors cost nothing, but many of them foretell worse; "" for the usual few."""
    usual, most = limit("ecc_corrected_per_hour"), limit("ecc_corrected_total")
    per_hour = number / max(hours, 1.0) if hours else 0.0
    if per_hour <= usual and number <= most:
        return ""
    rate = f", {per_hour:.0f} an hour" if hours else ""
    bounds = f"at most {usual:.0f} an hour and {most:.0f} in all are usual"
    return f"{number} corrected ECC errors{rate}; {bounds}"


def remap_troubles(facts: Facts, limit: Thresholds) -> Iterator[Trouble]:
    """Bad rows or pages that only a reset takes out of use, and memory that has no spare left."""
    for gpu, health in healths(facts):
        for sentence in _beyond_repair(health, limit):
            yield Trouble(gpu, sentence, _REPLACE)
        if repairs := _pending_repairs(health):
            yield Trouble(gpu, f"{repairs} at the next reset, none expected", _RESET)
        if health.banks_without_spares:
            banks = count(health.banks_without_spares, "memory bank")
            stays = f"{banks} without a spare row: its next bad row stays in use"
            yield Trouble(gpu, stays, "plan to replace the GPU", grave=False)


def _beyond_repair(health: GpuHealth, limit: Thresholds) -> Iterator[str]:
    if health.remap_failed:
        yield "remapping a bad memory row has failed"
    if health.unrepairable:
        yield "its memory cannot be repaired"
    for number, words, name in (
        (health.retired_pages, "memory pages retired", "retired_pages"),
        (health.remapped_uncorrected, "rows remapped after uncorrectable errors", "remapped_rows"),
    ):
        if number and number > limit(name):
            yield f"{number} {words}, {limit(name):.0f} are the most"


def _pending_repairs(health: GpuHealth) -> str:
    """What a reset will mend; "" if nothing."""
    counts = (
        (health.remapped_uncorrected, "after uncorrectable errors"),
        (health.remapped_corrected, "after correctable errors"),
    )
    remapped = ", ".join(f"{number} {why}" for number, why in counts if number)
    rows = f"memory rows ({remapped or 'number not reported'}) wait to be remapped"
    repairs = [
        (health.remap_pending, rows),
        (health.retired_pending, "bad memory pages wait to be retired"),
        (health.repair_pending, "a channel or TPC waits to be repaired"),
    ]
    return ", ".join(words for waits, words in repairs if waits)


def recovery_troubles(facts: Facts) -> Iterator[Trouble]:
    """The recovery action that the driver itself requests before the GPU is used again."""
    for gpu, health in healths(facts):
        action = health.recovery_action
        if action not in (None, "none"):
            advice = _RECOVERY_ADVICE.get(action, "drain and reboot the node, recheck")
            yield Trouble(gpu, f"the driver asks for: {action}; none is expected", advice)


def inforom_troubles(facts: Facts) -> Iterator[Trouble]:
    """A board whose InfoROM is damaged: its ECC history and limits cannot be trusted."""
    for gpu, health in healths(facts):
        if health.inforom_valid is False:
            advice = "drain; power-cycle, and return the GPU if it stays"
            yield Trouble(gpu, "its InfoROM is corrupted", advice)


_UNCORRECTABLE: Final = Question(
    "count of uncorrectable ECC errors",
    ("ecc_volatile_uncorrected",),
    "memory",
    ("sram_threshold_exceeded", "sram_aggregate_uncorrected", "ecc_volatile_corrected"),
)
_REMAPPING: Final = Question(
    "state of row remapping or page retirement",
    ("remap_pending", "retired_pending"),
    "memory",
    ("retired_pages", "repair_pending", "banks_without_spares", "remap_failed"),
)
_RECOVERY: Final = Question("recovery action", ("recovery_action",), "memory")
_INFOROM: Final = Question("InfoROM check", ("inforom_valid",))


def test_gpu_ecc(node: Node, conclude: Conclude) -> None:
    """No GPU has memory errors that ECC could not correct: they crash the job or corrupt its numbers."""  # noqa: E501  `preflight list-checks` prints it
    fine = "no uncorrectable ECC errors since the driver was loaded"
    conclude(judge_gpus(node, _UNCORRECTABLE, ecc_troubles(node.facts, node.limit), fine))


def test_gpu_remap(node: Node, conclude: Conclude) -> None:
    """No bad memory row or page waits for a reset, and remapping has not failed."""
    fine = "no memory row or page waits to be taken out of use"
    conclude(judge_gpus(node, _REMAPPING, remap_troubles(node.facts, node.limit), fine))


def test_gpu_recovery(node: Node, conclude: Conclude) -> None:
    """The driver asks for no reset or reboot: where it does, the next job on that GPU fails."""
    fine = "the driver asks for no recovery action"
    conclude(judge_gpus(node, _RECOVERY, recovery_troubles(node.facts), fine))


def test_gpu_inforom(node: Node, conclude: Conclude) -> None:
    """The InfoROM of every GPU is sound: it keeps the board's error history and its limits."""
    fine = "the InfoROM of every GPU is valid"
    conclude(judge_gpus(node, _INFOROM, inforom_troubles(node.facts), fine))


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
            slowdown = f"{cause} holds its clocks down now; no such reason is expected"
            yield Trouble(gpu, slowdown, advice, grave=grave)
            continue
        most, uptime = limit("throttled_pct"), uptime_s(facts)
        for seconds, cause, advice in (
            (health.hw_thermal_s, "hardware thermal slowdown", HEAT),
            (health.hw_brake_s, "hardware power brake", _BRAKE),
        ):
            share = 100 * (seconds or 0) / uptime if uptime else 0.0
            if seconds and share > most:
                past = f"{cause} for {age(seconds)} since boot, {share:.1f} % of the time"
                yield Trouble(gpu, f"{past}; at most {most:g} % is usual", advice, grave=False)


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
    if not default_w or limit_w > default_w:  # some boards may be set higher
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
        temperature = "" if health.temperature_c is None else f"{health.temperature_c} C, "
        side = "below" if margin_c >= 0 else "beyond"
        expected = f"over {limit('thermal_margin_c'):.0f} C below it expected"
        sentence = f"{temperature}{abs(margin_c)} C {side} its slowdown; {expected}"
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
