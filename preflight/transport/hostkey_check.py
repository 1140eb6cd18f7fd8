"""Refuses a node whose host key nobody vouches for, and says what a person must do about it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from preflight.transport.hostkeys import AUTHORITY, REVOKED, Known, fingerprint
from preflight.transport.protocol import ReachError

if TYPE_CHECKING:
    from collections.abc import Sequence


def verify(
    known: Sequence[Known], kind: str, blob: bytes, *, names: Sequence[str], files: Sequence[str]
) -> None:
    """Return if the key is known for the host, else raise ReachError("hostkey").

    `known`: the lines about the host. `kind`, `blob`: the key it showed. `names`: the host as
    known_hosts files write it, exact first; a later one counts only where the exact one is not
    there at all. `files`: where we looked.
    """
    revoked = [line for line in known if line.marker == REVOKED and line.blob == blob]
    if revoked:
        raise _revoked(revoked[0], kind, blob)
    plain = [line for line in known if not line.marker]
    exact = [line for line in plain if line.speaks_of(names[0])]
    if any(line.kind == kind and line.blob == blob for line in exact or plain):
        return
    if exact:
        raise _changed(exact, kind, blob, names[0])
    authorities = [line for line in known if line.marker == AUTHORITY]
    if authorities:
        raise _certified(authorities[0], kind, names[0])
    raise _unknown(kind, blob, names[0], files)


def kinds_known(known: Sequence[Known]) -> tuple[str, ...]:
    """Key types to ask the host for first, so that it shows one that we can compare."""
    return tuple(dict.fromkeys(line.kind for line in known if not line.marker))


def _revoked(line: Known, kind: str, blob: bytes) -> ReachError:
    return ReachError(
        "hostkey",
        f"it shows the {kind} key {fingerprint(blob)}, which {line.file} line {line.line} revokes",
        "do not log in; give the node a new host key, or find out who answers in its place",
    )


def _changed(lines: Sequence[Known], kind: str, blob: bytes, name: str) -> ReachError:
    old = next((line for line in lines if line.kind == kind), lines[0])
    forget = shlex.join(("ssh-keygen", "-R", name, "-f", old.file))
    return ReachError(
        "hostkey",
        f"its host key changed: it shows {kind} {fingerprint(blob)}, "
        f"{old.file} line {old.line} has {old.kind} {old.fingerprint}",
        f"{_compare(kind)}; if the node was reinstalled, run `{forget}`, "
        f"then {_add(kind, name, old.file)}; else find out who answers in its place",
    )


def _certified(line: Known, kind: str, name: str) -> ReachError:
    return ReachError(
        "hostkey",
        f"{line.file} line {line.line} vouches for it through an SSH certificate authority, which "
        "the paramiko transport cannot verify: that takes OpenSSH's own ssh",
        f"{_compare(kind)}, then {_add(kind, name, line.file)}",
    )


def _unknown(kind: str, blob: bytes, name: str, files: Sequence[str]) -> ReachError:
    where = " or ".join(files) or "any known_hosts file"
    return ReachError(
        "hostkey",
        f"its host key is unknown: it shows {kind} {fingerprint(blob)}, not in {where}",
        f"{_compare(kind)}, then {_add(kind, name, files[0] if files else 'known_hosts')}",
    )


def _compare(kind: str) -> str:
    """The public half lies where sshd keeps it by default."""
    return f"compare with `ssh-keygen -lf /etc/ssh/ssh_host_{_family(kind)}_key.pub` on its console"


def _add(kind: str, name: str, file: str) -> str:
    host, _, port = name.removeprefix("[").partition("]:")
    scan = shlex.join(("ssh-keyscan", "-t", _family(kind), "-p", port or "22", "--", host))
    return f"add it: `{scan} >> {shlex.quote(file)}`"


def _family(kind: str) -> str:
    return {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}.get(kind, "ecdsa")
