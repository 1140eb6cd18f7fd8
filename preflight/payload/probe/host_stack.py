"""Nodes of a group are alike: the same kernel, system, C library, CPUs, board and BIOS."""

from __future__ import annotations

import os

from . import host_files
from .text import attempt, clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ENOUGH = 4096
"""Bytes of /proc/cpuinfo that hold the first CPU: all of it takes long on a large machine."""


def read(root: str) -> dict[str, Any]:
    """Return `Stack`; what a machine does not tell is "" or 0."""
    return {
        "os": system(host_files.attempt_lines("/etc/os-release")),
        "libc": _libc(),
        "architecture": clean(os.uname().machine),
        "cpu": cpu(host_files.lines("/proc/cpuinfo", _ENOUGH)),
        "cpus_online": host_files.cpus_in(attempt(root + "/devices/system/cpu/online")),
        "product": attempt(root + "/class/dmi/id/product_name"),
        "bios": attempt(root + "/class/dmi/id/bios_version"),
    }


def serial(root: str) -> str | None:
    """Return the serial number of the machine, which only root may read on most; None without."""
    names = ("product_serial", "board_serial")
    return next(filter(None, (attempt(f"{root}/class/dmi/id/{name}") for name in names)), None)


def system(found: list[str]) -> str:
    """Return PRETTY_NAME of os-release(5); "" without one."""
    for line in found:
        name, _, value = line.partition("=")
        if name.strip() == "PRETTY_NAME":
            return clean(value.strip().strip("\"'"))
    return ""


def cpu(found: list[str]) -> str:
    """Return what kind of CPU it is: its name on x86, implementer and part on Arm."""
    known = host_files.keyed(found)
    if "model name" in known:
        return clean(known["model name"])
    words = (
        f"{name[4:]} {known[name]}" for name in ("CPU implementer", "CPU part") if name in known
    )
    return clean(" ".join(words))


def _libc() -> str:
    try:
        return clean(os.confstr("CS_GNU_LIBC_VERSION") or "")
    except (ValueError, OSError):
        return ""  # musl knows no such name


def governors(root: str) -> list[dict[str, Any]]:
    """Return every `Governor`; [] where the kernel steers no frequencies."""
    folder = root + "/devices/system/cpu/cpufreq"
    counted: dict[tuple[str, str], int] = {}
    for policy in host_files.numbered(folder, r"policy\d+"):
        words = (attempt(f"{folder}/{policy}/scaling_{word}") for word in ("governor", "driver"))
        name, driver = words
        cpus = len(attempt(f"{folder}/{policy}/affected_cpus").split()) or 1
        counted[name, driver] = counted.get((name, driver), 0) + cpus
    return [
        {"name": name, "driver": driver, "cpus": cpus}
        for (name, driver), cpus in sorted(counted.items())
    ][:64]
