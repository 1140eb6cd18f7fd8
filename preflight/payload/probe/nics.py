"""Each rail needs its RDMA device, up, at full rate, and next to its GPU."""

from __future__ import annotations

import os

from . import sysfs
from .text import attempt, clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def read(root: str) -> list[dict[str, Any]]:
    """Return every RDMA device under `root`/class/infiniband; [] where the node has none."""
    folder = root + "/class/infiniband"
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return [_nic(name, f"{folder}/{name}") for name in sorted(names)[:256]]


def _nic(name: str, folder: str) -> dict[str, Any]:
    device = folder + "/device"
    ports = [int(port) for port in _names(folder + "/ports") if port.isdigit()]
    return {
        "name": clean(name),
        "pci_path": sysfs.pci_path(device),
        "numa": sysfs.numa(device),
        "ports": [_port(number, f"{folder}/ports/{number}") for number in sorted(ports)],
        "netdevs": [clean(netdev) for netdev in _names(device + "/net")],
    }


def _port(number: int, folder: str) -> dict[str, Any]:
    return {
        "port": number,
        "state": attempt(folder + "/state"),
        "phys_state": attempt(folder + "/phys_state"),
        "rate": attempt(folder + "/rate"),
        "link_layer": attempt(folder + "/link_layer"),
    }


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
