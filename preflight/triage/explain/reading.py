"""A log of any size, line by line: plain or gzipped, one rank's or everybody's, torn or binary."""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import sys
import zlib
from typing import TYPE_CHECKING, BinaryIO, cast

from preflight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHUNK = 1 << 20
LONGEST = 16 << 10
"""Bytes of a line that are looked at; what stands behind is cut off."""

_GZIP = b"\x1f\x8b"
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_BREAKS = re.compile(rb"\r\n|\n|\r")


def chunks(path: Path, troubles: list[str]) -> Iterator[list[bytes]]:
    """Yield a file's lines, some thousands at a time; `-` is standard input.

    UsageError where it cannot be opened. What breaks later (a gzip cut short) is told in
    `troubles`, and what came before it counts.
    """
    with _opened(path) as file:
        left = b""
        while True:
            try:
                more = file.read(CHUNK)
            except (OSError, EOFError, zlib.error) as error:
                troubles.append(f"{path}: read up to a fault ({error})")
                more = b""
            if not more:
                break
            lines = _split(left + more)
            left = lines.pop()
            if len(left) > CHUNK:
                lines.append(left)
                left = b""
            yield lines
        if left:
            yield _split(left)


def text_of(line: bytes) -> str:
    """A line as text that a terminal and a report can show: no escapes, no control characters."""
    cut = _ESCAPES.sub(b"", line[:LONGEST])
    text = cut.decode("utf-8", "replace").rstrip()
    if text.isprintable():
        return text
    return "".join(char for char in text.replace("\t", " ") if char.isprintable())


def _split(block: bytes) -> list[bytes]:
    if b"\r" in block:
        return _BREAKS.split(block)  # progress bars write over themselves
    return block.split(b"\n")


def _opened(path: Path) -> BinaryIO:
    if str(path) == "-":
        return sys.stdin.buffer
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; give log files") from error
    kind = os.fstat(handle).st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
        os.close(handle)
        raise UsageError(f"{path} is no file: give log files, or - for standard input")
    os.set_blocking(handle, True)
    plain = io.BufferedReader(io.FileIO(handle, "rb"), CHUNK)
    if plain.peek(2)[:2] == _GZIP:
        return cast("BinaryIO", gzip.GzipFile(fileobj=plain))
    return plain
