"""Reads small files of /sys and /proc, and the mounts."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from .bounded_text import attempt, clean, number

_MOST_LANES = 32
_ROOT = r"^pci[0-9a-fA-F]{4,}:[0-9a-fA-F]{2}$"


def bus_id(raw: str) -> str:
    """Format a PCI address like sysfs: "00000000:1B:00.0" is 0000:1b:00.0; "" if it is not one."""
    found = re.match(r"^([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])$", raw)
    if not found:
        return ""
    domain, bus, device, function = (int(part, 16) for part in found.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def pci_path(link: str) -> list[str] | None:
    """Return the path from the PCI root complex to a device, given its link; None if it has none.

    [] where it cannot be read (for example, out of memory).
    """
    try:
        device = os.open(link, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return []
    try:
        # The kernel follows all links or none; realpath() ignores a link that cannot be read.
        parts = os.readlink(f"/proc/self/fd/{device}").split("/")
    except OSError:
        return []
    finally:
        os.close(device)
    roots = [at for at, part in enumerate(parts) if re.match(_ROOT, part)]
    return [clean(part) for part in parts[roots[0] :]] if roots else None


def pcie_link(device: str) -> dict[str, float | int | None] | None:
    """Return a `PcieLink` document of a device; None where the kernel has no files for it."""
    if not os.path.exists(device + "/current_link_width"):
        return None
    return {
        "gts": _gts(attempt(device + "/current_link_speed")),
        "width": _lanes(device + "/current_link_width"),
        "gts_max": _gts(attempt(device + "/max_link_speed")),
        "width_max": _lanes(device + "/max_link_width"),
    }


def numa(device: str) -> int | None:
    """Return the NUMA node of a device; None where the firmware does not report it (sysfs: -1)."""
    return number(device + "/numa_node")


def _gts(text: str) -> float | None:
    """Return the number of "32.0 GT/s PCIe"; None for the "Unknown" of virtual functions."""
    found = re.match(r"([0-9]{1,3}(?:\.[0-9])?) GT/s", text)
    return float(found.group(1)) if found else None


def _lanes(path: str) -> int | None:
    """Return a number of lanes; None for 0 and for the 255 of a device that does not answer."""
    return lanes if (lanes := number(path)) and lanes <= _MOST_LANES else None


LIMIT = 256 << 10


def lines(path: str, limit: int = LIMIT) -> list[str]:
    """Return the lines of a file; OSError if it cannot be read.

    Only a newline ends one: a text of a user may contain other line separators.
    """
    # Buffered: one plain read of a file of /proc returns at most a page, without an error.
    with open(path, "rb") as file:
        found = file.read(limit).decode("utf-8", "replace").split("\n")
    return found if found[-1] else found[:-1]


def attempt_lines(path: str, limit: int = LIMIT) -> list[str]:
    """Return the same, or [] where it cannot be read."""
    try:
        return lines(path, limit)
    except OSError:
        return []


def whole(path: str) -> int:
    """Return the one whole number in a file; OSError or ValueError if there is none."""
    return int(" ".join(lines(path)))


def numbered(folder: str, pattern: str) -> list[str]:
    """Return the entries of a folder that match, in the order of their numbers."""
    try:
        names = [name for name in os.listdir(folder) if re.match(pattern + r"$", name)]
    except FileNotFoundError:
        return []
    return sorted(names, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])


def cpus_in(text: str) -> int:
    """Count the CPUs of a list such as "0-31,64-95"; ValueError if it is none."""
    total = 0
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


def parse_key_values(found: list[str]) -> dict[str, str]:
    """Return "Name: value" lines of /proc as a dict; the first of a name counts."""
    table: dict[str, str] = {}
    for line in found:
        name, colon, value = line.partition(":")
        if colon:
            table.setdefault(name.strip(), value.strip())
    return table


_ESCAPE = r"\\([0-7]{3})"
_LEAST = 10
"""Words of a line, the dash among them."""


class Mount:
    """One line of /proc/self/mountinfo (proc(5))."""

    __slots__ = ("device", "kind", "options", "point", "root", "source", "super_options")

    def __init__(self, line: str) -> None:
        """Parse a line; ValueError for anything else."""
        words = line.split(" ")
        if len(words) < _LEAST or "-" not in words[6:-3]:
            raise ValueError("not a line of mountinfo")
        at = words.index("-", 6)
        self.device = words[2]
        self.root = _plain(words[3])
        self.point = _plain(words[4])
        self.options = words[5].split(",")
        self.kind = words[at + 1]
        self.source = _plain(words[at + 2])
        self.super_options = words[at + 3].split(",")

    @property
    def fuse_user(self) -> int:
        """The id of the user whose program serves it (FUSE); 0 for root or without one."""
        ids = [one[8:] for one in self.super_options if one.startswith("user_id=")]
        return int(ids[0]) if ids and ids[0].isdecimal() and self.kind.startswith("fuse") else 0


def _plain(word: str) -> str:
    if "\\" not in word:
        return word
    return re.sub(_ESCAPE, lambda found: chr(int(found.group(1), 8)), word)


def read() -> list[Mount]:
    """Return every mount of this process, in mount order; OSError without /proc."""
    return parse(lines("/proc/self/mountinfo", 64 << 20))


def parse(found: list[str]) -> list[Mount]:
    """Read the lines of mountinfo; skip invalid ones."""
    mounts = []
    for line in found:
        with suppress(ValueError):
            mounts.append(Mount(line))
    return mounts


def holding(path: str, mounts: list[Mount]) -> Mount | None:
    """Return the mount that contains a path; of several at one place, the last."""
    best = None
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best
