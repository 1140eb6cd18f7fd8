"""The speed that known hardware must reach at least: a limit for nodes without peers.

Two nodes have no peers, and of a fleet in which all are slow none is slower than its peers. What
the site set comes before what it learned, and that before what is shipped; a number says which.
"""

from __future__ import annotations

import re
from datetime import date
from functools import cache
from typing import Final, Literal

import msgspec
from msgspec import Struct

from preflight.core.files import shipped_table
from preflight.fleet.model import Expected

_FAMILY = re.compile(r"(?<![A-Z0-9])(A100|H100|H200|B200)(?![0-9])")
_OTHER_BOARD = re.compile(r"PCIE|NVL(?!INK)|MIG|VGPU|GRACE")
"""Boards of the same name with other clocks, memory and links; none of their numbers is shipped."""

_SXM = re.compile(r"SXM|HGX|DGX|HBM3")
_ALWAYS_SXM = ("H200", "B200")
"""NVML calls the other boards of these by a longer name ("H200 NVL")."""

_LINKS = {"A100": 12, "H100": 18}
_NODE = 8


def gpu_platform(expected: Expected) -> str | None:
    """The expected platform: "H100 SXM"; None where none is expected or none is surely meant.

    "H100" alone may be a PCIe card: it counts as SXM with eight GPUs and all links of the SXM.
    """
    text = (expected.gpu_model or "").upper()
    match = _FAMILY.search(text)
    if match is None or _OTHER_BOARD.search(text):
        return None
    family = match[1]
    eight_linked = expected.gpus == _NODE and expected.nvlinks_per_gpu == _LINKS.get(family)
    if family in _ALWAYS_SXM or _SXM.search(text) or eight_linked:
        return f"{family} SXM"
    return None


LINKS: Final = {"ib": "InfiniBand", "roce": "RoCE"}
"""What `nic_link` may be."""

Kind = Literal["spec", "shipped threshold", "measured", "chosen"]
Measure = Literal["gemm_bf16", "hbm_copy", "h2d", "d2h", "p2p", "all_reduce", "launch"]

UNITS: Final[dict[str, str]] = {
    "gemm_bf16": "TFLOP/s",
    "hbm_copy": "GB/s",
    "h2d": "GB/s",
    "d2h": "GB/s",
    "p2p": "GB/s",
    "all_reduce": "GB/s busbw",
    "rail": "GB/s busbw",
    "launch": "us",
}
"""Every measure that a site may set or learn a number of. `rail`: a pair of nodes on one rail."""

TIMES: Final = ("launch",)
"""Measures of which less is better: their `least` is the most that is accepted."""


class RailBaseline(Struct, frozen=True, forbid_unknown_fields=True):
    """One entry [rail.LINK-GBITS]."""

    value: float
    unit: str
    ceiling: float
    kind: Kind
    source: str
    date: date


class GpuBaseline(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One entry [[gpu]]: what a healthy one reaches, and what is accepted of it."""

    gpu: str
    measure: Measure
    fabric: str = ""
    transport: str = ""
    algorithm: str = ""
    from_mib: int = 0
    value: float
    least: float
    unit: str
    ceiling: float
    ceiling_source: str
    kind: Kind
    source: str
    least_source: str
    date: date


class SiteShare(Struct, frozen=True, forbid_unknown_fields=True):
    """What part of a site's own number is the least (of a time: what multiple is the most)."""

    share: float
    most: float
    source: str
    kind: Kind
    date: date


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    site: SiteShare
    rail: dict[str, RailBaseline]
    gpu: tuple[GpuBaseline, ...]


class Floor(Struct, frozen=True, kw_only=True):
    """The least of one measure (for a time: the most), the part it is for, and its source.

    "0.85 of 702 learned 2026-11-22 (fleet.toml [group.train])", "floor for H100 SXM, ...".
    """

    value: float
    unit: str
    origin: str
    """Which number decides, ready for a sentence."""
    from_bytes: int = 0
    """It counts for messages of this size and larger."""


@cache
def baselines() -> _File:
    """Every shipped number."""
    return msgspec.convert(shipped_table(__file__, "baselines.toml"), _File)


def highest_ceiling(measure: str) -> float | None:
    """What physics allows the fastest known part, in the unit of `UNITS`; None for times."""
    if measure == "rail":
        return max(entry.ceiling for entry in baselines().rail.values())
    ceilings = [entry.ceiling for entry in baselines().gpu if entry.measure == measure]
    return max(ceilings, default=None) if measure not in TIMES else None


def gpu_floor(expected: Expected, measure: Measure, *, algorithm: str = "") -> Floor | None:
    """Return the floor of a measure for the expected GPU; None if none is expected or known.

    Without an algorithm the lowest known floor counts. The unit is that of `UNITS`.
    """
    if site := _site_floor(expected, measure):
        return site
    why = f"as expected by {expected.origin or 'the inventory'}"
    return _floor(gpu_platform(expected), measure, why, algorithm)


def gpu_floor_of_model(model: str, measure: Measure) -> Floor | None:
    """Return the shipped floor of a GPU by its driver's name for it; None if none is known."""
    return _floor(gpu_platform(Expected(gpu_model=model)), measure, f"a {model} by its driver")


def _floor(platform: str | None, measure: Measure, why: str, algorithm: str = "") -> Floor | None:
    entries = [
        entry
        for entry in baselines().gpu
        if (entry.gpu, entry.measure) == (platform, measure)
        and (not algorithm or entry.algorithm in ("", algorithm))
    ]
    if not entries:
        return None
    least = min(entries, key=lambda entry: entry.least)
    how = f" by {least.algorithm}" if least.algorithm else ""
    return Floor(
        value=least.least,
        unit=least.unit,
        origin=f"floor for {least.gpu}{how}, {why}; "
        f"healthy ones reach {least.value:g} ({least.kind})",
        from_bytes=least.from_mib << 20,
    )


def _site_floor(expected: Expected, measure: str) -> Floor | None:
    """Return the site's floor: its limit, else its baseline times the share that must be met."""
    unit = UNITS[measure]
    if override := expected.limits.get(measure):
        origin = f"limit {measure} of {override.where}"
        return Floor(value=override.value, unit=unit, origin=origin)
    if not (override := expected.baselines.get(measure)):
        return None
    share = baselines().site.most if measure in TIMES else baselines().site.share
    origin = f"{share:g} of the baseline {override.value:g} of {override.where}"
    return Floor(value=override.value * share, unit=unit, origin=origin)


def rail_floor(expected: Expected) -> Floor | None:
    """Return the floor of a rail with the expected NIC, GB/s; None if none is expected or known.

    Without an expected link type the lower floor counts. All rails run at once: if fewer NICs
    than GPUs are expected, rails share them.
    """
    if site := _site_floor(expected, "rail"):
        return site
    rate = expected.nic_gbits
    if rate is None:
        return None
    links = LINKS if expected.nic_link is None else (expected.nic_link,)
    entries = [entry for link in links if (entry := baselines().rail.get(f"{link}-{rate}"))]
    if not entries:
        return None
    link = "" if expected.nic_link is None else f"{LINKS[expected.nic_link]} "
    share, shared = 1.0, ""
    if expected.nics and expected.gpus and expected.nics < expected.gpus:
        share = expected.nics / expected.gpus
        shared = f", {expected.nics} for {expected.gpus} GPUs"
    least = min(entry.value for entry in entries)
    where = f", expected by {expected.origin}" if expected.origin else ""
    origin = f"floor for {rate} Gb/s {link}NICs{shared}{where}"
    return Floor(value=least * share, unit=UNITS["rail"], origin=origin)
