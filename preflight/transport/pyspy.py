"""The py-spy beside this preflight, in pieces, for a node that lacks one and is built alike."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
import threading
import zlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECE = 1 << 20
"""Bytes before base64: the payload takes no line of over 4 MiB."""

_LARGEST = 32 << 20
_ELF_MACHINES = {62: ("x86_64", "amd64"), 183: ("aarch64", "arm64"), 243: ("riscv64",)}
"""e_machine, and how uname calls it."""

_packing = threading.Lock()


def offer(machine: str) -> Iterator[dict[str, Any]]:
    """Yield the messages that bring py-spy to a node of that kind, or one that says why not."""
    with _packing:  # all nodes of a fleet ask at the same moment
        program = _program()
    if program is None:
        yield {"none": "neither this node nor the machine that asks has py-spy"}
        return
    content, machines = program
    if machine not in machines:
        built = machines[0] if machines else "another kind"
        yield {"none": f"this node is {machine[:40]}, the py-spy of the machine that asks {built}"}
        return
    pieces = [content[at : at + _PIECE] for at in range(0, len(content), _PIECE)]
    for number, piece in enumerate(pieces, 1):
        yield {"part": piece, "more": number < len(pieces)}


@lru_cache(maxsize=1)
def _program() -> tuple[bytes, tuple[str, ...]] | None:
    """Return it compressed, and for which machines it is; None where there is none."""
    try:
        content = next((path.read_bytes() for path in _places() if path.is_file()), b"")
    except OSError:
        return None
    if not content.startswith(b"\x7fELF") or len(content) > _LARGEST:
        return None
    machine = int.from_bytes(content[18:20], "little")
    return zlib.compress(content, 6), _ELF_MACHINES.get(machine, ())


def _places() -> Iterator[Path]:
    """Where `pip install pytest-preflight[diagnose]` has put it, then where a shell finds one."""
    yield Path(sys.executable).with_name("py-spy")
    try:
        files = importlib.metadata.files("py-spy") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    yield from (Path(str(file.locate())) for file in files if file.name == "py-spy")
    found = shutil.which("py-spy")
    if found:
        yield Path(found)
