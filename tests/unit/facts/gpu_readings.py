"""Readings of one made-up GPU, healthy but for what a test changes."""

from __future__ import annotations

from msgspec.structs import replace

from preflight.facts.gpu import GpuHealth, LinkErrors


def quiet_link(number: int, **changes: object) -> LinkErrors:
    """An NVLink at full speed that counted nothing."""
    return replace(LinkErrors(number, 26562, 0, 0, 0, 0), **changes)


def health(**changes: object) -> GpuHealth:
    """The readings of a healthy H100 that idles."""
    one = GpuHealth(
        vbios="96.00.89.00.01",
        inforom="G520.0200.00.05",
        inforom_valid=True,
        gsp_version="570.86.15",
        gsp_on=True,
        persistence=True,
        compute_mode="default",
        ecc_on=True,
        ecc_pending=True,
        mig_pending=False,
        ecc_volatile_corrected=0,
        ecc_volatile_uncorrected=0,
        ecc_aggregate_corrected=0,
        ecc_aggregate_uncorrected=0,
        sram_aggregate_uncorrected=0,
        sram_threshold_exceeded=False,
        remapped_corrected=0,
        remapped_uncorrected=0,
        remap_pending=False,
        remap_failed=False,
        banks_without_spares=0,
        retired_pages=0,
        retired_pending=False,
        recovery_action="none",
        clock_reasons=("idle",),
        hw_thermal_s=0.0,
        hw_brake_s=0.0,
        power_limit_w=700.0,
        power_default_w=700.0,
        power_draw_w=70.0,
        temperature_c=31,
        slowdown_c=89,
        margin_c=57,
        pcie_gen=5,
        pcie_gen_max=5,
        pcie_width=16,
        pcie_width_max=16,
        pcie_replays=0,
        performance_state="P0",
        utilization_pct=0,
        link_errors=tuple(quiet_link(number) for number in range(18)),
        fabric_state="completed",
        fabric_status="Success",
        memory_reserved_mib=551,
        bar1_total_mib=131072,
    )
    return replace(one, **changes)
