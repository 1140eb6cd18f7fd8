"""The part of /sys that tells where GPUs and NICs sit, written as plain files per host."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.nvml.machine import Gpu, Nic
    from tests.lab.nvml.scenario import Scenario

FROM_KERNEL = ("class/net", "devices/system", "devices/virtual", "fs", "kernel", "power")
"""Bound over the tree from a real sysfs of the host's own network namespace."""

_COUNTERS = {
    "symbol_error": "counters",
    "link_error_recovery": "counters",
    "link_downed": "counters",
    "port_rcv_errors": "counters",
    "port_xmit_data": "counters",
    "packet_seq_err": "hw_counters",
    "out_of_sequence": "hw_counters",
    "np_cnp_sent": "hw_counters",
}
_BRIDGE = "0x060400"
_OURS = ("bus/pci/devices", "class/infiniband", "devices", "module/nvidia_peermem")

_written: dict[Path, object] = {}
"""What each tree was made of, until something else is changed in it: 600 files take a while."""


def write(root: Path, scenario: Scenario) -> None:
    """Make a host's tree say what the scenario says; the mount points in it stay."""
    gpus = [(gpu.path, gpu.numa, gpu.cpus) for gpu in scenario.gpus]
    parts = (gpus, scenario.nics)
    if _written.get(root) == parts:
        return
    _written.pop(root, None)  # until it is whole
    for name in (*FROM_KERNEL, *_OURS):
        (root / name).mkdir(parents=True, exist_ok=True)
    _clear(root)
    for gpu in scenario.gpus:
        _write_device(root, gpu, pci_class="0x030200", vendor="0x10de", device="0x2330")
    for nic in scenario.nics:
        folder = _write_device(root, nic, pci_class="0x020700", vendor="0x15b3", device="0x1021")
        _write_nic(root, folder, nic)
    _written[root] = parts


def count(root: Path, nic: str, name: str, value: int) -> None:
    """Let a counter of a NIC's port rise to this value, in place and never empty between."""
    _written.pop(root, None)
    port = root / "class/infiniband" / nic / "ports/1"
    with (port / _COUNTERS[name] / name).open("r+") as counter:
        counter.write(f"{value}\n")


def narrow(root: Path, bus_id: str, lanes: int) -> None:
    """Leave a device fewer lanes than it has, as a card that sits loose."""
    _written.pop(root, None)
    (root / "bus/pci/devices" / bus_id / "current_link_width").write_text(f"{lanes}\n")


def config_space(*, acs: int = 0, relaxed: bool = True) -> bytes:
    """What root reads of a device: PCI Express at 0x60, and ACS at 0x100 with these bits."""
    space = bytearray(4096)
    space[0x34] = 0x60
    space[0x60:0x62] = b"\x10\x00"
    space[0x68] = relaxed << 4
    space[0x100:0x104] = (0x0001000D).to_bytes(4, "little")
    space[0x106] = acs
    return bytes(space)


def redirect(root: Path, bus_id: str) -> None:
    """Switch ACS redirection on at one PCIe port, as a BIOS for virtual machines does."""
    _written.pop(root, None)
    (root / "bus/pci/devices" / bus_id / "config").write_bytes(config_space(acs=0x1D))


def flatten(root: Path) -> None:
    """Put every GPU and NIC directly below one root complex, as a virtual machine shows them."""
    _written.pop(root, None)
    flat = root / "devices/pci0000:00"
    flat.mkdir()
    for link in list((root / "bus/pci/devices").iterdir()):
        here = link.resolve()
        link.unlink()
        if (here / "class").read_text().strip() != _BRIDGE:
            _link(link, here.rename(flat / here.name))
    for rdma in flat.glob("*/infiniband/*"):
        for link, target in (
            (rdma / "device", rdma.parents[1]),
            (root / "class/infiniband" / rdma.name, rdma),
        ):
            link.unlink()
            _link(link, target)


def _write_gids(port: Path, nic: Nic) -> None:
    for index, (kind, gid) in enumerate(nic.gids):
        for folder, text in (("gids", gid), ("gid_attrs/types", kind)):
            (port / folder).mkdir(parents=True, exist_ok=True)
            (port / folder / str(index)).write_text(f"{text}\n")


def _clear(root: Path) -> None:
    for link in (*(root / "bus/pci/devices").iterdir(), *(root / "class/infiniband").iterdir()):
        link.unlink()
    for bridge in (root / "devices").glob("pci*"):
        shutil.rmtree(bridge)


def _write_device(root: Path, part: Gpu | Nic, **words: str) -> Path:
    """Write the device's folder and link every device on its path from bus/pci/devices."""
    folder = root / "devices"
    for step in part.path:
        folder /= step
        folder.mkdir(exist_ok=True)
        link = root / "bus/pci/devices" / step
        if not step.startswith("pci") and not link.is_symlink():
            (folder / "numa_node").write_text(f"{part.numa}\n")
            (folder / "class").write_text(f"{_BRIDGE}\n")
            (folder / "config").write_bytes(config_space())
            _link(link, folder)
    words = {"class": words.pop("pci_class"), **words, "local_cpulist": part.cpus}
    words |= {"current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}
    words |= {"current_link_width": "16", "max_link_width": "16"}
    for name, word in words.items():
        (folder / name).write_text(f"{word}\n")
    return folder


def _write_nic(root: Path, folder: Path, nic: Nic) -> None:
    rdma = folder / "infiniband" / nic.name
    port = rdma / "ports" / "1"
    port.mkdir(parents=True)
    for name in ("state", "phys_state", "rate", "link_layer"):
        (port / name).write_text(f"{getattr(nic, name)}\n")
    for name, kind in _COUNTERS.items():
        (port / kind).mkdir(exist_ok=True)
        (port / kind / name).write_text("0\n")
    (rdma / "node_type").write_text("1: CA\n")
    for name in ("fw_ver", "board_id", "hca_type"):
        (rdma / name).write_text(f"{getattr(nic, name)}\n")
    _write_gids(port, nic)
    _link(rdma / "device", folder)
    _link(root / "class/infiniband" / nic.name, rdma)


def _link(link: Path, target: Path) -> None:
    if not link.is_symlink():
        link.symlink_to(os.path.relpath(target, link.parent))
