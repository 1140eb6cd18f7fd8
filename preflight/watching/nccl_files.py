"""What NCCL's own files of settings hold: the environment wins over them, so ours must not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LARGEST = 64 << 10


def set_in_files(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Variables by name: (value, file). NCCL reads one of a user, then /etc/nccl.conf."""
    found: dict[str, tuple[str, str]] = {}
    for path in _places(environ):
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                text = file.read(_LARGEST)
        except OSError:
            continue
        for line in text.splitlines():
            name, equals, value = line.partition("=")
            if equals and not name.startswith("#"):
                found.setdefault(name.strip(), (value.strip(), str(path)))
    return found


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    if named := environ.get("NCCL_CONF_FILE"):
        yield Path(named)
    elif home := environ.get("HOME"):
        yield Path(home) / ".nccl.conf"
    yield Path("/etc/nccl.conf")
