"""A NIC that may not read GPU memory directly halves its rail; what decides it lies in sysfs."""

from __future__ import annotations

import os

from . import config_space, sysfs
from .text import attempt, clean, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_PEERMEM = ("nvidia_peermem", "nv_peer_mem")
_NVIDIA = "0x10de"
_DISPLAY = "0x03"
"""PCI class of GPUs: 0x0300 with a screen, 0x0302 without."""


def survey(root: str, proc: str = "/proc") -> dict[str, Any]:
    """Return a `GpuDirect` document; what cannot be read is None in it."""
    gpus = [path for path in _devices(root) if _is_gpu(path)]
    nics = [f"{root}/class/infiniband/{name}/device" for name in _list(root + "/class/infiniband")]
    return {
        "peermem": _peermem(root),
        "open_modules": _open_modules(proc),
        "iommu": _iommu([*gpus, *nics]),
        "acs": _acs(root, gpus, nics),
        "machine": clean(os.uname().machine),
    }


def _peermem(root: str) -> bool | None:
    if os.path.exists(root + "/kernel/mm/memory_peers/nv_mem"):
        return True
    modules = _list(root + "/module")
    return any(name in modules for name in _PEERMEM) if modules else None


def _open_modules(proc: str) -> bool | None:
    try:
        return "Open Kernel Module" in read(proc + "/driver/nvidia/version")
    except OSError:
        return None


def _iommu(devices: Iterable[str]) -> str | None:
    """How devices are mapped, in the kernel's words; the strictest where they differ."""
    kinds = set()
    for device in devices:
        grouped = os.path.exists(device + "/iommu_group")
        kinds.add((attempt(device + "/iommu_group/type") or "unknown") if grouped else "none")
    if not kinds or kinds == {"unknown"}:
        return None
    mapped = sorted(kinds - {"none", "identity", "unknown"})
    return mapped[0] if mapped else "identity" if "identity" in kinds else "none"


def _acs(root: str, gpus: list[str], nics: list[str]) -> list[dict[str, Any]] | None:
    """The ACS of each PCIe port between a GPU and a NIC that share a switch."""
    paths = [sysfs.pci_path(device) or [] for device in (*gpus, *nics)]
    ways = {tuple(path) for path in paths if path}
    between = {
        port
        for gpu in (tuple(path) for path in paths[: len(gpus)])
        for nic in ways - {tuple(path) for path in paths[: len(gpus)]}
        for port in _below_meeting(gpu, nic)
    }
    found, hidden = [], False
    for port in sorted(between):
        readable, bits = config_space.acs(f"{root}/bus/pci/devices/{port}/config")
        hidden = hidden or not readable
        if bits is not None:
            found.append({"bus_id": port, **bits})
    return None if hidden else found[:256]


def _below_meeting(a: tuple[str, ...], b: tuple[str, ...]) -> list[str]:
    """Ports under the switch in which two devices meet; none where only the root joins them."""
    shared = 0
    for one, other in zip(a, b):  # noqa: B905 (Python 3.8)
        if one != other:
            break
        shared += 1
    # The root complex and the root port are shared by all behind one port: no switch, no shortcut.
    if shared < 3:  # noqa: PLR2004 (pciXXXX:XX, root port, upstream port of a switch)
        return []
    return [*a[shared:-1], *b[shared:-1]]


def _is_gpu(device: str) -> bool:
    return attempt(device + "/vendor") == _NVIDIA and attempt(device + "/class")[:4] == _DISPLAY


def _devices(root: str) -> list[str]:
    return [f"{root}/bus/pci/devices/{name}" for name in _list(root + "/bus/pci/devices")]


def _list(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
