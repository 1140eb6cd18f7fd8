"""POSIX access lists of files, set without the tools of a package that may not be there."""

from __future__ import annotations

import errno
import os
import struct
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

NOBODY = 65534
_NOT_NAMED = 0xFFFFFFFF
_USER, _GROUP, _MASK = 2, 8, 0x10


def let_write(
    path: Path, *, group: bool = False, number: int = NOBODY, kind: str = "access", mask: int = 7
) -> None:
    """As `setfacl -m u:NUMBER:rwx` does it (`-d` for the kind "default"); `mask`: at most that."""
    entries = [
        (1, 7, _NOT_NAMED),
        (_GROUP if group else _USER, 7, number),
        (4, 5, _NOT_NAMED),
        (_MASK, mask, _NOT_NAMED),
        (0x20, 5, _NOT_NAMED),
    ]
    listed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in sorted(entries))
    try:
        os.setxattr(path, f"system.posix_acl_{kind}", listed)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            pytest.skip("this file system has no access lists")
        raise
