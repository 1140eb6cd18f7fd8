"""Where a device sits between the CPUs decides how fast it talks to its neighbours; sysfs knows."""

from __future__ import annotations

import os
import re

from .text import attempt, clean

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


def numa(device: str) -> int | None:
    """Return the NUMA node of a device; None where the firmware does not tell (sysfs: -1)."""
    text = attempt(device + "/numa_node")
    return int(text) if text.isdigit() else None


def local_cpus(device: str) -> str:
    """Return the CPUs next to a device, as in "0-31,64-95"; "" if unknown."""
    return attempt(device + "/local_cpulist")
