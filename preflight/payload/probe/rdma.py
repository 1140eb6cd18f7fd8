"""Reads the RDMA devices: ports, error counters, PCIe settings, and GPUDirect.

Any login may read the first 64 bytes of a PCI configuration space, only root the rest: without
root the PCIe settings are None.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any, Dict, Iterable

from .node_files import attempt, clean, counters, names, numa, pci_path, pcie_link, safe_name

Counts = Dict[str, int]


_CAPABILITIES = 0x34
_EXPRESS = 0x10
_RELAXED = 1 << 4
"""Enable Relaxed Ordering, in Device Control."""

_EXTENDED = 0x100
_ACS = 0x000D
_REDIRECT = 0x04 | 0x08
"""P2P Request Redirect and P2P Completion Redirect, in ACS Control."""

_DIRECT_TRANSLATED = 0x40
_HOPS = 64
"""Most capabilities to follow: the chain may be a loop."""


def relaxed_ordering(path: str) -> bool | None:
    """Whether a device's writes may be reordered; None where it cannot be read."""
    with suppress(OSError), open(path, "rb", buffering=0) as file:
        offset = _find(file.fileno())
        control = _number(file.fileno(), offset + 8) if offset else None
        return None if control is None else bool(control & _RELAXED)
    return None


def acs(path: str) -> tuple[bool, dict[str, Any] | None]:
    """(readable, ACS bits) of one PCIe port; no bits where it has no access control."""
    with suppress(OSError), open(path, "rb", buffering=0) as file:
        space, offset = file.fileno(), _EXTENDED
        header = _number(space, offset, 4)
        if header is None:
            return False, None
        for _ in range(_HOPS):
            if not header or header == 0xFFFFFFFF:  # noqa: PLR2004 (no device)
                break
            if header & 0xFFFF == _ACS:
                control = _number(space, offset + 6) or 0
                bits = bool(control & _REDIRECT), bool(control & _DIRECT_TRANSLATED)
                return True, {"redirects": bits[0], "translated": bits[1]}
            offset = header >> 20
            if offset < _EXTENDED:
                break
            header = _number(space, offset, 4)
        return True, None
    return False, None


def _find(space: int) -> int:
    """The offset of the PCI Express capability; 0 where it cannot be found."""
    offset = (_number(space, _CAPABILITIES) or 0) & 0xFC
    for _ in range(_HOPS):
        head = _number(space, offset) if offset >= 0x40 else None  # noqa: PLR2004 (the header ends there)
        if head is None:
            break
        if head & 0xFF == _EXPRESS:
            return offset
        offset = (head >> 8) & 0xFC
    return 0


def _number(space: int, offset: int, size: int = 2) -> int | None:
    try:
        raw = os.pread(space, size, offset)
    except OSError:
        return None
    return int.from_bytes(raw, "little") if len(raw) == size else None


ERRORS = {
    # InfiniBand Architecture, PortCounters; in sysfs under these names for every driver.
    "counters": (
        "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors",
        "port_rcv_remote_physical_errors", "local_link_integrity_errors",
        "excessive_buffer_overrun_errors", "port_xmit_discards",
    ),
    # mlx5's, as its driver documents them.
    "hw_counters": (
        "packet_seq_err", "out_of_sequence", "out_of_buffer", "local_ack_timeout_err",
        "implied_nak_seq_err", "rnr_nak_retry_err", "roce_adp_retrans", "roce_adp_retrans_to",
        "roce_slow_restart", "req_cqe_error", "resp_cqe_error", "rx_icrc_encapsulated",
    ),
}  # fmt: skip

GIDS = 32
"""Entries to read: every address of the interface takes two, and indexes in use are low."""

PORTS = 16


def read_all(folder: str) -> list[dict[str, Any]]:
    """Return the ports of the device whose folder in sysfs this is."""
    numbers = _numbers(folder + "/ports", PORTS)
    return [_port(number, f"{folder}/ports/{number}", folder) for number in numbers]


def read_counters(root: str, folder: str) -> dict[int, Counts]:
    """Return the error counters of each port that has any."""
    counts: dict[int, Counts] = {}
    for number in _numbers(folder + "/ports", PORTS):
        port = f"{folder}/ports/{number}"
        counts[number] = errors(port)
        netdev = _netdev(number, port, folder)
        if netdev:
            downs = {"carrier_downs": f"{root}/class/net/{netdev}/carrier_down_count"}
            counts[number].update(counters(downs))
    return counts


def errors(port: str) -> Counts:
    """Return the error counters of a port whose folder in sysfs this is."""
    kinds = ERRORS.items()
    return counters({name: f"{port}/{kind}/{name}" for kind, names in kinds for name in names})


def compare(before: Counts, after: Counts, apart_s: float) -> dict[str, Any] | None:
    """Return a `Counters` document of two readings; None where nothing could be read."""
    if not after:
        return None
    nonzero = [
        {"name": name, "value": value, "moved": max(0, value - before.get(name, value))}
        for name, value in sorted(after.items())
        if value
    ]
    return {"read": len(after), "apart_s": apart_s, "nonzero": nonzero}


def _numbers(folder: str, most: int) -> list[int]:
    return sorted(int(name) for name in names(folder) if name.isdigit())[:most]


def _port(number: int, folder: str, device: str) -> dict[str, Any]:
    layer, state = attempt(folder + "/link_layer"), attempt(folder + "/state")
    rate = attempt(folder + "/rate")
    return {
        "port": number,
        "state": state,
        "phys_state": attempt(folder + "/phys_state"),
        # If the port went down in between, its rate is not that of the state above.
        "rate": rate if attempt(folder + "/state") == state else "",
        "link_layer": layer,
        "netdev": safe_name(_netdev(number, folder, device)),
        "gids": _gids(folder, 1 if layer == "InfiniBand" else GIDS),
    }


def _netdev(number: int, port: str, device: str) -> str:
    """Return the interface over a port: that of its first GID, else the one numbered like it."""
    gid_netdev = attempt(port + "/gid_attrs/ndevs/0")
    if gid_netdev:
        return gid_netdev
    netdevs = names(device + "/device/net")
    for name in netdevs:
        dev_port = attempt(f"{device}/device/net/{name}/dev_port")
        if dev_port == str(number - 1):
            return name
    return netdevs[0] if len(netdevs) == 1 and number == 1 else ""


def _gids(folder: str, most: int) -> list[dict[str, Any]] | None:
    indexes = _numbers(folder + "/gids", most)
    if not indexes:
        return None
    gids = []
    for index in indexes:
        gid = attempt(f"{folder}/gids/{index}")
        if gid.strip("0:"):
            kind = attempt(f"{folder}/gid_attrs/types/{index}")
            gids.append({"index": index, "kind": kind, "gid": gid})
    return gids


LOOKS_APART_S = 0.25
"""Time between two readings of the error counters: they rise if a cable has errors now."""

MOST = 256


def read(root: str) -> list[dict[str, Any]]:
    """Return every RDMA device under `root`/class/infiniband; [] where the node has none."""
    folder = root + "/class/infiniband"
    try:
        devices = sorted(os.listdir(folder))[:MOST]
    except FileNotFoundError:
        os.stat(root + "/class")  # without sysfs, whether there are devices is not known
        return []
    began = time.monotonic()
    before = {name: read_counters(root, f"{folder}/{name}") for name in devices}
    nics = [_nic(name, f"{folder}/{name}") for name in devices]
    if not any(before.values()):
        return nics
    time.sleep(max(0.0, LOOKS_APART_S - (time.monotonic() - began)))
    for name, nic in zip(devices, nics):  # noqa: B905 (Python 3.8)
        after = read_counters(root, f"{folder}/{name}")
        apart_s = round(time.monotonic() - began, 3)
        for port in nic["ports"]:
            first = before[name].get(port["port"], {})
            port["counters"] = compare(first, after.get(port["port"], {}), apart_s)
    return nics


def _nic(name: str, folder: str) -> dict[str, Any]:
    device = folder + "/device"
    return {
        "name": safe_name(name),
        "pci_path": pci_path(device),
        "numa": numa(device),
        "ports": read_all(folder),
        "netdevs": [safe_name(netdev) for netdev in names(device + "/net")],
        "firmware": attempt(folder + "/fw_ver"),
        "board": attempt(folder + "/board_id"),
        "hca_type": attempt(folder + "/hca_type"),
        "pcie": pcie_link(device),
        "relaxed_ordering": relaxed_ordering(device + "/config"),
    }


_PEERMEM = ("nvidia_peermem", "nv_peer_mem")
_NVIDIA = "0x10de"
_DISPLAY = "0x03"
"""PCI class of GPUs: 0x0300 with a screen, 0x0302 without."""


def survey(root: str, proc: str = "/proc") -> dict[str, Any]:
    """Return a `GpuDirect` document; what cannot be read is None in it."""
    devices, hcas = root + "/bus/pci/devices", root + "/class/infiniband"
    gpus = [f"{devices}/{name}" for name in names(devices) if _is_gpu(f"{devices}/{name}")]
    nics = [f"{hcas}/{name}/device" for name in names(hcas)]
    version = attempt(proc + "/driver/nvidia/version")
    return {
        "peermem": _peermem(root),
        "open_modules": "Open Kernel Module" in version if version else None,
        "iommu": _iommu([*gpus, *nics]),
        "acs": _acs(root, gpus, nics),
        "machine": clean(os.uname().machine),
    }


def _peermem(root: str) -> bool | None:
    if os.path.exists(root + "/kernel/mm/memory_peers/nv_mem"):
        return True
    modules = names(root + "/module")
    return any(name in modules for name in _PEERMEM) if modules else None


def _iommu(devices: Iterable[str]) -> str | None:
    """The IOMMU domain type of the devices, in the kernel's words; the strictest if they differ."""
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
    of_gpus, of_nics = (
        {tuple(pci_path(device) or ()) for device in devices} for devices in (gpus, nics)
    )
    paths = ((gpu, nic) for gpu in of_gpus for nic in of_nics - of_gpus)
    between = {port for gpu, nic in paths for port in _ports_between(gpu, nic)}
    ports, hidden = [], False
    for port in sorted(between):
        readable, bits = acs(f"{root}/bus/pci/devices/{port}/config")
        hidden = hidden or not readable
        if bits is not None:
            ports.append({"bus_id": port, **bits})
    return None if hidden else ports[:256]


def _ports_between(a: tuple[str, ...], b: tuple[str, ...]) -> list[str]:
    """The ports below the switch that two devices share; none if they share only the root."""
    shared = len(os.path.commonprefix([a, b]))  # noqa: RUF071 (of steps)
    # All devices behind one root port share it and the root complex: that is no switch.
    if shared < 3:  # noqa: PLR2004 (pciXXXX:XX, root port, upstream port of a switch)
        return []
    return [*a[shared:-1], *b[shared:-1]]


def _is_gpu(device: str) -> bool:
    return attempt(device + "/vendor") == _NVIDIA and attempt(device + "/class")[:4] == _DISPLAY
