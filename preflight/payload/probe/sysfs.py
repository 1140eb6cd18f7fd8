"""Where a device sits between the CPUs decides how fast it talks to its neighbours; sysfs knows."""

from __future__ import annotations

import os
import re

from .text import attempt, clean

_MOST_LANES = 32
_ROOT = re.compile(r"^pci[0-9a-fA-F]{4,}:[0-9a-fA-F]{2}$")


def bus_id(raw: str) -> str:
    """Spell a PCI address as sysfs does: "00000000:1B:00.0" is 0000:1b:00.0. "" if it is none."""
    found = re.match(r"^([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])$", raw)
    if not found:
        return ""
    domain, bus, device, function = (int(part, 16) for part in found.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def pci_path(link: str) -> list[str] | None:
    """Return the way from the PCI root complex to a device, given its link; None if unknown."""
    if not os.path.exists(link):
        return None
    parts = os.path.realpath(link).split("/")
    roots = [at for at, part in enumerate(parts) if _ROOT.match(part)]
    return [clean(part) for part in parts[roots[0] :]] if roots else None


def pcie_link(device: str) -> dict[str, float | int | None] | None:
    """Return a `PcieLink` document of a device; None where the kernel has no files for it."""
    if not os.path.exists(device + "/current_link_width"):
        return None
    return {
        "gts": _gts(attempt(device + "/current_link_speed")),
        "width": _lanes(attempt(device + "/current_link_width")),
        "gts_max": _gts(attempt(device + "/max_link_speed")),
        "width_max": _lanes(attempt(device + "/max_link_width")),
    }


def numa(device: str) -> int | None:
    """Return the NUMA node of a device; None where the firmware does not tell (sysfs: -1)."""
    text = attempt(device + "/numa_node")
    return int(text) if text.isdigit() else None


def local_cpus(device: str) -> str:
    """Return the CPUs next to a device, as in "0-31,64-95"; "" if unknown."""
    return attempt(device + "/local_cpulist")


def _gts(text: str) -> float | None:
    """Return the number of "32.0 GT/s PCIe"; None for "Unknown", as virtual functions say."""
    found = re.match(r"([0-9]{1,3}(?:\.[0-9])?) GT/s", text)
    return float(found.group(1)) if found else None


def _lanes(text: str) -> int | None:
    """Return a number of lanes; None for 0 and for the 255 of a device that does not answer."""
    return int(text) if text.isdigit() and 0 < int(text) <= _MOST_LANES else None
