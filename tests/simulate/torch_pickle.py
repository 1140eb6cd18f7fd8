"""Writes plain values as torch's own pickler does, which differs from Python's.

A text is in the memo from its first use; a list, tuple or dictionary only if it is used again.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any

_TUPLES = {1: b"\x85", 2: b"\x86", 3: b"\x87"}


def dumps(value: Any) -> bytes:
    """The value as torch writes it; `torch/csrc/jit/serialization/pickler.cpp`."""
    uses: Counter[int] = Counter({id(value): 1})  # the caller's own
    _count(value, uses, first=True)
    parts = [b"\x80\x02"]
    _write(value, uses, {}, parts)
    return b"".join([*parts, b"."])


def _count(value: Any, uses: Counter[int], *, first: bool = False) -> None:
    if isinstance(value, (dict, list, tuple)):
        uses[id(value)] += 1
        if uses[id(value)] <= 1 + first:
            for one in value.values() if isinstance(value, dict) else value:
                _count(one, uses)


def _write(value: Any, uses: Counter[int], memo: dict[Any, int], parts: list[bytes]) -> None:
    if value is None or isinstance(value, bool):
        parts.append({None: b"N", True: b"\x88", False: b"\x89"}[value])
    elif isinstance(value, int):
        parts.append(_number(value))
    elif isinstance(value, float):
        parts.append(b"G" + struct.pack(">d", value))
    else:
        key = value if isinstance(value, str) else id(value)
        if key in memo:
            place = memo[key]
            parts.append(b"h%c" % place if place < 1 << 8 else b"j" + struct.pack("<I", place))
            return
        if isinstance(value, str):
            text = value.encode()
            parts.append(b"X" + struct.pack("<I", len(text)) + text)
        else:
            _write_several(value, uses, memo, parts)
        if isinstance(value, str) or uses[id(value)] > 1:
            place = memo[key] = len(memo)
            parts.append(b"q%c" % place if place < 1 << 8 else b"r" + struct.pack("<I", place))


def _number(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return b"K%c" % value
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)


def _write_several(
    value: Any, uses: Counter[int], memo: dict[Any, int], parts: list[bytes]
) -> None:
    begin, end = (b"}(", b"u") if isinstance(value, dict) else (b"](", b"e")
    if isinstance(value, tuple):
        begin, end = (b"", _TUPLES[len(value)]) if 0 < len(value) < 4 else (b"(", b"t")
    parts.append(begin)
    for one in value:
        _write(one, uses, memo, parts)
        if isinstance(value, dict):
            _write(value[one], uses, memo, parts)
    parts.append(end)
