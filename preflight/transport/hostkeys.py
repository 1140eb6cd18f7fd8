"""Whether a node is the node we think it is: OpenSSH's known_hosts, read as OpenSSH reads it.

paramiko's own reader raises on `@revoked` and `@cert-authority` lines, knows no patterns and looks
at one key of a kind only; each of these would turn away, or let in, hosts that `ssh` would not.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.fleet.files import read_regular
from preflight.transport.protocol import ReachError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LARGEST = 16 << 20
"""Bytes of a known_hosts file; 64 Ki hosts with three keys each need about 12 MiB hashed."""

REVOKED, AUTHORITY = "@revoked", "@cert-authority"


class Known(Struct, frozen=True):
    """One line of a known_hosts file."""

    file: str
    line: int
    marker: str
    names: str
    kind: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """As ssh-keygen -l prints it."""
        return fingerprint(self.blob)

    def speaks_of(self, name: str) -> bool:
        """Whether the line is about that host ("gpu017", "[gpu017]:2222")."""
        matched = False
        for pattern in self.names.split(","):
            negated = pattern.startswith("!")
            if _matches(pattern[negated:], name.lower()):
                if negated:
                    return False
                matched = True
        return matched


def fingerprint(blob: bytes) -> str:
    """SHA256 of a public key, in OpenSSH's writing."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def read_known_hosts(files: Sequence[str], names: Sequence[str]) -> tuple[Known, ...]:
    """All lines about a host that goes by `names`; files that do not exist hold none."""
    return tuple(
        known
        for file in files
        for known in _parsed(file, _parse)
        if any(known.speaks_of(name) for name in names)
    )


def vouching(files: Sequence[str], names: Sequence[str]) -> bool:
    """Whether a certificate authority vouches for a host; a file we cannot read says nothing."""
    with suppress(ReachError):
        return any(
            known.speaks_of(name)
            for file in files
            for known in _parsed(file, _authorities)
            for name in names
        )
    return False


def _parsed(file: str, read: Callable[[Path, int, int], tuple[Known, ...]]) -> tuple[Known, ...]:
    path = Path(file)
    try:
        stamp = path.stat()
        return read(path, stamp.st_mtime_ns, stamp.st_size)
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ReachError(
            "hostkey",
            f"{file} cannot be read: {reason}",
            f"make {file} a plain file that this login may read",
        ) from error


@lru_cache(maxsize=64)
def _parse(path: Path, _mtime_ns: int, _size: int) -> tuple[Known, ...]:
    numbered = enumerate(read_regular(path, LARGEST).decode().splitlines(), start=1)
    found = [_line(path, number, text.strip()) for number, text in numbered]
    return tuple(known for known in found if known)


@lru_cache(maxsize=64)
def _authorities(path: Path, mtime_ns: int, size: int) -> tuple[Known, ...]:
    """The few lines that every node of a fleet is looked up in."""
    return tuple(known for known in _parse(path, mtime_ns, size) if known.marker == AUTHORITY)


def _line(path: Path, number: int, text: str) -> Known | None:
    if not text or text.startswith("#"):
        return None
    marker, _, rest = text.partition(" ") if text.startswith("@") else ("", "", text)
    names, kind, key = [*rest.split(maxsplit=3), "", "", ""][:3]
    blob = _decoded(key)
    if blob and marker in ("", REVOKED, AUTHORITY):
        return Known(str(path), number, marker, names, kind, blob)
    if not marker:
        return None  # as OpenSSH does: a line that vouches for nobody
    raise ReachError(
        "hostkey",
        f"{path} line {number} has a marker and cannot be read, so a key it forbids might pass",
        f"correct line {number} of {path}",
    )


def _decoded(key: str) -> bytes:
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error:
        return b""


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("|1|"):
        return _hashed(pattern, name)
    if "*" not in pattern and "?" not in pattern:
        return pattern.lower() == name
    regex = re.escape(pattern.lower()).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(regex, name) is not None


def _hashed(pattern: str, name: str) -> bool:
    """`|1|salt|HMAC-SHA1(salt, name)`, as `HashKnownHosts` writes it."""
    try:
        salt, digest = (base64.b64decode(part) for part in pattern[3:].split("|"))
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)
