"""Every GPU is present and answers, and the driver answers at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from preflight.check import Check
from preflight.checks.gpu.connections import Usual, usual_gpus
from preflight.checks.gpu.driver_log import missing_slots
from preflight.checks.gpu.readings import (
    MAY_PASS,
    NVML,
    SHORT_OF_MEMORY,
    Question,
    Trouble,
    healths,
    judge_gpus,
)
from preflight.core.text import and_more, count
from preflight.core.thresholds import Thresholds
from preflight.facts import Driver, Facts, Gpu, Node
from preflight.facts.boards import board, gpu_models
from preflight.verdict import Conclude, Outcome, Verdict, fail, not_run, ok, unknown, warn

CHECKS = (
    Check("gpu.count", stage="facts", tier="prolog", requires=NVML, drains=True),
    Check("gpu.readings", stage="facts", tier="prolog", requires=NVML, drains=True),
    Check("gpu.driver_slow", stage="facts", tier="prolog", requires=NVML, drains=True, heals=True),
)


def duplicate_ids(gpus: Sequence[Gpu]) -> str:
    """Say which GPUs share an ID; "" where each ID occurs once."""
    for name, ids in (
        ("UUID", [gpu.uuid for gpu in gpus]),
        ("PCI address", [gpu.bus_id for gpu in gpus]),
        ("index", [str(gpu.index) for gpu in gpus]),
    ):
        duplicate = next((gpu_id for gpu_id in ids if gpu_id and ids.count(gpu_id) > 1), "")
        if duplicate:
            return f"{ids.count(duplicate)} GPUs have the {name} {duplicate}"
    return ""


_FREE_MEMORY: Final = "look for the process that takes this node's memory, then recheck"


def judge_count(
    expected: int | None,
    gpus: tuple[Gpu, ...] | None,
    usual: Usual | None = None,
    counted: int | None = None,
    missing: tuple[str, ...] = (),
    *,
    errors: tuple[str, ...] = (),
) -> Verdict:
    """Compare the GPUs that answered with the inventory, or else with the group.

    Of GPUs that do not answer: `missing` has the known addresses, `errors` what NVML reported.
    """
    usual_ids, usual_number = _ids_and_number(usual)
    wanted, origin = expected, ""
    if usual is not None and wanted is None and usual_number is not None:
        wanted, origin = (usual_number, f"; {usual.holders} of its group have {usual_number}")
    # A gap in the indices is a GPU that belongs to another job: it is not missing.
    has_gap = len(gpus or ()) <= max((gpu.index for gpu in gpus or ()), default=0)
    number_is_known = wanted is not None or has_gap
    if wanted is None and counted is not None:
        wanted, origin = counted, "; NVML counts the others too"
    if not gpus and not wanted:
        return _no_gpus(missing, errors if gpus == () else ())
    if gpus is None:
        return unknown("NVML did not answer", advice="load the driver, then recheck")
    if duplicates := duplicate_ids(gpus):
        return unknown(duplicates, advice="reload the driver, look at nvidia-smi -L, then recheck")
    bus_ids = tuple(gpu.bus_id for gpu in gpus)
    if wanted is not None and len(gpus) < wanted:
        if usual_ids is not None:
            missing = tuple(sorted(set(usual_ids) - set(bus_ids)))
        return _too_few(wanted, bus_ids, list(missing), errors, origin)
    unusual = _unusual_number(expected, gpus, number_is_known=number_is_known)
    return unusual or ok(count(len(gpus), "GPU"), bus_ids=bus_ids)


def _ids_and_number(usual: Usual | None) -> tuple[tuple[str, ...] | None, int | None]:
    """The addresses, if known, and the number of the GPUs that most nodes of the group have."""
    if usual is None or not usual.decides:
        return None, None
    if isinstance(usual.value, int):
        return None, usual.value
    return usual.value, len(usual.value)


LEFT_OF_A_MACHINE: Final = (7, 11, 13, 15)
"""The rest of 8, 12, 14 or 16 GPUs after one is lost. Cards come in any number up to six."""


def left_of_a_machine(gpus: Sequence[Gpu]) -> bool:
    """Whether no known machine, nor a rented part of one, has so many of these GPUs."""
    number = len(gpus)
    sizes = {size for gpu in gpus if (spec := board(gpu.name)) for size in spec.sizes}
    return number in LEFT_OF_A_MACHINE or (number < max(sizes, default=0) and number not in sizes)


def _unusual_number(
    expected: int | None, gpus: Sequence[Gpu], *, number_is_known: bool
) -> Verdict | None:
    """More GPUs than expected, or the rest of a machine where no source knows the number.

    NVML's own count is no such source: it lacks a GPU that fell off the bus before a reboot.
    """
    number = len(gpus)
    if expected is not None and number > expected:
        sentence, advice = f"{number} GPUs, {expected} expected", "correct the inventory"
    elif number_is_known or not left_of_a_machine(gpus):
        return None
    else:
        sentence = f"{number} GPUs; no known machine, nor a rented part of one, has so many"
        advice = "look for a missing GPU: lspci, Xid 79 in dmesg; or write gpus into the inventory"
    return warn(sentence, advice=advice, bus_ids=tuple(gpu.bus_id for gpu in gpus))


def _no_gpus(missing: tuple[str, ...], errors: tuple[str, ...]) -> Verdict:
    """No GPU is here or expected; or those that a text names did not answer."""
    if not errors:
        return not_run("no GPUs here")
    text = f"{count(len(errors), 'GPU')} did not answer, and no other GPU is listed"
    return fail("; ".join([text, *errors]), advice=_POWER_CYCLE, bus_ids=(), missing=list(missing))


# A GPU that fell off the bus leaves Xid 79 and comes back only after a cold start.
_POWER_CYCLE: Final = "look for Xid 79 in dmesg; drain, power-cycle, recheck"


def _too_few(
    wanted: int, bus_ids: tuple[str, ...], missing: list[str], errors: tuple[str, ...], origin: str
) -> Verdict:
    """Distinguish GPUs that are missing from those that NVML had no memory to open."""
    number_missing = wanted - len(bus_ids)
    sentence = f"{len(bus_ids)} of {wanted} GPUs answer{origin}"
    unopened = {line.partition(":")[0]: line for line in errors if line.endswith(SHORT_OF_MEMORY)}
    if len(unopened) >= number_missing:
        return unknown("; ".join([sentence, *unopened.values()]), advice=_FREE_MEMORY)
    details = "".join(f"; {line}" for line in errors[:number_missing])
    if len(missing) == number_missing:
        details = f"; missing: {', '.join(missing)}"
    return fail(
        f"{sentence}{details}",
        advice=_POWER_CYCLE,
        bus_ids=bus_ids,
        missing=missing,
        **_may_pass(errors, number_missing),
    )


def _may_pass(errors: Sequence[str], needed: int) -> dict[str, Any]:
    """The evidence that so many errors may pass: the scheduler's hook reads them a second time."""
    passing = [error for error in errors if error.endswith((*SHORT_OF_MEMORY, *MAY_PASS))]
    return {"may_pass": True} if len(passing) >= needed else {}


def open_errors(facts: Facts) -> tuple[str, ...]:
    """NVML's errors for GPUs that it counts and cannot open: "GPU 3: GPU is lost"."""
    answering = {f"GPU {gpu.index}:" for gpu in facts.gpus or ()}
    lines = [line for line in facts.problems if line.startswith("GPU ")]
    return tuple(line for line in lines if not line.startswith(tuple(answering)))


def test_gpu_count(node: Node, conclude: Conclude) -> None:
    """Every node answers with the GPUs that the inventory expects of its group."""
    facts, missing = node.facts, missing_slots(node.facts)
    usual = usual_gpus(node.group, gpu_models(facts))
    gpus, counted, errors = facts.gpus, facts.driver.counted, open_errors(facts)
    if lost_gpus := [gpu for gpu in gpus or () if _is_lost(gpu)]:
        gpus, counted = tuple(gpu for gpu in gpus or () if gpu not in lost_gpus), len(gpus or ())
        missing = (*missing, *(gpu.bus_id for gpu in lost_gpus if gpu.bus_id))
        errors = (*errors, *(f"GPU {gpu.index}: {_LOST}" for gpu in lost_gpus))
    conclude(judge_count(node.expected.gpus, gpus, usual, counted, missing, errors=errors))


_LOST: Final = "GPU is lost"
"""NVML's error (code 15) for a GPU that fell off the bus: it is listed, but does not answer."""


def _is_lost(gpu: Gpu) -> bool:
    return gpu.health is not None and any(line.endswith(_LOST) for line in gpu.health.errors)


_MAX_ERRORS: Final = 3


def answer_troubles(facts: Facts) -> Iterator[Trouble]:
    """Readings that came back as an error: the first sign of a GPU that falls off the bus."""
    for gpu, health in healths(facts):
        # Fields that are no health reading (where its links end) may fail on a healthy GPU.
        errors = [
            error
            for error in health.errors
            if not error.endswith(SHORT_OF_MEMORY)
            and error.partition(":")[0] not in gpu.__struct_fields__
        ]
        if not errors:
            continue
        first_errors = ", ".join(errors[:_MAX_ERRORS])
        only_fan = all(error.startswith("fan") for error in errors)
        advice = "look for Xid in dmesg; reset the GPU, and replace it if it stays"
        sentence = f"readings fail: {first_errors}{and_more(len(errors) - _MAX_ERRORS)}"
        fan = "look at the fan and its plug; replace it"
        yield Trouble(gpu, sentence, fan if only_fan else advice, grave=not only_fan)


_READINGS: Final = Question(
    "readings",
    (
        *("temperature_c", "memory_total_mib", "performance_state", "ecc_volatile_uncorrected"),
        "remap_pending",
    ),
    "readings",
)


def test_gpu_readings(node: Node, conclude: Conclude) -> None:
    """Every reading of a GPU comes back without an error, the first sign of one that is failing."""
    fine = "no reading of its GPUs fails"
    verdict = judge_gpus(node, _READINGS, answer_troubles(node.facts), fine)
    errors = [error for _, health in healths(node.facts) for error in health.errors]
    if verdict.outcome is Outcome.FAIL:
        verdict = replace(verdict, evidence=verdict.evidence | _may_pass(errors, len(errors)))
    elif verdict.outcome is Outcome.OK and errors:
        verdict = unknown(f"not all readings could be read: {errors[0]}", advice=_FREE_MEMORY)
    conclude(verdict)


PERSISTENCE = "systemctl enable --now nvidia-persistenced"


def judge_driver_slow(expected: int | None, facts: Facts, limit: Thresholds) -> Verdict:
    """Report an answer that took too long, except opening a driver without persistence mode."""
    driver = facts.driver
    no_answer = unknown("the driver did not answer, so no time was measured", advice="recheck")
    if driver.state != "answered":
        absent = not_run("no GPUs expected, no NVIDIA driver that answers here")
        return no_answer if expected else absent
    if driver.slowest_s is None or driver.init_s is None:
        return no_answer
    persistence_off = any(health.persistence is False for _, health in healths(facts))
    persistence_unread = any(health.refused("persistence") for _, health in healths(facts))
    limit_s = limit("driver_slow_s")
    call, seconds = _slowest(driver, cold=persistence_off or persistence_unread)
    sentence = f"{call} took {seconds:.1f} s"
    if seconds > limit_s:
        return _slow_answer(f"{sentence}, under {limit_s:g} s expected", seconds, limit)
    if driver.init_s > limit_s:
        opening = f"opening the driver took {driver.init_s:.1f} s: persistence mode is off"
        if not persistence_off:
            return unknown(f"{opening}, or not: one GPU did not report it", advice="recheck")
        return warn(f"{opening}, under {limit_s:g} s expected with it", advice=PERSISTENCE)
    return ok(f"{sentence} at the most", seconds=seconds)


def _slow_answer(sentence: str, seconds: float, limit: Thresholds) -> Verdict:
    if seconds > limit("driver_wedged_s"):
        advice = "look for NVRM and Xid in dmesg; drain and reboot"
        return fail(sentence, advice=advice, seconds=seconds)
    advice = "look for NVRM and Xid in dmesg, and for load on this node; recheck"
    return warn(sentence, advice=advice, seconds=seconds)


def _slowest(driver: Driver, *, cold: bool) -> tuple[str, float]:
    """The slowest answer that shows something of the driver's health."""
    answer = (driver.slowest_call or "an answer", driver.slowest_s or 0.0)
    opening = ("opening the driver (nvmlInit)", 0.0 if cold else driver.init_s or 0.0)
    return max(answer, opening, key=lambda call: call[1])


def test_gpu_driver_slow(node: Node, conclude: Conclude) -> None:
    """The NVIDIA driver answers at once: an answer that takes seconds is how a wedged one begins."""  # noqa: E501  `preflight list-checks` prints it
    conclude(judge_driver_slow(node.expected.gpus, node.facts, node.limit))
