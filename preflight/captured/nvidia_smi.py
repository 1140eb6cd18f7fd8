"""Whatever nvidia-smi printed about its GPUs, for the checks that judge live ones.

A text that is cut off, or that is an error message, proves nobody healthy: `damaged` says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from preflight.captured.captured import Captured, bare_facts, captured
from preflight.captured.smi_fields import Listing
from preflight.captured.smi_lists import (
    corrupted_inforoms,
    failure,
    lost_gpus,
    parse_csv,
    parse_dcgm,
    parse_nvlink,
    parse_p2p,
)
from preflight.captured.smi_query import only_processes, parse_query, parse_table, parse_xml
from preflight.checks.gpu.readings import reading
from preflight.checks.gpu.test_answers import twins
from preflight.facts.gpu import GpuHealth
from preflight.facts.model import Driver, Facts, Gpu

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

_PARSERS: Final[tuple[tuple[str, Callable[[str], Listing | None]], ...]] = (
    ("nvidia-smi -q -x", parse_xml),
    ("nvidia-smi -q", parse_query),
    ("nvidia-smi", parse_table),
    ("nvidia-smi --query-gpu --format=csv", parse_csv),
    ("dcgmi diag", parse_dcgm),
    ("nvidia-smi nvlink -s / -e", parse_nvlink),
    ("nvidia-smi topo -p2p", parse_p2p),
)
"""The surest first."""

KINDS: Final = tuple(_PARSERS[at][0] for at in (2, 1, 0, 3, 5, 6, 4))
"""The most used first."""

_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "gpu.ecc": ("ecc_volatile_uncorrected", "uncorrected_said", "sram_threshold_exceeded"),
    "gpu.fabric": ("fabric_state",),
    "gpu.inforom": ("inforom_valid",),
    "gpu.memory": ("memory_total_mib",),
    "gpu.mode": ("persistence", "compute_mode", "ecc_on", "mig_enabled"),
    "gpu.model": ("name",),
    "gpu.nvlink": ("link_errors",),
    "gpu.pcie": ("pcie_width",),
    "gpu.power": ("power_limit_w",),
    "gpu.readings": ("temperature_c", "performance_state"),
    "gpu.recovery": ("recovery_action",),
    "gpu.remap": ("remap_pending", "remap_failed", "retired_pending"),
    "gpu.software": ("vbios", "inforom"),
    "gpu.temperature": ("margin_c", "slowdown_c"),
    "gpu.throttle": ("clock_reasons",),
    "gpu.topology": ("links",),
}
"""What a text must tell of a GPU, or refuse to, for a check to be asked about it."""

_ALL: Final = (*_NEEDS, "gpu.count")
_UNASKED: Final = frozenset(("gpu.count", "gpu.topology"))
"""What would be ok of GPUs that are listed and tell nothing else."""


def read(text: str) -> Captured | None:
    """Read any output of nvidia-smi, or of dcgmi diag; None where it is none."""
    lost, failed = lost_gpus(text), failure(text)
    parsed = ((kind, told) for kind, parse in _PARSERS if (told := parse(text)) is not None)
    found = next((_captured(*each) for each in parsed), None)
    if found is None and lost and "NVRM" not in text:  # the kernel's own words are its log's
        found = _captured("nvidia-smi", Listing((), damaged="it lists no GPU"))
    if found is None and failed:
        return _failed(failed)
    if found is None and only_processes(text):
        only = "only its table of processes is there"
        return _captured("nvidia-smi", Listing((), damaged=only))
    if found is None:
        return None
    found = _with_lost(_with_inforoms(found, corrupted_inforoms(text)), lost)
    return replace(found, damaged=found.damaged or failed)


def _captured(kind: str, told: Listing) -> Captured:
    facts = replace(
        bare_facts(),
        driver=Driver("answered", version=told.driver),
        gpus=tuple(_without_gaps(one) for one in told.gpus),
        gpu_pairs=told.pairs,
    )
    of_gpus = _checks(facts, {doubt.field for doubt in told.doubts})
    checks = of_gpus if told.pairs is None else ("gpu.topology",)
    damaged = told.damaged or next((doubt.why for doubt in told.doubts), twins(told.gpus))
    return Captured(kind=kind, facts=facts, checks=checks, damaged=damaged)


def _checks(facts: Facts, doubted: Collection[str] = ()) -> tuple[str, ...]:
    """The checks to whose question the text has an answer; all of them where it has none."""
    gpus = facts.gpus or ()
    if not gpus:
        return _ALL
    asked = [
        check
        for check, fields in _NEEDS.items()
        if any(_tells(one, fields) for one in gpus) or not set(fields).isdisjoint(doubted)
    ]
    failing = any(one.health is not None and one.health.errors for one in gpus)
    told = tuple(dict.fromkeys((*asked, *["gpu.readings"] * failing)))
    return told or tuple(check for check in _ALL if check not in _UNASKED)


def _without_gaps(one: Gpu) -> Gpu:
    """Where a reading is N/A, the other form of it that old drivers do not print is not there."""
    health = one.health
    if health is None:
        return one
    more = [
        name
        for fields in _NEEDS.values()
        if set(fields) & set(health.lacks) and all(reading(one, name) is None for name in fields)
        for name in fields
        if name not in (*health.lacks, *health.denied, *_failing(health))
    ]
    return replace(one, health=replace(health, lacks=(*health.lacks, *more))) if more else one


def _failing(health: GpuHealth) -> set[str]:
    return {line.partition(":")[0] for line in health.errors}


def _tells(one: Gpu, fields: Sequence[str]) -> bool:
    health = one.health or GpuHealth()
    refused = {*health.lacks, *health.denied, *_failing(health)}
    return any(reading(one, name) not in (None, "") or name in refused for name in fields)


def _failed(words: str) -> Captured:
    """nvidia-smi itself failed: the driver is judged by its words."""
    driver = Driver("error", error=words)
    return captured("nvidia-smi", ("host.driver_hung",), words, driver=driver)


def _with_inforoms(found: Captured, bad: Sequence[str]) -> Captured:
    if not bad:
        return found
    gpus = list(found.facts.gpus or ())
    known, corrupted = {one.bus_id for one in gpus}, frozenset(bad)
    gpus += [
        Gpu(index=len(gpus) + more, uuid="", name="", bus_id=name, health=GpuHealth())
        for more, name in enumerate(name for name in bad if name not in known)
    ]
    marked = tuple(
        replace(one, health=replace(one.health or GpuHealth(), inforom_valid=False))
        if one.bus_id in corrupted
        else one
        for one in gpus
    )
    facts = replace(found.facts, gpus=marked)
    return replace(found, facts=facts, checks=tuple(dict.fromkeys((*found.checks, "gpu.inforom"))))


def _with_lost(found: Captured, lost: Sequence[str]) -> Captured:
    if not lost:
        return found
    counted = len(found.facts.gpus or ()) + len(lost)
    facts = replace(
        found.facts,
        driver=replace(found.facts.driver, counted=counted),
        problems=(*found.facts.problems, *lost),
    )
    return replace(found, facts=facts, checks=tuple(dict.fromkeys((*found.checks, "gpu.count"))))
