"""The NVIDIA driver tells of a GPU in trouble by an Xid in the kernel's log.

A login that may not read the log sees none; that is no proof of health and none is claimed.
"""

from __future__ import annotations

import os
import re

LOG = "/dev/kmsg"
_RECORD = 8192
_XID = re.compile(
    rb"(?m)^\d[^;\n]{0,80};NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{5,16})[^)\n]{0,40}\): (\d{1,4})\b"
)


class KernelLog:
    """Counts the Xids written since it was opened."""

    def __init__(self, path: str = LOG) -> None:
        self._counts: dict[str, float] = {}
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError:
            self._file = -1

    def xids(self, bus_id: str | None) -> dict[str, float]:
        """How often each Xid came so far; only those of one GPU, where its PCI address is given."""
        for found in _XID.finditer(self._new()):
            where, number = (part.decode("ascii") for part in found.groups())
            name = f"Xid {number} {where}"
            self._counts[name] = self._counts.get(name, 0) + 1
        return {
            name: count
            for name, count in self._counts.items()
            if bus_id is None or _slot(name.rpartition(" ")[2]) == _slot(bus_id)
        }

    def _new(self) -> bytes:
        """Return what was written since the last look; the kernel gives one record at a time."""
        said = b""
        while self._file >= 0:
            try:
                record = os.read(self._file, _RECORD)
            except BrokenPipeError:
                continue  # records were overwritten before we read them: go on with the next
            except OSError:
                break  # EAGAIN: nothing more
            if not record:
                break
            said += record
        return said


def _slot(address: str) -> str:
    """A PCI address without the device's function, the domain without leading zeros."""
    return address.partition(".")[0].lower().lstrip("0")
