"""The bytes of a file of samples: plain or gzip, of a run's folder or by itself, never endless."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.fleet.files import read_regular

if TYPE_CHECKING:
    from pathlib import Path

LARGEST = 1 << 30
"""Bytes, before and after decompression."""

MOST_NUMBERS = 100_000_000
"""Entries of the whole document; each takes up to 40 bytes once it is read."""

_MEASURED = ("measured.json", "measured.json.gz")
_MAGIC = b"\x1f\x8b"
_CHUNK = 4 << 20
_GIVE = "give the folder of a run, its measured.json, or samples as docs/samples.md says"


def open_samples(given: Path) -> tuple[Path, bytes]:
    """Read the file, or the one in a run's folder; UsageError names it and says what is wrong."""
    path = _in_folder(given) if given.is_dir() else given
    try:
        content = read_regular(path, LARGEST)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; {_GIVE}") from error
    if content.startswith(_MAGIC):
        content = _unpacked(path, content)
    if not content.strip():
        raise UsageError(f"{path} is empty; {_GIVE}")
    if content.count(b",") > MOST_NUMBERS:
        raise UsageError(
            f"{path} holds more than {MOST_NUMBERS:,} entries; store the short form of so many "
            "samples (docs/samples.md), or fewer pairs"
        )
    return path, content


def _in_folder(folder: Path) -> Path:
    found = next((folder / name for name in _MEASURED if (folder / name).exists()), None)
    if found is None:
        raise UsageError(f"{folder} holds no measured.json, so it is no run's folder; {_GIVE}")
    return found


def _unpacked(path: Path, content: bytes) -> bytes:
    """Decompress piece by piece: a small file can hold a large bomb."""
    pieces: list[bytes] = []
    size = 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            while piece := file.read1(_CHUNK):  # what is sound, though the rest is not
                pieces.append(piece)
                size += len(piece)
                if size > LARGEST:
                    raise UsageError(
                        f"{path} holds more than {LARGEST >> 20} MiB once it is unpacked; "
                        "store the short form of so many samples (docs/samples.md)"
                    )
    except (EOFError, OSError, zlib.error) as error:
        reason = "it ends early" if isinstance(error, EOFError) else str(error)
        raise UsageError(
            f"{path} is damaged gzip ({reason}; about {size:,} bytes could be unpacked); "
            "copy it again from where it was written"
        ) from error
    return b"".join(pieces)
