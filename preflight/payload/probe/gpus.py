"""One GPU as NVML and sysfs know it; a value the driver will not give is None, never zero."""

from __future__ import annotations

from . import gpu_health, sysfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .nvml import Nvml

MIB = 1 << 20
_REMOTE_KINDS = {0: "gpu", 1: "other", 2: "switch"}
"""nvmlIntNvLinkDeviceType_t; 1 is IBM's NPU."""


def read(nvml: Nvml, index: int, handle: Any, sysfs_root: str) -> dict[str, Any] | None:
    """Return one `Gpu` of the document; None for one that cannot even say who it is."""
    lib = nvml.lib
    uuid = nvml.text(lib.nvmlDeviceGetUUID, handle)
    pci = nvml.ask(lib.nvmlDeviceGetPciInfo, handle)
    if not uuid and pci is None:
        return None
    bus_id = sysfs.bus_id(_text(pci.busId)) if pci is not None else ""
    device = f"{sysfs_root}/bus/pci/devices/{bus_id}" if bus_id else ""
    memory = _memory(nvml, handle)
    mig = nvml.ask(lib.nvmlDeviceGetMigMode, handle)
    links = _links(nvml, handle)
    health = gpu_health.read(nvml, handle, links)
    if hasattr(memory, "reserved"):
        health["memory_reserved_mib"] = memory.reserved // MIB
    compute = nvml.ask(lib.nvmlDeviceGetCudaComputeCapability, handle)
    return {
        "index": index,
        "compute": None if compute is None else "{}.{}".format(*compute),
        "uuid": uuid,
        "name": nvml.text(lib.nvmlDeviceGetName, handle),
        "bus_id": bus_id,
        "memory_total_mib": memory and memory.total // MIB,
        "memory_used_mib": memory and memory.used // MIB,
        "mig_enabled": None if mig is None else mig[0] == 1,
        "mig": _mig(nvml, handle) if mig and mig[0] == 1 else [],
        "links": links,
        "processes": _processes(nvml, handle),
        "pci_path": sysfs.pci_path(device) if device else None,
        "numa": sysfs.numa(device) if device else None,
        "cpus": sysfs.local_cpus(device) if device else "",
        "health": health,
        "minor": nvml.ask(lib.nvmlDeviceGetMinorNumber, handle),
    }


def _text(raw: bytes | str) -> str:
    return raw.decode("ascii", "replace") if isinstance(raw, bytes) else raw


def _memory(nvml: Nvml, handle: Any) -> Any:
    """Return memory info; version 2 (R510) leaves out what the driver keeps for itself."""
    newer = nvml.ask(nvml.lib.nvmlDeviceGetMemoryInfo, handle, nvml.lib.nvmlMemory_v2)
    return newer or nvml.ask(nvml.lib.nvmlDeviceGetMemoryInfo, handle)


def _mig(nvml: Nvml, handle: Any) -> list[dict[str, Any]]:
    most = nvml.ask(nvml.lib.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    slots = (
        nvml.ask(nvml.lib.nvmlDeviceGetMigDeviceHandleByIndex, handle, at) for at in range(most)
    )
    uuids = (nvml.text(nvml.lib.nvmlDeviceGetUUID, slot) for slot in slots if slot is not None)
    return [{"uuid": uuid} for uuid in uuids if uuid]


def _links(nvml: Nvml, handle: Any) -> list[dict[str, Any]] | None:
    """Return the NVLinks it has: NVML refuses numbers beyond the last, or all of them."""
    lib = nvml.lib
    links = []
    for link in range(lib.NVML_NVLINK_MAX_LINKS):
        state = nvml.ask(lib.nvmlDeviceGetNvLinkState, handle, link)
        if nvml.refusal == lib.NVML_ERROR_INVALID_ARGUMENT:
            break
        if nvml.refusal == lib.NVML_ERROR_NOT_SUPPORTED:
            continue
        if state is None:
            return None
        links.append(_link(nvml, handle, link, up=state == 1))
    return links


def _link(nvml: Nvml, handle: Any, link: int, *, up: bool) -> dict[str, Any]:
    remote = nvml.ask(nvml.lib.nvmlDeviceGetNvLinkRemotePciInfo, handle, link) if up else None
    kind = nvml.ask(nvml.lib.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link) if up else None
    return {
        "link": link,
        "up": up,
        "remote": sysfs.bus_id(_text(remote.busId)) if remote is not None else "",
        "remote_kind": "unknown" if kind is None else _REMOTE_KINDS.get(kind, "unknown"),
    }


def _processes(nvml: Nvml, handle: Any) -> list[dict[str, Any]] | None:
    """Return who holds memory on it; under MIG one process may appear once per instance."""
    compute = nvml.ask(nvml.lib.nvmlDeviceGetComputeRunningProcesses, handle)
    if compute is None:
        return None
    graphics = nvml.ask(nvml.lib.nvmlDeviceGetGraphicsRunningProcesses, handle) or []
    used: dict[int, int | None] = {}
    for one in compute:
        used[one.pid] = _plus(used.get(one.pid), one.usedGpuMemory)
    for one in graphics:
        used.setdefault(one.pid, _plus(None, one.usedGpuMemory))
    return [{"pid": pid, "used_mib": used[pid]} for pid in sorted(used)]


def _plus(mib: int | None, used_bytes: int | None) -> int | None:
    return mib if used_bytes is None else (mib or 0) + used_bytes // MIB
