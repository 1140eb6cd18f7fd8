"""What is mounted where, from the kernel's own list: reading it asks no file server."""

from __future__ import annotations

import re

from .host_files import lines

_ESCAPE = re.compile(r"\\([0-7]{3})")
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


def _plain(word: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found.group(1), 8)), word)


def read() -> list[Mount]:
    """Return every mount of this process, in the order they came in; OSError without /proc."""
    return parse(lines("/proc/self/mountinfo", 4 << 20))


def parse(found: list[str]) -> list[Mount]:
    """Read the lines of mountinfo, without those that are none."""
    mounts = []
    for line in found:
        try:
            mounts.append(Mount(line))
        except ValueError:
            continue
    return mounts


def holding(path: str, mounts: list[Mount]) -> Mount | None:
    """Return the mount that a path lies on; of several at one place the last one shows."""
    best = None
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best
