"""One GPU's health readings; a reading is None where NVML did not return it.

The reason matters: a board without ECC is no fault, an H100 that cannot read its counters is.
`lacks`, `denied` and `errors` list such readings by field name (`errors` also fields of `Gpu`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Annotated

from msgspec import Meta, Struct, convert, field

from preflight.core.files import shipped_table
from preflight.core.text import whole
from preflight.facts.basics import Count, Device, Index, Line, Seconds

Lines = Annotated[tuple[Line, ...], Meta(max_length=128)]
Celsius = Annotated[int, Meta(ge=-1000, le=1000)]
Watts = Annotated[float, Meta(ge=0, le=1e6)]


class LinkErrors(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """What one NVLink counted since the driver was loaded, and its speed."""

    link: Index
    mbps: Count | None = None
    replays: Count | None = None
    recoveries: Count | None = None
    """How often the link lost its training and trained again."""
    failed_recoveries: Count | None = None
    crc: Count | None = None
    """Flits with a wrong checksum (NVLink 5: packets received with errors)."""


class GpuHealth(Struct, frozen=True, forbid_unknown_fields=True):
    """The readings of one GPU at one moment, most of them since its driver was loaded."""

    lacks: Lines = ()
    """Readings that this board or driver does not have."""
    denied: Lines = ()
    """Readings that NVML refuses to this login."""
    errors: Lines = ()
    """Readings that failed otherwise, in NVML's words: "power_draw_w: Unknown Error"."""

    vbios: Line | None = None
    inforom: Line | None = None
    """Version of the InfoROM image."""
    inforom_valid: bool | None = None
    gsp_version: Line | None = None
    gsp_on: bool | None = None

    persistence: bool | None = None
    compute_mode: Device | None = None
    """"default", "exclusive_process", "exclusive_thread", "prohibited"."""
    ecc_on: bool | None = None
    ecc_pending: bool | None = None
    """Whether ECC is on after the next reset."""
    mig_pending: bool | None = None

    ecc_volatile_corrected: Count | None = None
    ecc_volatile_uncorrected: Count | None = None
    uncorrected_seen: bool | None = field(default=None, name="uncorrected_said")
    """A captured report shows that there were uncorrectable errors, but not how many."""
    ecc_aggregate_corrected: Count | None = None
    ecc_aggregate_uncorrected: Count | None = None
    """Over the life of the board."""
    sram_aggregate_uncorrected: Count | None = None
    sram_threshold_exceeded: bool | None = None
    """The driver reports that the SRAM has failed too often."""

    remapped_corrected: Count | None = None
    remapped_uncorrected: Count | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    banks_without_spares: Count | None = None
    """Memory banks without a spare row."""
    retired_pages: Count | None = None
    retired_pending: bool | None = None
    repair_pending: bool | None = None
    unrepairable: bool | None = None
    """Blackwell: a channel or TPC will be repaired at the next reset, or cannot be repaired."""
    recovery_action: Line | None = None
    """What the driver says must be done: "none", "GPU reset", "node reboot", "drain and reset"."""

    clock_reasons: Lines | None = None
    """What holds its clocks down now: "idle", "hw_thermal", "power_cap", ..."""
    hw_thermal_s: Seconds | None = None
    hw_brake_s: Seconds | None = None
    """How long that held its clocks down since the driver was loaded."""

    power_limit_w: Watts | None = None
    """What is enforced: the least of what was asked for and what the board allows."""
    power_default_w: Watts | None = None
    power_draw_w: Watts | None = None
    fan_pct: Index | None = None
    temperature_c: Celsius | None = None
    memory_temperature_c: Celsius | None = None
    slowdown_c: Celsius | None = None
    margin_c: Celsius | None = None
    """Degrees until the hardware slows down, where the driver reports it this way."""

    pcie_gen: Index | None = None
    pcie_gen_max: Index | None = None
    """The most that this board can do in this slot."""
    pcie_width: Index | None = None
    pcie_width_max: Index | None = None
    pcie_replays: Count | None = None
    performance_state: Line | None = None
    """"P0" at full speed to "P15"."""
    utilization_pct: Index | None = None

    link_errors: Annotated[tuple[LinkErrors, ...], Meta(max_length=64)] | None = None
    """One entry per NVLink that is up."""
    fabric_state: Line | None = None
    """State of its registration with the NVSwitch fabric: "completed", "not started", ..."""
    fabric_status: Line | None = None
    """Result of the registration: "Success", or NVML's words."""
    fabric_domain: Line | None = None
    """"cluster UUID/clique": GPUs of one are joined by NVLink, also in other nodes (GB200 NVL72).
    None within one node's NVSwitches, where the UUID is zero, and before registration."""
    fabric_trouble: Lines = ()
    """What is wrong by the fabric's health mask: "degraded bandwidth"."""

    memory_reserved_mib: Count | None = None
    bar1_total_mib: Count | None = None

    def refused(self, *names: str) -> bool:
        """Whether NVML failed to read any of these; unlike `lacks`, that proves nothing."""
        return bool(self.errors) and any(error.partition(":")[0] in names for error in self.errors)


class NewReading(Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of driver_readings.toml."""

    function: str
    branch: int


@cache
def newer_readings() -> dict[str, NewReading]:
    """The readings that came with a later branch of the driver than R450, by name."""
    return convert(shipped_table(__file__, "driver_readings.toml"), dict[str, NewReading])


def driver_too_old(version: str, readings: Iterable[str], subject: str) -> str:
    """Name the first branch that tells one of these, where `version` is older; else "".

    >>> driver_too_old("450.80.02", ["fabric_state"], "state of the NVSwitch fabric")
    'driver 450.80.02 has no state of the NVSwitch fabric; R525 or newer has'
    """
    branches = [newer_readings()[name].branch for name in readings if name in newer_readings()]
    branch = whole(version.partition(".")[0])
    if not branches or branch is None or branch >= min(branches):
        return ""
    return f"driver {version} has no {subject}; R{min(branches)} or newer has"
