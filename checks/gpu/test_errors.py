"""Signs of a failing GPU: memory errors, rows to be remapped, requested resets.

The meaning of the numbers: NVIDIA's guide to GPU memory errors and the limits in `limits.toml`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from preflight.check import Check
from preflight.checks.gpu.readings import (
    NVML,
    Question,
    Trouble,
    healths,
    judge_gpus,
    uptime_s,
)
from preflight.core.text import count
from preflight.core.thresholds import Thresholds
from preflight.facts import Facts, Node
from preflight.facts.gpu import GpuHealth
from preflight.verdict import Conclude

CHECKS = (
    Check("gpu.ecc", stage="facts", tier="prolog", requires=NVML, drains=True),
    Check("gpu.remap", stage="facts", tier="prolog", requires=NVML, drains=True),
    Check("gpu.recovery", stage="facts", tier="prolog", requires=NVML, drains=True),
    Check("gpu.inforom", stage="facts", tier="prolog", requires=NVML, drains=True),
)


_RESET: Final = "drain; reset the GPU (nvidia-smi --gpu-reset) or reboot, recheck"
_REPLACE: Final = "drain; run the field diagnostic and replace the GPU"
_HOUR_S: Final = 3600.0

_TODO: Final = {
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
            sentence = "uncorrectable memory errors are reported, but not how many; 0 expected"
            yield Trouble(gpu, sentence, _RESET)
        sram, most = health.sram_aggregate_uncorrected or 0, limit("sram_uncorrected")
        if health.sram_threshold_exceeded:
            sentence = f"the driver reports that its SRAM failed too often ({sram} uncorrectable)"
            yield Trouble(gpu, sentence, _REPLACE)
        elif sram > most and not _newer_word(health):
            in_life = f"{sram} uncorrectable SRAM errors in its life, {most:.0f} are the most"
            yield Trouble(gpu, in_life, _REPLACE)
        hours = uptime_s(facts) / _HOUR_S
        if noise := _corrected(health.ecc_volatile_corrected or 0, hours, limit):
            advice = "watch it under load; reset the GPU at the next chance"
            yield Trouble(gpu, noise, advice, grave=False)


def _newer_word(health: GpuHealth) -> bool:
    """Whether this driver reports a verdict of its own on the SRAM (R550), even if not just now."""
    has_verdict = health.sram_threshold_exceeded is not None
    return has_verdict or health.refused("sram_threshold_exceeded")


def _corrected(number: int, hours: float, limit: Thresholds) -> str:
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
        for beyond_repair in _beyond_repair(health, limit):
            yield Trouble(gpu, beyond_repair, _REPLACE)
        if waits := _waiting(health):
            yield Trouble(gpu, f"{waits} at the next reset, none expected", _RESET)
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


def _waiting(health: GpuHealth) -> str:
    """What a reset will mend; "" if nothing."""
    rows = (
        (health.remapped_uncorrected, "after uncorrectable errors"),
        (health.remapped_corrected, "after correctable errors"),
    )
    so_far = ", ".join(f"{number} {why}" for number, why in rows if number)
    repairs = [
        (
            health.remap_pending,
            f"memory rows ({so_far or 'number not reported'}) wait to be remapped",
        ),
        (health.retired_pending, "bad memory pages wait to be retired"),
        (health.repair_pending, "a channel or TPC waits to be repaired"),
    ]
    return ", ".join(words for waits, words in repairs if waits)


def recovery_troubles(facts: Facts) -> Iterator[Trouble]:
    """The recovery action that the driver itself requests before the GPU is used again."""
    for gpu, health in healths(facts):
        action = health.recovery_action
        if action not in (None, "none"):
            advice = _TODO.get(action, "drain and reboot the node, recheck")
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
