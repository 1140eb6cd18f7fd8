"""GPUs that differ from their group in model, firmware, modes or memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from preflight.check import Check
from preflight.checks.deviations import on_most
from preflight.checks.gpu.readings import (
    NVML,
    Best,
    Question,
    Trouble,
    expected_of_kind,
    expected_value,
    healths,
    is_model,
    judge_gpus,
    reading,
)
from preflight.core.statistics import grouped
from preflight.core.text import memory
from preflight.core.thresholds import Thresholds
from preflight.facts import Facts, Group, Node
from preflight.facts.boards import named_memory_gb
from preflight.facts.node import decided
from preflight.fleet.model import Expected
from preflight.verdict import Conclude, Outcome, Verdict, unknown

CHECKS = (
    Check("gpu.model", stage="facts", tier="prolog", requires=NVML),
    Check("gpu.software", stage="facts", tier="prolog", requires=NVML),
    Check("gpu.mode", stage="facts", tier="prolog", requires=NVML),
    Check("gpu.memory", stage="facts", tier="prolog", requires=NVML, drains=True),
)


_ALIGN_FIRMWARE: Final = "bring it to the version of the others, or leave the node out"
_FIRMWARE: Final = {"vbios": "VBIOS", "inforom": "InfoROM", "gsp_version": "GSP firmware"}
_ECC_COMMAND: Final = "nvidia-smi -i {} -e {}; reboot"
_WORKSTATION: Final = ("GeForce", "RTX", "Quadro", "TITAN")
"""Families of boards that are sold with ECC off, or without."""

_MIN_SHARE_OF_MEMORY: Final = 0.9
"""Firmware, and ECC of GDDR boards, keep a part of what a board is sold with: a T4 shows 94 %."""
_REPLACE: Final = "drain; reset the GPU, replace it if it stays"
_COMPARE_SETTINGS: Final = "compare ECC, MIG and driver settings with a healthy node"
_ENABLE_BARS: Final = "switch on large BARs (above 4G decoding) in the BIOS: GPUDirect needs them"
_LEAVE_OUT: Final = "correct the inventory, or leave the node out"


def model_troubles(expected: str | None, facts: Facts, group: Group) -> Iterator[Trouble]:
    """GPUs of another model than expected, than the group's, or than most of this node."""
    usual = None if expected else expected_value(None, "name", facts, group)
    for gpu in facts.gpus or ():
        if not gpu.name:
            continue
        if expected and not is_model(gpu.name, expected):
            yield Trouble(gpu, f"is {gpu.name}, {expected} expected", _LEAVE_OUT, part="")
        elif usual is not None and gpu.name != usual.value:
            yield Trouble(gpu, f"is {gpu.name}, {usual.value} {usual.origin}", _LEAVE_OUT, part="")


def driver_version(facts: Facts) -> str | None:
    """The driver of a node, for the vote of its group."""
    return facts.driver.version or None


def software_troubles(facts: Facts, group: Group) -> Iterator[Trouble]:
    """Driver and firmware that differ from the group's, or among the GPUs of one node."""
    vote, version = decided(group.majority(driver_version)), facts.driver.version
    if vote is not None and version and version != vote.value:
        voters = on_most(vote, group)
        advice = f"install driver {vote.value}, or leave the node out"
        yield Trouble(None, f"driver {version} here, {vote.value} {voters}", advice, grave=False)
    for name, words in _FIRMWARE.items():
        usual = expected_of_kind(name, facts, group)
        if usual is None:
            continue
        for gpu, health in healths(facts):
            firmware = getattr(health, name)
            # GSP firmware comes with the driver: another driver is one finding, not two.
            follows_driver = name == "gsp_version" and firmware == facts.driver.version
            if firmware is None or firmware == usual.value or follows_driver:
                continue
            sentence = f"{words} {firmware}, {usual.value} {usual.origin}"
            yield Trouble(gpu, sentence, _ALIGN_FIRMWARE, grave=False)
    yield from _gsp_troubles(facts, group)


def _gsp_troubles(facts: Facts, group: Group) -> Iterator[Trouble]:
    """GSP firmware that is on here and off elsewhere, or belongs to another driver."""
    usual, driver = expected_of_kind("gsp_on", facts, group), facts.driver.version
    for gpu, health in healths(facts):
        gsp_on = health.gsp_on
        if usual is not None and gsp_on is not None and gsp_on != usual.value:
            sentence = f"GSP firmware is {_onoff(gsp_on)}, {_onoff(usual.value)} {usual.origin}"
            advice = "set NVreg_EnableGpuFirmware as on the others and reload the driver"
            yield Trouble(gpu, sentence, advice, grave=False)
        elif health.gsp_version and driver and gsp_on is not False and health.gsp_version != driver:
            sentence = f"GSP firmware {health.gsp_version}, but driver {driver}"
            advice = "reinstall the driver with its firmware, reboot"
            yield Trouble(gpu, sentence, advice, grave=False)


def mode_troubles(expected: Expected, facts: Facts, group: Group) -> Iterator[Trouble]:
    """Modes that differ from inventory or peers, and modes in which no job can start."""
    persist = "nvidia-smi -i {} -pm {}"
    for name, expectation, words, command, best in (
        ("mig_enabled", expected.mig, "MIG", "nvidia-smi -i {} -mig {}", None),
        ("ecc_on", expected.ecc, "ECC", _ECC_COMMAND, _ecc_should_be_on(facts)),
        ("persistence", expected.persistence, "persistence mode", persist, any),
    ):
        usual = expected_value(expectation, name, facts, group, best)
        for gpu in facts.gpus or ():
            setting = reading(gpu, name)
            if setting is None or usual is None or setting == usual.value:
                continue
            sentence = f"{words} is {_onoff(setting)}, {_onoff(usual.value)} {usual.origin}"
            advice = command.format(gpu.index, int(bool(usual.value)))
            yield Trouble(gpu, sentence, advice, grave=name != "persistence")
    yield from _compute_mode_troubles(expected.compute_mode, facts, group)
    yield from _pending_modes(facts)
    if expected.ecc is None:
        yield from _ecc_off_troubles(facts, group)


def _compute_mode_troubles(expected: str | None, facts: Facts, group: Group) -> Iterator[Trouble]:
    usual = expected_value(expected, "compute_mode", facts, group)
    for gpu, health in healths(facts):
        mode, advice = health.compute_mode, f"nvidia-smi -i {gpu.index} -c DEFAULT"
        if mode == "prohibited" and expected != "prohibited":
            yield Trouble(gpu, "compute mode is prohibited: no job can use it", advice)
        elif mode is not None and usual is not None and mode != usual.value:
            sentence = f"compute mode is {mode}, {usual.value} {usual.origin}"
            command = f"nvidia-smi -i {gpu.index} -c {str(usual.value).upper()}"
            yield Trouble(gpu, sentence, command, grave=usual.by == "expectation")


def _pending_modes(facts: Facts) -> Iterator[Trouble]:
    """A changed mode that waits for a reset: it will differ after a reboot."""
    for gpu, health in healths(facts):
        for words, current, pending in (
            ("ECC", health.ecc_on, health.ecc_pending),
            ("MIG", gpu.mig_enabled, health.mig_pending),
        ):
            if current is not None and pending is not None and current != pending:
                sentence = f"{words} is {_onoff(current)}, {_onoff(pending)} after the next reset"
                yield Trouble(gpu, sentence, "reset the GPU, or undo the change", grave=False)


def _ecc_off_troubles(facts: Facts, group: Group) -> Iterator[Trouble]:
    """ECC is off, and neither inventory nor peers expect that: bits may flip unseen."""
    usual = expected_value(None, "ecc_on", facts, group, _ecc_should_be_on(facts))
    if usual is not None and (usual.value or usual.by == "group"):
        return
    for gpu, health in healths(facts):
        if health.ecc_on is False and not is_workstation(gpu.name):
            sentence = "ECC is off, on is what this board is made for"
            yield Trouble(gpu, sentence, _ECC_COMMAND.format(gpu.index, 1), grave=False)


def _ecc_should_be_on(facts: Facts) -> Best | None:
    return None if any(is_workstation(gpu.name) for gpu in facts.gpus or ()) else any


def is_workstation(name: str) -> bool:
    """Whether a board is of a family that is sold with ECC off, or without."""
    return bool(set(_WORKSTATION) & set(name.split()))


def memory_troubles(
    model: str | None, facts: Facts, group: Group, limit: Thresholds
) -> Iterator[Trouble]:
    """GPUs on which a job finds less memory than on the others, or a smaller window to it."""
    slack = limit("memory_slack_mib")
    total = expected_of_kind("memory_total_mib", facts, group)
    reserved = expected_of_kind("memory_reserved_mib", facts, group)
    window = expected_of_kind("bar1_total_mib", facts, group, max)
    by_group = total is not None and total.by == "group"
    sizes = grouped((gpu.name, gpu.memory_total_mib or 0) for gpu in facts.gpus or ())
    largest = {name: max(values) for name, values in sizes.items()}
    for gpu, health in healths(facts):
        size, bar1_mib = gpu.memory_total_mib, health.bar1_total_mib
        driver_mib = health.memory_reserved_mib
        if total is not None and size is not None and size + slack < total.value:
            sentence = f"{memory(size)} of memory, {memory(total.value)} {total.origin}"
            yield Trouble(gpu, sentence, _REPLACE)
        elif size is not None and not by_group and size < _MIN_SHARE_OF_MEMORY * largest[gpu.name]:
            most = memory(largest[gpu.name])
            sentence = f"{memory(size)} of memory, {most} on another {gpu.name} here"
            yield Trouble(gpu, sentence, _REPLACE)
        elif size is not None and (gb := named_memory_gb(gpu.name)):
            whole_mib = gb * 10**9 // 2**20
            if size < _MIN_SHARE_OF_MEMORY * whole_mib:
                sentence = f"{memory(size)} of memory, {memory(whole_mib)} on its board"
                # The number is the inventory's if it names the model, not the table's alone.
                yield Trouble(gpu, sentence, _REPLACE, grave=is_model(gpu.name, model))
        if reserved is not None and driver_mib is not None and driver_mib > reserved.value + slack:
            usual = f"{memory(reserved.value)} {reserved.origin}"
            sentence = f"the driver keeps {memory(driver_mib)} for itself, {usual}"
            yield Trouble(gpu, sentence, _COMPARE_SETTINGS, grave=False)
        if window is not None and bar1_mib is not None and bar1_mib < window.value:
            sentence = f"BAR1 of {memory(bar1_mib)}, {memory(window.value)} {window.origin}"
            yield Trouble(gpu, sentence, _ENABLE_BARS, grave=False)


def used_troubles(facts: Facts, limit: Thresholds) -> Iterator[Trouble]:
    """Memory in use although no process is listed; on a live node host.stale_processes names it."""
    most = limit("unowned_gpu_memory_mib")
    for gpu in facts.gpus or () if facts.processes is None else ():
        used = gpu.memory_used_mib or 0
        if gpu.processes == () and used > most and not gpu.mig_enabled:
            sentence = f"{memory(used)} in use and no process listed, under {memory(most)} expected"
            yield Trouble(gpu, sentence, "on the host: fuser -v /dev/nvidia*", grave=False)


def _onoff(value: object) -> str:
    return "on" if value else "off"


_MODEL: Final = Question("model", ("name",))
_VERSIONS: Final = Question(
    "firmware versions", ("vbios", "inforom", "gsp_version"), also=("gsp_on", "name")
)
_MODES: Final = Question(
    "modes",
    ("persistence", "compute_mode", "ecc_on", "mig_enabled"),
    also=("ecc_pending", "mig_pending"),
)
_TOTAL: Final = Question("amount of memory", ("memory_total_mib",), also=("bar1_total_mib", "name"))


def test_gpu_model(node: Node, conclude: Conclude) -> None:
    """Every GPU is of the expected model, or of the group's."""
    troubles = model_troubles(node.expected.gpu_model, node.facts, node.group)
    fine = " and ".join(sorted({gpu.name for gpu in node.facts.gpus or ()}))
    conclude(judge_gpus(node, _MODEL, troubles, fine))


def judge_software(node: Node) -> Verdict:
    """Compare versions with most nodes of the group, else with the node's other GPUs."""
    facts = node.facts
    versions = {health.vbios for _, health in healths(facts) if health.vbios}
    vbios = " and ".join(sorted(versions)) or "not reported"
    fine = f"driver {facts.driver.version}, VBIOS {vbios}"
    verdict = judge_gpus(node, _VERSIONS, software_troubles(facts, node.group), fine)
    if verdict.outcome is Outcome.OK and not facts.driver.version:
        sentence = "its driver's version is not reported"
        return unknown(sentence, advice="run nvidia-smi, then recheck")
    return verdict


def test_gpu_software(node: Node, conclude: Conclude) -> None:
    """Driver, VBIOS, InfoROM and GSP firmware are those of the group: drift causes odd faults."""
    conclude(judge_software(node))


def _mode_summary(facts: Facts) -> str:
    """All modes in one line, for the operator to judge where no source decides."""
    fields = {"MIG": "mig_enabled", "ECC": "ecc_on", "persistence": "persistence"}
    words = []
    for name, field in fields.items():
        if values := {reading(gpu, field) for gpu in facts.gpus or ()} - {None}:
            words.append(f"{name} {' and '.join(map(_onoff, sorted(values)))}")
    modes = {reading(gpu, "compute_mode") for gpu in facts.gpus or ()} - {None}
    return ", ".join([*words, *(f"compute mode {mode}" for mode in sorted(modes))])


def test_gpu_mode(node: Node, conclude: Conclude) -> None:
    """MIG, ECC, persistence and compute mode are as expected, or as on the group."""
    troubles = mode_troubles(node.expected, node.facts, node.group)
    conclude(judge_gpus(node, _MODES, troubles, _mode_summary(node.facts)))


def test_gpu_memory(node: Node, conclude: Conclude) -> None:
    """A job finds as much GPU memory, and as wide a window to it, as on the others of the group."""
    facts, limit = node.facts, node.limit
    sizes = sorted({gpu.memory_total_mib or 0 for gpu in facts.gpus or ()})
    fine = f"{' and '.join(memory(size) for size in sizes)} of memory on each GPU"
    model = node.expected.gpu_model
    troubles = [*memory_troubles(model, facts, node.group, limit), *used_troubles(facts, limit)]
    conclude(judge_gpus(node, _TOTAL, troubles, fine))
