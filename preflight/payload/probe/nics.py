"""Each rail needs its RDMA device, up, at full rate, without errors, and next to its GPU."""

from __future__ import annotations

import os
import time

from . import config_space, rdma_port, sysfs
from .text import attempt, clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOOKS_APART_S = 0.25
"""Between two looks at the error counters: a cable that is losing bits now moves them."""

MOST = 256


def read(root: str) -> list[dict[str, Any]]:
    """Return every RDMA device under `root`/class/infiniband; [] where the node has none."""
    folder = root + "/class/infiniband"
    try:
        names = sorted(os.listdir(folder))[:MOST]
    except FileNotFoundError:
        return []
    began = time.monotonic()
    before = {name: rdma_port.counted(root, f"{folder}/{name}") for name in names}
    found = [_nic(name, f"{folder}/{name}") for name in names]
    if not any(before.values()):
        return found
    time.sleep(max(0.0, LOOKS_APART_S - (time.monotonic() - began)))
    apart_s = round(time.monotonic() - began, 3)
    for nic in found:
        after = rdma_port.counted(root, f"{folder}/{nic['name']}")
        for port in nic["ports"]:
            first = before[nic["name"]].get(port["port"], {})
            port["counters"] = rdma_port.compare(first, after.get(port["port"], {}), apart_s)
    return found


def _nic(name: str, folder: str) -> dict[str, Any]:
    device = folder + "/device"
    return {
        "name": clean(name),
        "pci_path": sysfs.pci_path(device),
        "numa": sysfs.numa(device),
        "ports": rdma_port.read_all(folder),
        "netdevs": [clean(netdev) for netdev in rdma_port.names(device + "/net")],
        "firmware": attempt(folder + "/fw_ver"),
        "board": attempt(folder + "/board_id"),
        "hca_type": attempt(folder + "/hca_type"),
        "pcie": sysfs.pcie_link(device),
        "relaxed_ordering": config_space.relaxed_ordering(device + "/config"),
    }
