"""Which of a variable's two names the launch's torch wants: it warns of the older, per rank.

Read from the headers that torch itself installs; where none are found, both names are set, which
costs a line of output at most.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HEADER = "torch/include/torch/csrc/distributed/c10d/FlightRecorder.hpp"
_OLD_SIZE, _OLD_FILE = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
_SIZE_BY_DEFAULT = f'"{_OLD_SIZE}"}}, 2000)'
"""Only where it records by default do all parts of torch go without the older name."""

_FILE_BY_NEW_NAME = "enable_dynamic_filename_"
"""Came after the newer name of the file."""

_LONGEST = 256 << 10


def outdated(command: str, environ: Mapping[str, str]) -> frozenset[str]:
    """Names that need not be set for this launcher's torch; empty where that is not known."""
    for packages in _packages(command, environ):
        if not (packages / "torch").is_dir():
            continue
        try:
            with (packages / _HEADER).open(encoding="utf-8", errors="replace") as header:
                text = header.read(_LONGEST)
        except OSError:
            return frozenset()
        if _SIZE_BY_DEFAULT not in text:
            return frozenset()
        return frozenset({_OLD_SIZE} | ({_OLD_FILE} if _FILE_BY_NEW_NAME in text else set()))
    return frozenset()


def _packages(command: str, environ: Mapping[str, str]) -> Iterator[Path]:
    """Where the launcher's Python keeps its packages."""
    found = shutil.which(command, path=environ.get("PATH"))
    if found is None:
        return
    python = Path(found)
    if not python.name.startswith("python"):
        named = _interpreter(python)
        if named is None:
            return
        python = named
    for folder in (python.parent.parent, python.resolve().parent.parent):
        yield from sorted(folder.glob("lib/python3*/*-packages"))


def _interpreter(script: Path) -> Path | None:
    """The Python in a script's first line; None for anything else."""
    try:
        with script.open("rb") as file:
            first = file.readline(1024)
    except OSError:
        return None
    words = os.fsdecode(first[2:]).split()
    if not first.startswith(b"#!") or not words or "python" not in words[0]:
        return None
    return Path(words[0])
