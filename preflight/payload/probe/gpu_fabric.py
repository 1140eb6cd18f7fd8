"""Answers of NVML that need a versioned structure: the NVSwitch fabric, and the SRAM's health."""

from __future__ import annotations

import uuid

from .text import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .gpu_reader import Reader

_STATES = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
"""nvmlGpuFabricState_t."""

_COMPLETED = 3

_AGAINST = (
    (0, "degraded bandwidth"),
    (2, "route recovery in progress"),
    (4, "route unhealthy"),
    (6, "access timeout recovery"),
)
"""Where two bits of the health mask say 1 for yes, 2 for no."""

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


def read(reader: Reader) -> None:
    """Fill the fields `fabric_...`, by the newest form there is."""
    forms = (
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"),
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
        ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
    )
    info = _filled(reader, "fabric_state", forms)
    if info is None:
        return
    state = _STATES.get(info.state, f"state {info.state}")
    if info.state == 0:
        reader.refuse("fabric_state", reader.nvml.lib.NVML_ERROR_NOT_SUPPORTED)
        return
    reader.values["fabric_state"] = state
    reader.values["fabric_status"] = _words(reader, info.status)
    cluster = _cluster(info)
    if info.state == _COMPLETED and any(cluster):  # zeros are no domain: NCCL's src/mnnvl.cc
        reader.values["fabric_domain"] = f"{uuid.UUID(bytes=cluster)}/{info.cliqueId}"
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


def _cluster(info: Any) -> bytes:
    """Read the bytes themselves: an array of characters would end at the first zero."""
    import ctypes

    return ctypes.string_at(ctypes.addressof(info) + type(info).clusterUuid.offset, 16)


def _words(reader: Reader, status: int) -> str:
    return "Success" if status == 0 else clean(str(reader.nvml.lib.NVMLError(status)))


def _trouble(mask: int) -> list[str]:
    found = [words for at, words in _AGAINST if mask >> at & 3 == 1]
    setup = mask >> _WRONG_SETUP_AT & _WRONG_SETUP_MASK
    return found + ([_WRONG_SETUP[setup]] if setup in _WRONG_SETUP else [])
