"""The parts of a machine: GPUs, NVLinks and NICs, and where they sit in its PCI tree."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Literal

Kind = Literal["gpu", "switch"]
_LINKS_PER_SWITCH = (5, 4, 4, 5)

# root port's bus, the switch's bus, GPU, NIC: a DGX H100, where GPU i and NIC i share a switch.
_SLOTS = (
    (0x15, 0x16, 0x1B, 0x18),
    (0x37, 0x38, 0x43, 0x40),
    (0x48, 0x49, 0x52, 0x4F),
    (0x59, 0x5A, 0x61, 0x5E),
    (0x97, 0x98, 0x9D, 0x9A),
    (0xB7, 0xB8, 0xC3, 0xC0),
    (0xC7, 0xC8, 0xD1, 0xCE),
    (0xD7, 0xD8, 0xDF, 0xDC),
)
_CPUS = ("0-47,96-143", "48-95,144-191")


@dataclass(frozen=True, slots=True)
class Link:
    """One NVLink and what is at its far end (a bus id as NVML prints it)."""

    remote: str
    up: bool = True
    kind: Kind = "switch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What GPUs and NICs share: a slot, hence a place in the PCI tree."""

    slot: int

    @property
    def numa(self) -> int:
        """The NUMA node of its slot."""
        return self.slot // 4

    @property
    def cpus(self) -> str:
        """The CPUs next to it, as nvidia-smi prints them."""
        return _CPUS[self.numa]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic(Card):
    """One RDMA device; the words are sysfs's own."""

    name: str
    state: str = "4: ACTIVE"
    phys_state: str = "5: LinkUp"
    rate: str = "400 Gb/sec (4X NDR)"
    link_layer: str = "InfiniBand"
    fw_ver: str = "28.39.1002"
    board_id: str = "MT_0000000838"
    hca_type: str = "MT4129"
    gids: tuple[tuple[str, str], ...] = (("IB/RoCE v1", "fe80:0000:0000:0000:1070:fd03:0012:3456"),)
    """(kind, GID) by index."""

    @property
    def path(self) -> tuple[str, ...]:
        """From the root complex to the device, as sysfs names the folders."""
        return _path(self.slot, gpu=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu(Card):
    """One GPU as NVML tells it. `error` is what every call on it answers (0: healthy)."""

    uuid: str
    serial: str
    links: tuple[Link, ...]
    used_mib: int = 0
    error: int = 0
    processes: tuple[tuple[int, int], ...] = ()
    """(pid, MiB)"""
    mig: tuple[str, ...] = ()
    counters: tuple[tuple[str, int], ...] = ()
    """(name as preflight tells it, value); "reasons": NVML's bits of why its clocks are down."""
    refusals: tuple[tuple[str, int], ...] = ()
    """(reading, NVML error with which it is answered)"""
    words: tuple[tuple[str, str], ...] = ()
    """(reading, what is said in place of a healthy H100's word)"""

    @property
    def path(self) -> tuple[str, ...]:
        """From the root complex to the device, as sysfs names the folders."""
        return _path(self.slot, gpu=True)

    @property
    def bus_id(self) -> str:
        """As NVML prints it: eight digits of domain, upper case."""
        return f"0000{self.path[-1].upper()}"


def h100_gpus(host: str) -> tuple[Gpu, ...]:
    """Eight H100 with 18 NVLinks each to four NVSwitches; ids are stable and differ by host."""
    switches = tuple(
        Link(f"00000000:{5 + switch:02X}:00.0")
        for switch, links in enumerate(_LINKS_PER_SWITCH)
        for _ in range(links)
    )
    return tuple(
        Gpu(
            slot=slot,
            uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{host}/gpu{slot}')}",
            serial=f"16{uuid.uuid5(uuid.NAMESPACE_DNS, f'{host}/{slot}').int % 10**11:011d}",
            links=switches,
        )
        for slot in range(len(_SLOTS))
    )


def ndr_nics() -> tuple[Nic, ...]:
    """One 400 Gb/s InfiniBand NIC in the slot beside each GPU."""
    return tuple(Nic(name=f"mlx5_{slot}", slot=slot) for slot in range(len(_SLOTS)))


def _path(slot: int, *, gpu: bool) -> tuple[str, ...]:
    root, switch, gpu_bus, nic_bus = _SLOTS[slot]
    port = f"0000:{switch + 1:02x}:{1 if gpu else 0:02x}.0"
    device = f"0000:{gpu_bus if gpu else nic_bus:02x}:00.0"
    return f"pci0000:{root:02x}", f"0000:{root:02x}:01.0", f"0000:{switch:02x}:00.0", port, device
