"""Where nvidia-smi prints each reading: in -q, in its XML and in csv, by old drivers and new.

A place is the end of a path of section names in lower case, parts joined by "/"; in csv, a column.
Where a reading has several, the first that is told stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from preflight.offline import smi_values as v

if TYPE_CHECKING:
    from collections.abc import Callable

PLACES: Final[tuple[tuple[str, Callable[[str], Any], tuple[str, ...]], ...]] = (
    ("vbios", v.words, ("vbios_version",)),
    ("inforom", v.words, ("inforom_version/image_version", "inforom_version/img_version",
                          "inforom.img", "inforom.image")),
    ("gsp_version", v.words, ("gsp_firmware_version", "gsp.mode.version")),
    ("persistence", v.switch, ("persistence_mode",)),
    ("compute_mode", v.compute_mode, ("compute_mode",)),
    ("ecc_on", v.switch, ("ecc_mode/current", "ecc_mode/current_ecc", "ecc.mode.current")),
    ("ecc_pending", v.switch, ("ecc_mode/pending", "ecc_mode/pending_ecc", "ecc.mode.pending")),
    ("mig_enabled", v.switch, ("mig_mode/current", "mig_mode/current_mig", "mig.mode.current")),
    ("mig_pending", v.switch, ("mig_mode/pending", "mig_mode/pending_mig", "mig.mode.pending")),
    ("sram_threshold_exceeded", v.switch, ("aggregate/sram_threshold_exceeded",)),
    ("remapped_corrected", v.number, ("remapped_rows/correctable_error",
                                      "remapped_rows/remapped_row_corr",
                                      "remapped_rows.correctable")),
    ("remapped_uncorrected", v.number, ("remapped_rows/uncorrectable_error",
                                        "remapped_rows/remapped_row_unc",
                                        "remapped_rows.uncorrectable")),
    ("remap_pending", v.switch, ("remapped_rows/pending", "remapped_rows/remapped_row_pending",
                                 "remapped_rows.pending", "remapped_rows")),
    ("remap_failed", v.switch, ("remapped_rows/remapping_failure_occurred",
                                "remapped_rows/remapped_row_failure", "remapped_rows.failure",
                                "remapped_rows")),
    ("banks_without_spares", v.number, ("bank_remap_availability_histogram/none",
                                        "row_remapper_histogram/row_remapper_histogram_none",
                                        "remapped_rows.histogram.none")),
    ("retired_pending", v.switch, ("retired_pages/pending_page_blacklist",
                                   "retired_pages/pending_retirement",
                                   "retired_pages/pending_blacklist", "retired_pages.pending",
                                   "retired_pages")),
    ("repair_pending", v.switch, ("channel_repair_pending", "tpc_repair_pending")),
    ("unrepairable", v.switch, ("unrepairable_memory",)),
    ("recovery_action", v.action, ("gpu_recovery_action",)),
    ("hw_thermal_s", v.seconds, ("counters/hw_thermal_slowdown",)),
    ("hw_brake_s", v.seconds, ("counters/hw_power_braking", "counters/hw_power_brake_slowdown")),
    ("power_limit_w", v.watts, ("gpu_power_readings/current_power_limit",
                               "power_readings/enforced_power_limit", "enforced.power.limit",
                               "power.limit", "power_readings/power_limit")),
    ("power_default_w", v.watts, ("gpu_power_readings/default_power_limit",
                                 "power_readings/default_power_limit", "power.default_limit")),
    ("power_draw_w", v.watts, ("gpu_power_readings/average_power_draw",
                              "gpu_power_readings/instantaneous_power_draw",
                              "gpu_power_readings/instant_power_draw",
                              "gpu_power_readings/power_draw", "power_readings/power_draw",
                              "power.draw")),
    ("fan_pct", v.percent, ("fan_speed", "fan.speed")),
    ("temperature_c", v.celsius, ("gpu_current_temp", "temperature/gpu_temp", "temperature.gpu")),
    ("memory_temperature_c", v.celsius, ("memory_current_temp", "temperature/memory_temp",
                                        "temperature.memory")),
    ("slowdown_c", v.celsius, ("gpu_slowdown_temp", "gpu_temp_slow_threshold")),
    ("margin_c", v.celsius, ("gpu_t_limit_temp", "gpu_temp_tlimit", "temperature.gpu.tlimit")),
    ("slowdown_at", v.celsius, ("gpu_slowdown_t_limit_temp", "gpu_temp_slow_tlimit_threshold")),
    ("pcie_gen", v.number, ("pcie_generation/current", "current_link_gen", "pcie.link.gen.current",
                            "pcie.link.gen.gpucurrent")),
    ("pcie_gen_max", v.number, ("pcie_generation/max", "max_link_gen", "pcie.link.gen.max")),
    ("pcie_width", v.lanes, ("link_width/current", "current_link_width",
                              "pcie.link.width.current")),
    ("pcie_width_max", v.lanes, ("link_width/max", "max_link_width", "pcie.link.width.max")),
    ("pcie_replays", v.number, ("replays_since_reset", "replay_counter")),
    ("performance_state", v.state, ("performance_state", "pstate")),
    ("utilization_pct", v.percent, ("utilization/gpu", "gpu_util", "utilization.gpu")),
    ("fabric_state", v.fabric, ("fabric/state", "fabric.state")),
    ("fabric_status", v.words, ("fabric/status", "fabric.status")),
    ("memory_reserved_mib", v.mebibytes, ("fb_memory_usage/reserved", "memory.reserved")),
    ("bar1_total_mib", v.mebibytes, ("bar1_memory_usage/total",)),
    ("memory_total_mib", v.mebibytes, ("fb_memory_usage/total", "memory.total")),
    ("memory_used_mib", v.mebibytes, ("fb_memory_usage/used", "memory.used")),
)  # fmt: skip

WANTED: Final = frozenset(place for _, _, places in PLACES for place in places)
