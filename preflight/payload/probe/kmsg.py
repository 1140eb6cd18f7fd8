"""What the kernel said since boot: it names the GPU that fell off the bus when NVML no longer can.

/dev/kmsg is asked first; a container without it, or a login that may not open it, asks the
journal and dmesg(1), at once and each in a child of its own.
"""

from __future__ import annotations

import json
import os
import re
import time

from . import guard, kernel_log, named_file
from .text import clean, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Record = tuple[float | None, bytes]

LOG = "/dev/kmsg"
PATIENCE_S = 3.0
"""The device answers in milliseconds; a journal of months may take longer, and is then left."""

READ_S = 1.2
"""Of that, and of a prolog's shorter time, for reading the device: the rest counts as dropped."""

_RECORD = 8192
_LOOK = 64
_MOST_BYTES = 32 << 20
"""Twice the largest ring buffer that kernels are built with by default."""

_PROGRAMS = {
    "journal": (
        "journalctl", "-k", "-b", "-q", "--no-pager", "-o", "json",
        "--output-fields=MESSAGE,_SOURCE_MONOTONIC_TIMESTAMP",
    ),
    "dmesg": ("dmesg",),
}  # fmt: skip
_STAMP = re.compile(rb"^\[\s*(\d{1,10}\.\d{1,9})\]\s?")
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")


class Asked:
    """The readers of the log, at work."""

    def __init__(self, path: str, since_s: float | None) -> None:
        """Begin to read; `since_s`: only the last so many seconds, None: all since boot."""
        up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._after_s = 0.0 if since_s is None else max(0.0, up_s - since_s)
        self._refused = ""
        self._children: list[tuple[str, guard.Child]] = []
        try:
            os.close(named_file.opened(path)[0])
        except OSError as error:
            self._refused = words(error)
            self._begin_programs()
        else:
            self._children.append(("kmsg", guard.spawn(_read, path, self._after_s)))

    def finish(self, until: float, problems: list[str]) -> dict[str, Any] | None:
        """Return the `KernelLog` of the first reader that saw any of it; None if nobody did."""
        best: dict[str, Any] | None = None
        for source, child in self._children:
            answered = child.listen(until, _MOST_BYTES)
            child.dismiss(kill=not answered or len(child.said) > _MOST_BYTES)
            if best is not None:
                continue
            if not answered:
                self._refused = "no answer in time"
            elif source == "kmsg":
                best = self._value(child)
            elif child.status == 0 and child.said:
                read = _entries if source == "journal" else _stamped
                best = kernel_log.told(source, read(bytes(child.said)), self._after_s)
            if best is not None and not best["seen"]:
                best, self._refused = None, "it is empty"
        if best is None:
            problems.append("kernel log: " + clean(self._refused or "nobody could read it"))
        return best

    def _value(self, child: guard.Child) -> dict[str, Any] | None:
        try:
            value: dict[str, Any] = child.value()
        except guard.BrokenError as error:
            self._refused = str(error)
            return None
        return value

    def _begin_programs(self) -> None:
        environ = {**os.environ, "LC_ALL": "C"}
        for source, argv in _PROGRAMS.items():
            for folder in ("/usr/bin", "/bin"):
                program = f"{folder}/{argv[0]}"
                if os.access(program, os.X_OK):
                    child = guard.spawn_program([program, *argv[1:]], environ)
                    self._children.append((source, child))
                    break


def _read(path: str, after_s: float) -> dict[str, Any]:
    """In the child: every record that there is when it begins, one read(2) each."""
    device = _Device(path)
    value = kernel_log.told("kmsg", _records(_lines(device.pieces())), after_s)
    if device.unread:
        value["dropped"] += device.unread
        value["dropped_of"]["any"] = device.unread
    return value


class _Device:
    """Reads up to what was written since it began: a log may grow as fast as it is read.

    A second file stands at the end: what comes there first is where reading ends. The stamps of
    records would not do: their clock and that of programs drift apart by minutes in months.
    """

    def __init__(self, path: str) -> None:
        self.unread = 0
        self._file, self._end = named_file.opened(path)[0], named_file.opened(path)[0]
        # A plain file has a size; of the device the kernel says 0.
        self._size = os.lseek(self._end, 0, os.SEEK_END)

    def pieces(self) -> Iterator[bytes]:
        """Yield a record of the device each, of a plain file whatever fits."""
        reads, size, new = 0, 0, None
        until = time.monotonic() + READ_S
        while time.monotonic() < until:
            try:
                piece = os.read(self._file, _RECORD)
            except BrokenPipeError:
                # It was overwritten before it was read; before the first, it was only the oldest.
                self.unread += reads > 0
                continue
            except BlockingIOError:
                return
            reads, size = reads + 1, size + len(piece)
            if not reads % _LOOK and new is None and not self._size:
                new = self._first_new()
            if not piece or (new is not None and _number(piece) >= new):
                return
            yield piece
            if 0 < self._size <= size:
                return
        self.unread += 1

    def _first_new(self) -> int | None:
        try:
            return _number(os.read(self._end, _RECORD))
        except (BlockingIOError, BrokenPipeError):
            return None


def _number(record: bytes) -> int:
    number = record.split(b",", 2)[1:2]
    return int(number[0]) if number and number[0].isdigit() else 0


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest


def _records(lines: Iterator[bytes]) -> Iterator[Record]:
    """Read `priority,number,microseconds,flags;text`; lines with a blank first are properties."""
    for line in lines:
        head, semicolon, text = line.partition(b";")
        fields = head.split(b",")
        if not semicolon or len(fields) < 3 or not fields[2].isdigit():  # noqa: PLR2004
            continue
        if fields[0].isdigit() and int(fields[0][:9]) >> 3:
            continue  # a program wrote it (syslog's facility): it may name anything
        yield int(fields[2]) / 1e6, _ESCAPED.sub(_unescape, text)


def _unescape(found: re.Match[bytes]) -> bytes:
    return bytes((int(found.group(1), 16),))


def _entries(said: bytes) -> Iterator[Record]:
    """Read what journalctl prints as JSON: a line end in a text is no end of a line there."""
    for line in said.splitlines():
        try:
            entry = json.loads(line)
            text = entry["MESSAGE"]  # numbers where it is no text, null where it is too long
            at_us = entry.get("_SOURCE_MONOTONIC_TIMESTAMP") or entry["__MONOTONIC_TIMESTAMP"]
            record = int(at_us) / 1e6, text.encode() if isinstance(text, str) else bytes([*text])
        except (ValueError, TypeError, KeyError):
            continue
        yield record


def _stamped(said: bytes) -> Iterator[Record]:
    """Read `[   12.345678] text`, as dmesg prints it; the rest of a text is a line of its own.

    That is indented, or without /dev/kmsg bears the stamp of the text, as the next text may, too:
    as a user may name a file with a line end, it is no line of the kernel's.
    """
    at_s, text, stamp = None, b"", None
    for line in said.split(b"\n"):
        found = _STAMP.match(line)
        if found is None or found.group(1) == stamp:
            rest = line[found.end() if found else 0 :].strip()
            text += b"\n" + rest if rest else b""
            continue
        if text:
            yield at_s, text
        stamp, text = found.group(1), line[found.end() :]
        at_s = float(stamp)
    if at_s is not None:
        yield at_s, text
