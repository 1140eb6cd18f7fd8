"""Verify a node's host key against known_hosts files; a node whose key is unknown is refused.

paramiko's own reader raises on `@revoked` and `@cert-authority` lines, knows no patterns and reads
only one key of each type, so it would refuse, or accept, hosts that `ssh` would not.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import shlex
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.core.files import read_regular, unreadable
from preflight.core.remote_command import ReachError
from preflight.core.statistics import grouped
from preflight.transport import reach_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preflight.transport.ssh_config import Route


LARGEST = 16 << 20
"""Bytes of a known_hosts file; 64 Ki hosts with three keys each need about 12 MiB hashed."""

MOST_COMPARED = 1 << 23
"""Comparisons with lines of one file in a run: a hash takes some 10 us, and each node is compared
with every hashed name and pattern. 1,600 nodes with three hashed keys each stay below."""

_LONGEST_PATTERN = 1022
"""Characters of a name or pattern; OpenSSH's match_pattern_list() finds no host in a longer one."""

_HASHED = re.compile(r"\|1\|([A-Za-z0-9+/]{27}=)\|([A-Za-z0-9+/]{27}=)")
"""Salt and hash have 20 bytes each, as OpenSSH's host_hash() requires."""

REVOKED, AUTHORITY = "@revoked", "@cert-authority"


_Pattern = tuple[bool, "Callable[[str], bool]"]
"""Whether it stands after `!`, and the test whether a whole name matches it."""


def _is_hash_of(salt: bytes, digest: bytes, name: str) -> bool:
    """Whether it is `|1|salt|HMAC-SHA1(salt, name)`, as `HashKnownHosts` writes it."""
    return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)


class KnownHost(Struct, frozen=True):
    """One line of a known_hosts file."""

    file: str
    line: int
    marker: str
    plain: frozenset[str]
    patterns: tuple[_Pattern, ...]
    kind: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """The fingerprint as `ssh-keygen -l` prints it."""
        return fingerprint(self.blob)

    def is_about(self, name: str) -> bool:
        """Whether the line is about that host ("gpu017", "[gpu017]:2222")."""
        name = name.lower()
        matching = [negated for negated, matches in self.patterns if matches(name)]
        return (name in self.plain or bool(matching)) and not any(matching)


def fingerprint(blob: bytes) -> str:
    """Return the SHA256 of a public key in OpenSSH's notation."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def read_known_hosts(files: Sequence[str], names: Sequence[str]) -> tuple[KnownHost, ...]:
    """Return all lines about a host with these names; a missing file has none."""
    return tuple(entry for file in files for entry in _lines_about(file, names, ""))


def has_authority(files: Sequence[str], names: Sequence[str]) -> bool:
    """Whether a certificate authority vouches for a host; unreadable files are skipped."""
    with suppress(ReachError):
        return any(_lines_about(file, names, AUTHORITY) for file in files)
    return False


def known_kinds(known_hosts: Sequence[KnownHost]) -> tuple[str, ...]:
    """Return the key types to ask the host for first, so that its key can be compared."""
    return tuple(dict.fromkeys(line.kind for line in known_hosts if not line.marker))


class HostKey(Struct, frozen=True):
    """The host key that a node showed: its type, and its SHA256 as ssh-keygen prints it."""

    kind: str
    fingerprint: str


def verify(known_hosts: Sequence[KnownHost], kind: str, blob: bytes, route: Route) -> None:
    """Return if the key is known for the host, else raise ReachError("hostkey").

    `known_hosts`: the lines about the host. `kind`, `blob`: its key. Of the route's names for it, a
    later one counts only if no line has the exact one, which comes first.
    """
    if not any(line.marker == REVOKED and line.blob == blob for line in known_hosts):
        plain = [line for line in known_hosts if not line.marker]
        exact = [line for line in plain if line.is_about(route.known_names[0])]
        if any(line.kind == kind and line.blob == blob for line in exact or plain):
            return
    raise refusal(known_hosts, HostKey(kind, fingerprint(blob)), route, knows_certificates=False)


def refusal(
    known_hosts: Sequence[KnownHost],
    shown: HostKey,
    route: Route,
    *,
    knows_certificates: bool = True,
) -> ReachError:
    """Say why a key is not accepted.

    `knows_certificates`: whether the SSH client that refused the key can verify certificates.
    """
    name, files = route.known_names[0], route.known_hosts
    for line in known_hosts:
        if line.marker == REVOKED and line.fingerprint == shown.fingerprint:
            key = f"it shows the {shown.kind} key {shown.fingerprint}"
            sentence = f"{key}, which {line.file} line {line.line} revokes"
            return reach_error("revoked", sentence=sentence)
    # At sshd's default path of the key's public half.
    file = f"/etc/ssh/ssh_host_{_key_family(shown)}_key.pub"
    compare = f"compare with `ssh-keygen -lf {file}` on its console"
    exact = [line for line in known_hosts if not line.marker and line.is_about(name)]
    if exact:
        old = next((line for line in exact if line.kind == shown.kind), exact[0])
        add = _add_command(shown, route, old.file)
        forget = shlex.join(("ssh-keygen", "-R", name, "-f", old.file))
        return reach_error("changed", shown=shown, old=old, compare=compare, forget=forget, add=add)
    authorities = [line for line in known_hosts if line.marker == AUTHORITY]
    if authorities and knows_certificates:
        line = authorities[0]
        add = _add_command(shown, route, line.file)
        return reach_error("no_certificate", line=line, shown=shown, compare=compare, add=add)
    if authorities:
        return reach_error("certificate_for_paramiko", line=authorities[0])
    add = _add_command(shown, route, files[0] if files else "known_hosts")
    where = " or ".join(files) or "any known_hosts file"
    return reach_error("unknown_key", shown=shown, where=where, compare=compare, add=add)


def _add_command(shown: HostKey, route: Route, file: str) -> str:
    scan = ("ssh-keyscan", "-t", _key_family(shown), "-p", str(route.port), "--", route.hostname)
    alias = f" | sed {shlex.quote(f's/[^ ]*/{route.alias}/')}" if route.alias else ""
    return f"add it: `{shlex.join((*route.through, *scan))}{alias} >> {shlex.quote(file)}`"


def _key_family(shown: HostKey) -> str:
    kind = shown.kind.removesuffix("-cert-v01@openssh.com")
    return {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}.get(kind, "ecdsa")


def _lines_about(file: str, names: Sequence[str], marker: str) -> list[KnownHost]:
    path = Path(file)
    try:
        stamp = path.stat()
        index = _index(path, stamp.st_mtime_ns, stamp.st_size, marker)
    except FileNotFoundError:
        return []
    except OSError as error:
        index = _unreadable(path, error)
    if isinstance(index, ReachError):
        raise index.with_traceback(None)
    return index.lines_about(names)


class _Index:
    """The lines of a file by plain name; those with hashed names or patterns apart."""

    def __init__(self, path: Path, lines: Sequence[KnownHost]) -> None:
        self._path = path
        self._others = [entry for entry in lines if entry.patterns]
        self._lines = grouped(
            (name, entry) for entry in lines if not entry.patterns for name in entry.plain
        )
        self._by_pattern: dict[str, list[KnownHost]] = {}
        self._patterns = sum(len(entry.patterns) for entry in self._others)
        self._comparisons_left = MOST_COMPARED

    def lines_about(self, names: Sequence[str]) -> list[KnownHost]:
        """Return the lines about a host, in their order; ReachError once the work is too much."""
        entries: dict[int, KnownHost] = {}
        for name in map(str.lower, names):
            if name not in self._by_pattern:
                self._count(self._patterns)
                self._by_pattern[name] = [entry for entry in self._others if entry.is_about(name)]
            lines = [*self._lines.get(name, ()), *self._by_pattern[name]]
            # Who verifies a key compares the name with each of these lines again.
            self._count(sum(max(1, len(entry.patterns)) for entry in lines))
            entries |= {entry.line: entry for entry in lines}
        return [entries[number] for number in sorted(entries)]

    def _count(self, comparisons: int) -> None:
        self._comparisons_left -= comparisons
        if self._comparisons_left < 0:
            raise reach_error("too_many_hosts", path=self._path, most=MOST_COMPARED)


@lru_cache(maxsize=64)
def _index(path: Path, _mtime_ns: int, _size: int, marker: str) -> _Index | ReachError:
    """Read a file, once for all nodes of a run. `marker`: only the lines with that marker."""
    try:
        lines = read_regular(path, LARGEST).decode().split("\n")  # as OpenSSH: VT or NEL ends none
        numbered = enumerate(lines, start=1)
        entries = [_parse_line(path, number, text.strip()) for number, text in numbered]
    except UnicodeDecodeError as error:
        return _unreadable(path, error)
    except ReachError as error:
        return error
    return _Index(path, [entry for entry in entries if entry and entry.marker.startswith(marker)])


def _unreadable(path: Path, error: OSError | UnicodeDecodeError) -> ReachError:
    return reach_error("unreadable_hosts", path=path, reason=unreadable(error))


def _parse_line(path: Path, number: int, text: str) -> KnownHost | None:
    if not text or text.startswith("#"):
        return None
    marker, _, rest = text.partition(" ") if text.startswith("@") else ("", "", text)
    names, kind, key = [*rest.split(maxsplit=3), "", "", ""][:3]
    blob, parsed = _decode(key), _parse_names(names)
    if blob and parsed and marker in ("", REVOKED, AUTHORITY):
        return KnownHost(str(path), number, marker, *parsed, kind, blob)
    if not marker:
        return None  # OpenSSH also skips such a line
    raise reach_error("bad_marker", path=path, number=number)


def _decode(key: str) -> bytes:
    try:
        return base64.b64decode(key, validate=True)
    except ValueError:
        return b""


def _parse_names(names: str) -> tuple[frozenset[str], tuple[_Pattern, ...]] | None:
    """Read the names of a line, once for all nodes; None for a line that OpenSSH skips, too."""
    if names.startswith("|"):
        if (hashed := _HASHED.fullmatch(names)) is None:
            return None
        salt, digest = map(base64.b64decode, hashed.groups())
        return frozenset(), ((False, partial(_is_hash_of, salt, digest)),)
    plain, patterns = set(), []
    for name in names.lower().split(","):
        negated = name.startswith("!")
        if len(name) - negated > _LONGEST_PATTERN:
            return None
        if negated or "*" in name or "?" in name:
            # A bracket means itself here: [gpu*]:2222.
            pattern = name[negated:].replace("[", "[[]")
            patterns.append((negated, partial(fnmatchcase, pat=pattern)))
        else:
            plain.add(name)
    return frozenset(plain), tuple(patterns)
