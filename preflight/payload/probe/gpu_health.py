"""Reads a GPU's health from NVML; a reading that NVML refuses does not affect the others."""

from __future__ import annotations

from typing import Any

from .node_files import clean
from .nvml_calls import MOST, Reader, reasons

_STATES = {1: "not started", 2: "in progress", 3: "completed"}
"""nvmlGpuFabricState_t; 0 is "not supported"."""

_COMPLETED = 3

_AGAINST = (
    (0, "degraded bandwidth"),
    (2, "route recovery in progress"),
    (4, "route unhealthy"),
    (6, "access timeout recovery"),
)
"""Fields of two bits in the health mask: 1 is yes, 2 is no."""

_WRONG_SETUP_AT, _WRONG_SETUP_MASK = 8, 0xF
_WRONG_SETUP = {
    2: "incorrect system GUID",
    3: "incorrect chassis serial number",
    4: "no partition",
    5: "insufficient NVLinks",
    6: "incompatible GPU firmware",
    7: "invalid location",
    8: "invalid GPU state",
}


def read_gpu_fabric(reader: Reader) -> None:
    """Fill the fields `fabric_...` from the newest structure that the driver knows."""
    forms = (
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"),
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
        ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
    )
    info = _filled(reader, "fabric_state", forms)
    if info is None:
        return
    lib = reader.nvml.lib
    if info.state == 0:
        reader.refuse("fabric_state", lib.NVML_ERROR_NOT_SUPPORTED)
        return
    reader.values["fabric_state"] = _STATES.get(info.state, f"state {info.state}")
    status = clean(str(lib.NVMLError(info.status))) if info.status else "Success"
    reader.values["fabric_status"] = status
    cluster = _cluster(info)
    if info.state == _COMPLETED and cluster.strip("0-"):  # zeros are no domain: NCCL's src/mnnvl.cc
        reader.values["fabric_domain"] = f"{cluster}/{info.cliqueId}"
    reader.values["fabric_trouble"] = _trouble(getattr(info, "healthMask", 0))


def sram_threshold(reader: Reader) -> None:
    """Fill `sram_threshold_exceeded` (R550 and later)."""
    forms = (("nvmlDeviceGetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t"),)
    status = _filled(reader, "sram_threshold_exceeded", forms)
    if status is not None:
        reader.values["sram_threshold_exceeded"] = bool(status.bThresholdExceeded)


def _filled(reader: Reader, field: str, forms: tuple[tuple[str, str], ...]) -> Any:
    """Return the first structure that this driver and this pynvml both know; None without one."""
    import ctypes

    lib = reader.nvml.lib
    code: int = lib.NVML_ERROR_FUNCTION_NOT_FOUND
    for call, kind in forms:
        structure = getattr(lib, kind, None)
        if structure is None:
            continue
        form = structure()
        reader.nvml.ask_by_name(call, reader.handle, ctypes.byref(form))
        if reader.nvml.refusal is None:
            return form
        code = reader.nvml.refusal
        if code not in (
            lib.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            lib.NVML_ERROR_FUNCTION_NOT_FOUND,
            lib.NVML_ERROR_INVALID_ARGUMENT,
        ):
            break
    reader.refuse(field, code)
    return None


def _cluster(info: Any) -> str:
    """Format the UUID: importing the module `uuid` would take milliseconds."""
    import ctypes

    # The bytes themselves: an array of characters would end at the first zero.
    address = ctypes.addressof(info) + type(info).clusterUuid.offset
    text = ctypes.string_at(address, 16).hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _trouble(mask: int) -> list[str]:
    troubles = [words for bit, words in _AGAINST if mask >> bit & 3 == 1]
    setup = mask >> _WRONG_SETUP_AT & _WRONG_SETUP_MASK
    return troubles + ([_WRONG_SETUP[setup]] if setup in _WRONG_SETUP else [])


_FIELDS = {
    "mbps": (164,),
    "replays": (161,),
    "recoveries": (162, 215),
    "crc": (163, 208),
    "failed_recoveries": (214,),
}
"""nvml.h, field ids whose scope is the link: those of NVLink up to 4, then those of NVLink 5."""

_OLD_COUNTERS = {"replays": 0, "recoveries": 1, "crc": 2}
"""nvmlNvLinkErrorCounter_t, for drivers that do not know the fields."""


def read_gpu_links(reader: Reader, nvlinks: list[dict[str, Any]] | None) -> None:
    """Fill `link_errors`, of the links that are up; a GPU without NVLinks lacks it."""
    links = [link["link"] for link in nvlinks or () if link["up"]]
    if links:
        reader.derive("link_errors", lambda: _read_links(reader, links))
    elif nvlinks:
        reader.values["link_errors"] = []
    elif nvlinks is not None:
        reader.refuse("link_errors", reader.nvml.lib.NVML_ERROR_NOT_SUPPORTED)


def _read_links(reader: Reader, links: list[int]) -> list[dict[str, Any]] | None:
    """Read all links in one call; link by link only where NVML refuses that."""
    asks = [(link, name, number) for link in links for name in _FIELDS for number in _FIELDS[name]]
    answers = reader.nvml.fields(reader.handle, [(number, link) for link, _, number in asks])
    rows: dict[int, dict[str, Any]] = {link: {"link": link} for link in links}
    for (link, name, _), (value, code) in zip(asks, answers):  # noqa: B905 - Python 3.8
        if code is None and 0 <= value <= MOST:
            rows[link][name] = max(value, rows[link].get(name, 0))
    if all(len(row) == 1 for row in rows.values()):
        _read_links_singly(reader, rows)
    return list(rows.values()) if any(len(row) > 1 for row in rows.values()) else None


def _read_links_singly(reader: Reader, rows: dict[int, dict[str, Any]]) -> None:
    call = "nvmlDeviceGetNvLinkErrorCounter"
    for link, row in rows.items():
        for name, kind in _OLD_COUNTERS.items():
            value = reader.nvml.ask_by_name(call, reader.handle, link, kind)
            if value is not None:
                row[name] = value


_COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
_RECOVERY = {
    0: "none",
    1: "GPU reset",
    2: "node reboot",
    3: "drain P2P",
    4: "drain and reset",
    5: "recover IMEX domain",
    6: "bus reset",
    7: "system reboot",
}
"""nvmlDeviceGpuRecoveryAction_t."""

# nvml.h: field ids that older pynvml does not name.
_RETIRED_SINGLE, _RETIRED_DOUBLE = 29, 30
_MEMORY_TEMPERATURE, _SLOWDOWN_TLIMIT = 82, 194
_RESET_STATUS, _DRAIN_STATUS, _RECOVERY_ACTION = 226, 227, 230
_HW_THERMAL_NS, _HW_BRAKE_NS = 270, 271
_CORRECTED, _UNCORRECTED, _VOLATILE, _AGGREGATE, _SRAM = 0, 1, 0, 1, 7
_SLOWDOWN_THRESHOLD = 1
_CORRUPTED_INFOROM = 14
_PCIE_GEN = "nvmlDeviceGetCurrPcieLinkGeneration"


def read(reader: Reader, links: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Return one `GpuHealth` of the document; `links` are its NVLinks, None where not known."""
    nvml, handle = reader.nvml, reader.handle
    _software(reader)
    _modes(reader)
    _memory_errors(reader)
    before = nvml.ask_by_name(_PCIE_GEN, handle) or 0
    refusal = nvml.refusal if nvml.failed else None
    _heat_and_power(reader)
    _pcie(reader, before)
    if refusal is not None and reader.values.pop("pcie_gen", None) is not None:
        reader.refuse("pcie_gen", refusal)
    reader.derive("recovery_action", lambda: _action(reader))
    read_gpu_links(reader, links)
    read_gpu_fabric(reader)
    return reader.document()


def _software(reader: Reader) -> None:
    reader.take("vbios", "nvmlDeviceGetVbiosVersion", via=clean)
    reader.take("inforom", "nvmlDeviceGetInforomImageVersion", via=clean)
    reader.take("gsp_version", "nvmlDeviceGetGspFirmwareVersion", via=clean)
    reader.take("gsp_on", "nvmlDeviceGetGspFirmwareMode", via=lambda modes: modes[0] == 1)
    reader.nvml.ask_by_name("nvmlDeviceValidateInforom", reader.handle)
    if reader.nvml.refusal in (None, _CORRUPTED_INFOROM):
        reader.values["inforom_valid"] = reader.nvml.refusal is None
    else:
        reader.refuse("inforom_valid", reader.nvml.refusal)


def _modes(reader: Reader) -> None:
    reader.take("persistence", "nvmlDeviceGetPersistenceMode", via=bool)
    names = _COMPUTE_MODES.get
    reader.take("compute_mode", "nvmlDeviceGetComputeMode", via=lambda at: names(at, f"mode {at}"))
    reader.take("ecc_on", "nvmlDeviceGetEccMode", via=lambda modes: modes[0] == 1)
    reader.take("ecc_pending", "nvmlDeviceGetEccMode", via=lambda modes: modes[1] == 1)
    reader.take("mig_pending", "nvmlDeviceGetMigMode", via=lambda modes: modes[1] == 1)
    reader.take(
        "bar1_total_mib", "nvmlDeviceGetBAR1MemoryInfo", via=lambda bar: bar.bar1Total >> 20
    )


def _memory_errors(reader: Reader) -> None:
    total = "nvmlDeviceGetTotalEccErrors"
    reader.take("ecc_volatile_corrected", total, _CORRECTED, _VOLATILE)
    reader.take("ecc_volatile_uncorrected", total, _UNCORRECTED, _VOLATILE)
    reader.take("ecc_aggregate_corrected", total, _CORRECTED, _AGGREGATE)
    reader.take("ecc_aggregate_uncorrected", total, _UNCORRECTED, _AGGREGATE)
    counter = "nvmlDeviceGetMemoryErrorCounter"
    reader.take("sram_aggregate_uncorrected", counter, _UNCORRECTED, _AGGREGATE, _SRAM)
    sram_threshold(reader)
    names = {"remapped_corrected": int, "remapped_uncorrected": int, "remap_pending": bool,
             "remap_failed": bool}  # fmt: skip
    answer = reader.nvml.ask_by_name("nvmlDeviceGetRemappedRows", reader.handle)
    for index, (name, via) in enumerate(names.items()):
        if answer is None:
            reader.refuse(name, reader.nvml.refusal or 0)
        else:
            reader.values[name] = via(answer[index])
    histogram = "nvmlDeviceGetRowRemapperHistogram"
    reader.take("banks_without_spares", histogram, via=lambda banks: banks.none)
    pending = "nvmlDeviceGetRetiredPagesPendingStatus"
    reader.take("retired_pending", pending, via=bool)
    reader.take("repair_pending", "nvmlDeviceGetRepairStatus", via=any)
    reader.derive("retired_pages", lambda: _retired(reader))


def _retired(reader: Reader) -> int | None:
    counts = reader.nvml.fields(reader.handle, [_RETIRED_SINGLE, _RETIRED_DOUBLE])
    return None if any(code for _, code in counts) else sum(pages for pages, _ in counts)


def _heat_and_power(reader: Reader) -> None:
    reader.take("clock_reasons", reader.nvml.reasons_call(), via=reasons)
    reader.take("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", via=_watts)
    reader.take("power_default_w", "nvmlDeviceGetPowerManagementDefaultLimit", via=_watts)
    reader.take("power_draw_w", "nvmlDeviceGetPowerUsage", via=_watts)
    reader.take("fan_pct", "nvmlDeviceGetFanSpeed")
    reader.take("temperature_c", "nvmlDeviceGetTemperature", 0)
    reader.take("slowdown_c", "nvmlDeviceGetTemperatureThreshold", _SLOWDOWN_THRESHOLD)
    reader.take("performance_state", "nvmlDeviceGetPerformanceState", via=lambda state: f"P{state}")
    reader.take("utilization_pct", "nvmlDeviceGetUtilizationRates", via=lambda rates: rates.gpu)
    reader.fields(
        {
            "memory_temperature_c": (_MEMORY_TEMPERATURE, 1),
            "hw_thermal_s": (_HW_THERMAL_NS, 1e-9),
            "hw_brake_s": (_HW_BRAKE_NS, 1e-9),
        }
    )
    reader.derive("margin_c", lambda: _margin(reader))


def _margin(reader: Reader) -> int | None:
    """T.Limit counts down to the maximum of operation; the slowdown is a little below zero."""
    ((slowdown, _),) = reader.nvml.fields(reader.handle, [_SLOWDOWN_TLIMIT])
    margin = reader.nvml.ask_by_name("nvmlDeviceGetMarginTemperature", reader.handle)
    return None if margin is None else int(margin) - slowdown


def _watts(milliwatts: int) -> float:
    return round(milliwatts / 1000, 1)


def _pcie(reader: Reader, before: int) -> None:
    """Read the PCIe link. `before`: its generation before the readings of load.

    It falls when the GPU is idle: it is low only if it was low before and after those readings.
    """
    reader.take("pcie_gen", _PCIE_GEN, via=lambda now: max(now, before))
    reader.take("pcie_gen_max", "nvmlDeviceGetMaxPcieLinkGeneration")
    reader.take("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth")
    reader.take("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth")
    reader.take("pcie_replays", "nvmlDeviceGetPcieReplayCounter")


def _action(reader: Reader) -> str | None:
    """Read the recovery action (R570), or the two older fields that it replaced."""
    ((action, code),) = reader.nvml.fields(reader.handle, [_RECOVERY_ACTION])
    if code is None:
        return _RECOVERY.get(action, f"action {action}")
    fields = [_RESET_STATUS, _DRAIN_STATUS]
    (reset, code), (drain, _) = reader.nvml.fields(reader.handle, fields)
    if code is not None:
        return None
    return "GPU reset" if reset else "drain and reset" if drain else "none"
