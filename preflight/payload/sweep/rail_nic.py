"""The NIC of a rail is the one next to its GPU: where sysfs says so, NCCL is held to it.

Left to choose, NCCL may carry one GPU's data over another's NIC, and hide the one under test.
"""

from __future__ import annotations

import itertools
import os

from probe import sysfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_ROOT_ONLY = 1
_ACTIVE = "ACTIVE"


def bus_id(torch: Any, gpu: int, by_uuid: Callable[[str], str | None]) -> str | None:
    """The PCI address of one of torch's GPUs as sysfs spells it; None where nobody tells.

    torch tells it from 2.8 on (torch/csrc/cuda/Module.cpp), CUDA's driver library always, and both
    count as CUDA_VISIBLE_DEVICES has it. Where that library is not found, `by_uuid` asks NVML,
    which counts otherwise, for the UUID that torch tells (from 2.5 on).
    """
    known = torch.cuda.get_device_properties(gpu)
    try:
        return f"{known.pci_domain_id:04x}:{known.pci_bus_id:02x}:{known.pci_device_id:02x}.0"
    except AttributeError:
        told = _by_driver(gpu)
    uuid = getattr(known, "uuid", None)
    return by_uuid(f"GPU-{uuid}") if told is None and uuid is not None else told


def _by_driver(gpu: int) -> str | None:
    """Ask the library that torch uses: the function has been the same since CUDA 4.1."""
    import ctypes

    device, text = ctypes.c_int(), ctypes.create_string_buffer(32)
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        failed = (
            cuda.cuInit(0)
            or cuda.cuDeviceGet(ctypes.byref(device), gpu)
            or cuda.cuDeviceGetPCIBusId(text, len(text), device)
        )
    except (OSError, AttributeError):
        return None
    return None if failed else sysfs.bus_id(text.value.decode("ascii")) or None


def nearest(root: str, gpu_bus_id: str, allowed: str = "") -> tuple[str, ...]:
    """RDMA devices with an active port that share the longest PCI path with the GPU.

    `allowed`: NCCL_IB_HCA as the job has it. Nothing where none shares more than the root complex:
    then which NIC serves the GPU is NCCL's choice. Several where they are equally near.
    """
    gpu = _path(f"{root}/bus/pci/devices/{gpu_bus_id}")
    shared: dict[str, int] = {}
    folder = root + "/class/infiniband"
    for name in _names(folder):
        if permits(allowed, name) and _active(f"{folder}/{name}"):
            nic = _path(f"{folder}/{name}/device")
            shared[name] = _together(gpu, nic)
    most = max(shared.values(), default=0)
    if most <= _ROOT_ONLY:
        return ()
    return tuple(name for name, steps in shared.items() if steps == most)


def permits(spec: str, name: str) -> bool:
    """Whether NCCL_IB_HCA lets NCCL use a device: a list, "^" excludes, "=" is for whole names.

    Names are prefixes without "="; ports after a colon are not looked at. Source: NCCL's env.rst.
    """
    exclude, exact = spec.startswith("^"), spec.lstrip("^").startswith("=")
    names = [each.partition(":")[0] for each in spec.lstrip("^=").split(",") if each]
    hit = any(name == each if exact else name.startswith(each) for each in names)
    return not names or hit != exclude


def _together(one: list[str], other: list[str]) -> int:
    """How many steps two paths have in common from the root on."""
    return len(list(itertools.takewhile(lambda step: step[0] == step[1], zip(one, other))))  # noqa: B905 - Python 3.8


def _path(link: str) -> list[str]:
    """The way from the root complex down to a device; nothing where it is not there."""
    parts = os.path.realpath(link).split("/")
    roots = [place for place, part in enumerate(parts) if part.startswith("pci")]
    return parts[roots[0] :] if roots else []


def _active(device: str) -> bool:
    for port in _names(device + "/ports"):
        try:
            with open(f"{device}/ports/{port}/state") as file:
                if _ACTIVE in file.read(64):
                    return True
        except OSError:
            continue
    return False


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
