"""PCIe settings decide whether a NIC reaches a GPU directly; they lie behind the first 64 bytes.

Those 64 everybody may read, the rest only root: without it every answer here is None.
"""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CAPABILITIES = 0x34
_EXPRESS = 0x10
_RELAXED = 1 << 4
"""Enable Relaxed Ordering, in Device Control."""

_EXTENDED = 0x100
_ACS = 0x000D
_REDIRECT = 0x04 | 0x08
"""P2P Request Redirect and P2P Completion Redirect, in ACS Control."""

_DIRECT_TRANSLATED = 0x40
_HOPS = 64
"""Capabilities followed at most: a chain that bites its tail ends here."""


def relaxed_ordering(path: str) -> bool | None:
    """Whether a device may let its writes overtake one another; None where it cannot be read."""
    space = _open(path)
    if space is None:
        return None
    try:
        at = _find(space)
        control = _word(space, at + 8) if at else None
        return None if control is None else bool(control & _RELAXED)
    finally:
        os.close(space)


def acs(path: str) -> tuple[bool, dict[str, Any] | None]:
    """(readable, ACS bits) of one PCIe port; no bits where it has no access control."""
    space = _open(path)
    if space is None:
        return False, None
    try:
        at, header = _EXTENDED, _long(space, _EXTENDED)
        if header is None:
            return False, None
        for _ in range(_HOPS):
            if header is None or header in (0, 0xFFFFFFFF):
                break
            if header & 0xFFFF == _ACS:
                control = _word(space, at + 6) or 0
                bits = bool(control & _REDIRECT), bool(control & _DIRECT_TRANSLATED)
                return True, {"redirects": bits[0], "translated": bits[1]}
            at = header >> 20
            if at < _EXTENDED:
                break
            header = _long(space, at)
        return True, None
    finally:
        os.close(space)


def _open(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _find(space: int) -> int:
    """Where the PCI Express capability begins; 0 where it cannot be found."""
    at = (_word(space, _CAPABILITIES) or 0) & 0xFC
    for _ in range(_HOPS):
        if at < 0x40:  # noqa: PLR2004 (the header ends there)
            return 0
        head = _word(space, at)
        if head is None:
            return 0
        if head & 0xFF == _EXPRESS:
            return at
        at = (head >> 8) & 0xFC
    return 0


def _word(space: int, at: int) -> int | None:
    return _number(space, at, "<H")


def _long(space: int, at: int) -> int | None:
    return _number(space, at, "<I")


def _number(space: int, at: int, form: str) -> int | None:
    size = struct.calcsize(form)
    try:
        raw = os.pread(space, size, at)
    except OSError:
        return None
    return int(struct.unpack(form, raw)[0]) if len(raw) == size else None
