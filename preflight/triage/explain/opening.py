"""A log's bytes as they come: plain, gzipped and torn, of a pipe that nobody writes to yet, UTF-16.

The cause stands at the end, and the end is what is torn: all that can be had of it counts.
"""

from __future__ import annotations

import codecs
import io
import shlex
import sys
import zlib
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, cast

from preflight.errors import UsageError
from preflight.fleet.files import open_stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    _Peeked = io.BufferedReader[io.FileIO]

CHUNK = 1 << 20

ANYWAY = 32 << 20
"""Bytes that any file may unpack to; then so many for each byte of it:"""
_SWELLS = 100

_GZIP = b"\x1f\x8b"
_ANY_GZIP = 16 + zlib.MAX_WBITS
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
"""What PowerShell's `>` writes."""


def blocks(path: Path, troubles: list[str]) -> Iterator[bytes]:
    """Yield a file's text as it comes, about CHUNK bytes at a time; `-` is standard input.

    UsageError where it cannot be opened. What breaks later is told in `troubles`.
    """
    with _opened(path) as file:
        try:
            raw = _raw(file)
            packed = file.peek(len(_GZIP)).startswith(_GZIP)
            yield from _as_utf8(_unzipped(raw, path) if packed else raw)
        except (OSError, EOFError, zlib.error) as error:
            troubles.append(f"{path}: read up to a fault ({error})")


@contextmanager
def _opened(path: Path) -> Iterator[_Peeked]:
    if str(path) == "-":
        yield cast("_Peeked", sys.stdin.buffer)
        return
    try:
        handle = open_stream(path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; give log files") from error
    with io.BufferedReader(io.FileIO(handle, "rb"), CHUNK) as file:
        yield file


def _raw(file: _Peeked) -> Iterator[bytes]:
    """`read1`, because `read` forgets what it has gathered when the next piece is a fault."""
    while more := file.read1(CHUNK):
        yield more


def _unzipped(raw: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """Decompress one member after the other; zlib.error or EOFError after all that could be had."""
    member = zlib.decompressobj(_ANY_GZIP)
    whole = False
    left = ANYWAY
    for block in raw:
        rest = block
        left += len(block) * _SWELLS
        while True:
            if member.eof:
                rest = rest.lstrip(b"\0")  # tapes and block devices pad
                if not rest:
                    break
                member, whole = zlib.decompressobj(_ANY_GZIP), True
            before = member.copy()
            try:
                text = member.decompress(rest, CHUNK)
            except zlib.error as error:
                yield _up_to_fault(before, rest)
                if whole and "header" in str(error):
                    raise EOFError("what follows the gzipped text is not gzipped") from error
                raise
            yield text
            left -= len(text)
            if left < 0:
                raise EOFError(
                    f"it unpacks to over {_SWELLS} times its size; where that is no trap: "
                    f"zcat {shlex.quote(str(path))} | preflight explain -"
                )
            rest = member.unused_data if member.eof else member.unconsumed_tail
            if not rest and len(text) < CHUNK:
                break
    if not member.eof:
        raise EOFError("the gzipped text is cut short")


def _up_to_fault(member: zlib._Decompress, rest: bytes) -> bytes:
    """Byte by byte: a call that meets the fault gives nothing of what came before it."""
    got = bytearray()
    with suppress(zlib.error):
        for byte in rest:
            got += member.decompress(bytes((byte,)))
    return bytes(got)


def _as_utf8(texts: Iterator[bytes]) -> Iterator[bytes]:
    """Text of two bytes a character as the rest of us reads it; anything else as it is."""
    first = b""
    for text in texts:
        first += text
        if len(first) >= len(codecs.BOM_UTF16_LE):
            break
    code = _UTF16.get(first[:2])
    if code is None:
        yield first
        yield from texts
        return
    decoder = codecs.getincrementaldecoder(code)("replace")
    yield decoder.decode(first[2:]).encode()
    for text in texts:
        yield decoder.decode(text).encode()
