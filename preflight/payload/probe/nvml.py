"""Reads the GPUs through NVML; only in a guarded child, as any call may hang."""

from __future__ import annotations

import os
import time
from typing import Any, Callable

from . import gpu_health, guard, node_files
from .node_files import MIB, clean, clean_block
from .nvml_calls import NoDriver, Nvml, Reader, as_text, load

_REMOTE_KINDS = {0: "gpu", 1: "other", 2: "switch"}
"""nvmlIntNvLinkDeviceType_t; 1 is IBM's NPU."""


def read(nvml: Nvml, index: int, handle: Any, sysfs_root: str) -> dict[str, Any] | None:
    """Return one `Gpu` of the document; None for one without a UUID and a bus ID."""
    lib = nvml.lib
    uuid = nvml.text(lib.nvmlDeviceGetUUID, handle)
    reader = Reader(nvml, handle)
    pci = reader.checked("bus_id", lambda: nvml.ask(lib.nvmlDeviceGetPciInfo, handle))
    if not uuid and pci is None:
        return None
    bus_id = node_files.bus_id(as_text(pci.busId)) if pci is not None else ""
    device = f"{sysfs_root}/bus/pci/devices/{bus_id}" if bus_id else ""
    memory = reader.checked("memory_total_mib", lambda: _memory(nvml, handle))
    mig = reader.checked("mig_enabled", lambda: nvml.ask(lib.nvmlDeviceGetMigMode, handle))
    # MIG switches links off: unless it is known whether MIG is on, links are neither up nor dead.
    blind = reader.failed("mig_enabled")
    links = None if blind else reader.checked("links", lambda: _links(nvml, handle))
    name = reader.checked("name", lambda: nvml.text(lib.nvmlDeviceGetName, handle))
    minor = reader.checked("minor", lambda: nvml.ask(lib.nvmlDeviceGetMinorNumber, handle))
    health = gpu_health.read(reader, links)
    if hasattr(memory, "reserved"):
        health["memory_reserved_mib"] = memory.reserved // MIB
    compute = nvml.ask(lib.nvmlDeviceGetCudaComputeCapability, handle)
    return {
        "index": index,
        "compute": None if compute is None else "{}.{}".format(*compute),
        "uuid": uuid,
        "name": name or "",
        "bus_id": bus_id,
        "memory_total_mib": memory and memory.total // MIB,
        "memory_used_mib": memory and memory.used // MIB,
        "mig_enabled": None if mig is None else mig[0] == 1,
        "mig": _mig(nvml, handle) if mig and mig[0] == 1 else [],
        "links": links,
        "processes": _processes(nvml, handle),
        "pci_path": node_files.pci_path(device) if device else None,
        "numa": node_files.numa(device) if device else None,
        "health": health,
        "minor": minor,
    }


def _memory(nvml: Nvml, handle: Any) -> Any:
    """Return memory info; version 2 (R510) excludes the driver's own reserve."""
    newer = nvml.ask(nvml.lib.nvmlDeviceGetMemoryInfo, handle, nvml.lib.nvmlMemory_v2)
    return newer if newer or nvml.failed else nvml.ask(nvml.lib.nvmlDeviceGetMemoryInfo, handle)


def _mig(nvml: Nvml, handle: Any) -> list[dict[str, Any]]:
    most = nvml.ask(nvml.lib.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    slots = (
        nvml.ask(nvml.lib.nvmlDeviceGetMigDeviceHandleByIndex, handle, at) for at in range(most)
    )
    uuids = (nvml.text(nvml.lib.nvmlDeviceGetUUID, slot) for slot in slots if slot is not None)
    return [{"uuid": uuid} for uuid in uuids if uuid]


def _links(nvml: Nvml, handle: Any) -> list[dict[str, Any]] | None:
    """Return the GPU's NVLinks: NVML refuses numbers beyond the last, or all of them."""
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
        row = {"link": link, "up": state == 1, "remote": "", "remote_kind": "unknown"}
        if state == 1:
            remote = nvml.ask(lib.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            kind = nvml.ask(lib.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
            row["remote"] = node_files.bus_id(as_text(remote.busId)) if remote is not None else ""
            row["remote_kind"] = _REMOTE_KINDS.get(kind, "unknown")
        links.append(row)
    return links


def _processes(nvml: Nvml, handle: Any) -> list[dict[str, Any]] | None:
    """Return the processes with memory on it; with MIG, a process may appear once per instance."""
    compute = _running(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
    if compute is None:
        return None
    graphics = _running(nvml, "nvmlDeviceGetGraphicsRunningProcesses", handle) or []
    if nvml.failed:
        return None
    used: dict[int, int | None] = {}
    for process in compute:
        used[process.pid] = _plus(used.get(process.pid), process.usedGpuMemory)
    for process in graphics:
        used.setdefault(process.pid, _plus(None, process.usedGpuMemory))
    return [{"pid": pid, "used_mib": used[pid]} for pid in sorted(used)]


def _running(nvml: Nvml, call: str, handle: Any) -> Any:
    """Call the binding's version, which needs R510, or else that of R460."""
    answer = nvml.ask_by_name(call, handle)
    older = answer is None and nvml.refusal == nvml.lib.NVML_ERROR_FUNCTION_NOT_FOUND
    return nvml.ask_by_name(f"{call}_v2", handle) if older else answer


def _plus(mib: int | None, used_bytes: int | None) -> int | None:
    return mib if used_bytes is None else (mib or 0) + used_bytes // MIB


_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t in nvidia-smi's words; it has no word for 0 (two GPUs on one board)."""

_P2P = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "IOH topology not supported",
    4: "disabled by regkey",
    5: "not supported",
}
"""nvmlGpuP2PStatus_t."""

_CAPS = {"p2p_read": 0, "p2p_nvlink": 2}
"""nvmlGpuP2PCapsIndex_t, as numbers: pynvml's NVML_P2P_CAPS_INDEX_READ is a tuple by mistake."""


def read_pairs(nvml: Nvml, handles: dict[int, Any]) -> list[dict[str, Any]]:
    """Return one `GpuPair` for each pair of GPUs that answered, by index."""
    nvml.subject = "pairs of GPUs"
    return [_pair(nvml, a, b, handles) for a in handles for b in handles if a < b]


def _pair(nvml: Nvml, a: int, b: int, handles: dict[int, Any]) -> dict[str, Any]:
    pair_handles = handles[a], handles[b]
    level = nvml.ask(nvml.lib.nvmlDeviceGetTopologyCommonAncestor, *pair_handles)
    pair = {"a": a, "b": b, "ancestor": _ANCESTORS.get(level, "unknown")}
    for name, caps in _CAPS.items():
        status = nvml.ask(nvml.lib.nvmlDeviceGetP2PStatus, *pair_handles, caps)
        pair[name] = _P2P.get(status, "unknown")
    return pair


def survey(sysfs_root: str, begin: Callable[[], float]) -> dict[str, Any]:
    """Return `driver`, `gpus` and `gpu_pairs` of the document, and `problems`.

    `begin` is called at the start of each call. `driver` lacks the durations: only the parent can
    measure them; `opening` and `timed` are by our own clock.
    """
    try:
        pynvml = load()
        began = begin()
        try:
            pynvml.nvmlInit()
            opening = (began, time.monotonic() - began)
            return {**_document(Nvml(pynvml, begin), sysfs_root), "opening": opening}
        except pynvml.NVMLError as error:
            raise NoDriver("error", clean(str(error))) from None
    except NoDriver as none:
        return {
            "driver": {"state": none.state, "error": str(none)},
            "gpus": None,
            "gpu_pairs": None,
            "problems": [],
        }


def _document(nvml: Nvml, sysfs_root: str) -> dict[str, Any]:
    pynvml = nvml.lib
    version = nvml.text(pynvml.nvmlSystemGetDriverVersion)
    handles = {}
    count = pynvml.nvmlDeviceGetCount()
    for index in range(pynvml.nvmlDeviceGetCount()):
        nvml.subject = f"GPU {index}"
        handle = nvml.ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        if handle is not None:
            handles[index] = handle
        elif nvml.refusal == pynvml.NVML_ERROR_NO_PERMISSION:
            count -= 1  # it belongs to another job, so it is not missing here
    documents = {}
    for index, handle in handles.items():
        nvml.subject = f"GPU {index}"
        documents[index] = read(nvml, index, handle, sysfs_root)
    gpus = [gpu for gpu in documents.values() if gpu is not None]
    gpu_handles = {gpu["index"]: handles[gpu["index"]] for gpu in gpus}
    return {
        "driver": {"state": "answered", "version": version, "counted": count},
        "gpus": gpus,
        "gpu_pairs": read_pairs(nvml, gpu_handles),
        "problems": nvml.problems,
        "timed": nvml.timed,
    }


MOST_BYTES = 65536


def start() -> guard.Child | None:
    """Start `nvidia-smi topo -m` if installed; it takes seconds with some drivers."""
    folders = [*os.environ.get("PATH", "").split(":"), "/usr/bin", "/usr/local/bin"]
    return guard.spawn_tool(("nvidia-smi", "topo", "-m"), folders, most=MOST_BYTES)


def finish(child: guard.Child | None, until: float, problems: list[str]) -> str | None:
    """Return its output; None where it is not installed, failed, or did not end in time."""
    if child is None:
        return None
    ended = child.listen(until)
    has_ended = child.dismiss(kill=not ended or len(child.output) > MOST_BYTES)
    text = clean_block(bytes(child.output), MOST_BYTES)
    if ended and has_ended and child.status == 0:
        return text
    problem = "no answer in time" if not ended else f"it failed: {clean(text, 200)}"
    problems.append(f"nvidia-smi topo -m: {problem}")
    return None
