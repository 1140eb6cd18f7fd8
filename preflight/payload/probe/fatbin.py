"""Whether a library has code for a GPU stands in its file: nothing is loaded, no driver asked.

The section .nv_fatbin is a row of containers, one per compiled source; each lists its images: code
for one architecture (kind 2), or PTX (kind 1), which the driver translates for later ones.
"""

from __future__ import annotations

import collections
import os
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


MAGIC = 0xBA55ED50
MOST = 64
"""Containers looked at: all sources of a build are compiled for the same, but for some."""

MOST_S = 0.3
"""The rest of a library on a slow file system is not waited for."""

_KINDS = {1: "compute", 2: "sm"}
_ALIGNED = 8


def architectures(path: str) -> list[str] | None:
    """Return what most of a library's kernels are compiled for; None if the file does not tell."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        section = _section(handle, b".nv_fatbin")
        return None if section is None else _usual(list(_containers(handle, *section)))
    except (OSError, struct.error, ValueError, LookupError, OverflowError):
        return None
    finally:
        os.close(handle)


def _section(handle: int, wanted: bytes) -> tuple[int, int] | None:
    """Return start and end of a section of a 64-bit ELF file."""
    header = os.pread(handle, 64, 0)
    if header[:6] != b"\x7fELF\x02\x01":
        return None
    (table,) = struct.unpack_from("<Q", header, 40)
    size, number, names_at = struct.unpack_from("<HHH", header, 58)
    rows = os.pread(handle, size * number, table)
    sections = [struct.unpack_from("<IIQQQQ", rows, size * i) for i in range(number)]
    _, _, _, _, where, length = sections[names_at]
    names = os.pread(handle, min(length, 1 << 20), where)
    for name, _, _, _, offset, length in sections:
        if names[name : names.index(b"\0", name)] == wanted:
            return offset, offset + length
    return None


def _containers(handle: int, start: int, end: int) -> Iterator[frozenset[str]]:
    """Read the list of images of one container after the other; their contents are skipped."""
    at, until = start, time.monotonic() + MOST_S
    for _ in range(MOST):
        if at + 16 > end or time.monotonic() > until:
            return
        magic, _, head, size = struct.unpack("<IHHQ", os.pread(handle, 16, at))
        if magic != MAGIC:
            at += _ALIGNED  # between two of them there may be filling
            continue
        yield frozenset(_images(handle, at + head, min(at + head + size, end)))
        at += head + size


def _images(handle: int, at: int, end: int) -> Iterator[str]:
    for _ in range(MOST):
        if at + 32 > end:
            return
        row = os.pread(handle, 32, at)
        kind, _, head, size = struct.unpack_from("<HHIQ", row)
        (arch,) = struct.unpack_from("<I", row, 28)
        if not head:
            raise ValueError("not a list of images")
        if kind in _KINDS:
            yield "{}_{}".format(_KINDS[kind], arch)
        at += head + size


def _usual(containers: list[frozenset[str]]) -> list[str] | None:
    """Keep what half of them have: single kernels are for one architecture only."""
    if not containers:
        return None
    counted = collections.Counter(arch for one in containers for arch in one)
    usual = [arch for arch, times in counted.items() if times * 2 >= len(containers)]
    return sorted(usual, key=lambda arch: (arch.split("_")[0], int(arch.split("_")[1])))[:MOST]
