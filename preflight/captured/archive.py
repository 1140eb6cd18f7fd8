"""The archive of `preflight capture`: one manifest and the files that it names, in a tar.gz.

An archive may come from anyone. This module writes nothing to disk, and refuses members whose name,
size or kind differs from what `pack` writes.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from preflight.core.files import unpacked_limit
from preflight.core.text import plain_json
from preflight.errors import UsageError
from preflight.facts.basics import Line

SCHEMA = 1
MAGIC = b"\x1f\x8b"
MANIFEST = "manifest.json"

LARGEST = 256 << 20
"""Bytes of the unpacked archive; a node takes some 2 MiB with its samples."""

MOST_FILES = 20_000
_NAME = re.compile(r"(?:run|nodes/[A-Za-z0-9][A-Za-z0-9._-]{0,254})/[a-z0-9][a-z0-9._-]{0,79}")


class Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One requested output: its file, and why it is missing or incomplete."""

    name: Annotated[str, Meta(max_length=400)]
    """Its file in the archive; there is none if `error` says that nothing was collected."""
    node: Annotated[str, Meta(max_length=255)] = ""
    command: Line = ""
    status: int | None = None
    seconds: float = 0.0
    cut: bool = False
    """Whether it is longer than the stored part."""
    error: Line = ""
    """Why it could not be collected completely."""


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a capture contains, and what is missing and why."""

    schema: int = SCHEMA
    preflight: Annotated[str, Meta(max_length=64)]
    captured: Annotated[str, Meta(max_length=32)]
    """When, in UTC: 2026-11-22T21:00:00Z."""
    public: bool
    tier: Annotated[str, Meta(max_length=16)]
    run_exit: int | None
    """The exit code of its run; None if the run did not end in time."""
    parts: Annotated[tuple[Part, ...], Meta(max_length=MOST_FILES)]


class Archive(Struct, frozen=True):
    """A capture in memory. `files`: content by name, without the manifest."""

    manifest: Manifest
    files: dict[str, bytes]


def pack(manifest: Manifest, files: Mapping[str, bytes]) -> bytes:
    """Return the tar.gz; its members have neither owner nor time."""
    packed = io.BytesIO()
    contents = {MANIFEST: plain_json(manifest, indent=2).encode(), **files}
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o640
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=0)


def unpack(content: bytes) -> Archive:
    """Read an archive; UsageError says in one line what is damaged or invalid."""
    try:
        files = _members(_decompress(content))
        manifest = msgspec.json.decode(files.pop(MANIFEST, b"null"), type=Manifest)
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError, OverflowError) as error:
        reason = str(error).encode("ascii", "backslashreplace").decode()[:200]
        raise UsageError(
            f"it is no complete archive of preflight capture: {reason}; copy the archive again, or "
            "capture again"
        ) from error
    except RecursionError as error:
        raise UsageError("its manifest is nested too deep: capture again") from error
    if manifest.schema != SCHEMA:
        raise UsageError(
            f"its schema is {manifest.schema}, this preflight reads {SCHEMA}: use the one that "
            f"wrote it ({manifest.preflight})"
        )
    names = [part.name for part in manifest.parts]
    if unknown := [name for name in names if not _NAME.fullmatch(name)]:
        raise UsageError(
            f"its manifest names {unknown[0][:80]!a}, as no capture does: capture again"
        )
    if unknown := sorted(set(files) - set(names)):
        raise UsageError(f"it holds {unknown[0]}, which its manifest does not name: capture again")
    if missing := [part.name for part in manifest.parts if not (part.error or part.name in files)]:
        raise UsageError(f"its manifest names {missing[0][:80]!a}, which it lacks: capture again")
    if len(set(names)) != len(names):
        raise UsageError("its manifest names a part twice: capture again")
    return Archive(manifest, files)


_TAR_MAGIC_AT, _TAR_MAGIC = 257, b"ustar"


def inflated_text(content: bytes) -> bytes | None:
    """A single gzipped text; None for an archive or an incomplete gzip file."""
    try:
        unpacked = _decompress(content)
    except (EOFError, zlib.error, ValueError):
        return None
    return None if unpacked.startswith(_TAR_MAGIC, _TAR_MAGIC_AT) else unpacked


def _decompress(content: bytes) -> bytes:
    """Decompress up to the limit: a small file can be a zip bomb."""
    decompressor = zlib.decompressobj(wbits=31)
    limit = min(LARGEST, unpacked_limit(len(content)))
    unpacked = decompressor.decompress(content, limit + 1)
    if len(unpacked) > limit:
        raise ValueError(f"it holds more than {limit >> 20} MiB once it is unpacked")
    if not decompressor.eof:
        raise EOFError("it ends early")
    return unpacked


def _members(unpacked: bytes) -> dict[str, bytes]:
    """Read only plain files, header by header: tarfile takes quadratic time for extensions."""
    files: dict[str, bytes] = {}
    at = 0
    while (header := unpacked[at : at + 512]).strip(b"\0"):
        member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        name, begin = member.name, at + 512
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.size < 0:
            raise ValueError("it holds something else than plain files")
        if not files and name != MANIFEST:
            raise ValueError(f"it does not begin with {MANIFEST}")
        if name != MANIFEST and not _NAME.fullmatch(name):
            raise ValueError(f"no capture has a file {name[:80]!a}")
        if name in files or len(files) > MOST_FILES:
            raise ValueError(f"it holds {name} twice" if name in files else "too many files")
        files[name] = unpacked[begin : begin + member.size]
        if len(files[name]) != member.size:
            raise EOFError(f"{name} ends early")
        at = begin + -(-member.size // 512) * 512
    return files
