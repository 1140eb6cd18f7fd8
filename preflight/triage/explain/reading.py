"""A log of any size, line by line: one rank's or everybody's, whole, torn or binary."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from preflight.triage.explain.opening import blocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONGEST = 16 << 10
"""Bytes of a line that are looked at, half of them at its end; what is between is cut out."""
_HUGE = 4 * LONGEST
"""Bytes of a line without an end (yet) that are kept."""

_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_BREAKS = re.compile(rb"\r\n|\n|\r")


def chunks(path: Path, troubles: list[str]) -> Iterator[list[bytes]]:
    """Yield a file's lines, some thousands at a time; `-` is standard input.

    A huge line is one line, cut. UsageError where the file cannot be opened. What breaks later (a
    gzip cut short) is told in `troubles`, and what came before it counts.
    """
    left = b""
    for block in blocks(path, troubles):
        text = left + block
        lines = _split(text)
        left = lines.pop()
        if text.endswith(b"\r"):
            left = lines.pop() + b"\r"  # the line feed may come
        if len(left) > _HUGE:
            left = left[:LONGEST] + left[-LONGEST:]
        if len(lines) * LONGEST < len(text):
            lines = [_cut(line) for line in lines]
        yield lines
    if left:
        yield [_cut(left.removesuffix(b"\r"))]


def text_of(line: bytes) -> str:
    """A line as text that a terminal and a report can show: no escapes, no control characters."""
    cut = _ESCAPES.sub(b"", _cut(line))
    text = cut.decode("utf-8", "replace").rstrip()
    if text.isprintable():
        return text
    return "".join(char for char in text.replace("\t", " ") if char.isprintable())


def _cut(line: bytes) -> bytes:
    if len(line) <= LONGEST:
        return line
    half = LONGEST // 2
    return line[:half] + b" ... " + line[5 - half :]


def _split(block: bytes) -> list[bytes]:
    if b"\r" in block:
        return _BREAKS.split(block)  # progress bars write over themselves
    return block.split(b"\n")
