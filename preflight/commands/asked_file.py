"""What somebody asked a command to write: a file in one piece, or refused in one line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.report.files import FILE_MODE, write_typed

if TYPE_CHECKING:
    from pathlib import Path


def write_asked(path: Path, content: bytes, mode: int = FILE_MODE) -> None:
    """Write it, to standard output for `-`; UsageError (exit 4) that says what to give instead."""
    if str(path) == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        return
    try:
        write_typed(path.expanduser().absolute(), content, mode)
    except FileNotFoundError as error:
        raise UsageError(
            f"cannot write {path}: there is no folder {path.parent}; make it, or give another file"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; give another file") from error
