"""Refuses a node whose host key nobody vouches for, and says what a person must do about it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.transport.hostkeys import AUTHORITY, REVOKED, Known, fingerprint
from preflight.transport.protocol import ReachError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Shown(Struct, frozen=True):
    """The host key that a node showed: its type, and its SHA256 as ssh-keygen prints it."""

    kind: str
    fingerprint: str


def verify(
    known: Sequence[Known], kind: str, blob: bytes, *, names: Sequence[str], files: Sequence[str]
) -> None:
    """Return if the key is known for the host, else raise ReachError("hostkey").

    `known`: the lines about the host. `kind`, `blob`: the key it showed. `names`: the host as
    known_hosts files write it, exact first; a later one counts only where the exact one is not
    there at all. `files`: where we looked.
    """
    if not any(line.marker == REVOKED and line.blob == blob for line in known):
        plain = [line for line in known if not line.marker]
        exact = [line for line in plain if line.speaks_of(names[0])]
        if any(line.kind == kind and line.blob == blob for line in exact or plain):
            return
    shown = Shown(kind, fingerprint(blob))
    raise refusal(known, shown, names=names, files=files, knows_certificates=False)


def refusal(
    known: Sequence[Known],
    shown: Shown,
    *,
    names: Sequence[str],
    files: Sequence[str],
    through: Sequence[str] = (),
    knows_certificates: bool = True,
) -> ReachError:
    """Say why a key is not accepted.

    `through`: the command that runs another on the jump host. `knows_certificates`: whether the
    SSH that refused it could have verified one.
    """
    revoked = [
        line for line in known if line.marker == REVOKED and line.fingerprint == shown.fingerprint
    ]
    if revoked:
        return _revoked(revoked[0], shown)
    exact = [line for line in known if not line.marker and line.speaks_of(names[0])]
    if exact:
        return _changed(exact, shown, names[0], through)
    authorities = [line for line in known if line.marker == AUTHORITY]
    if authorities and knows_certificates:
        return _no_certificate(authorities[0], shown, names[0], through)
    if authorities:
        return _beyond_paramiko(authorities[0])
    return _unknown(shown, names[0], files, through)


def kinds_known(known: Sequence[Known]) -> tuple[str, ...]:
    """Key types to ask the host for first, so that it shows one that we can compare."""
    return tuple(dict.fromkeys(line.kind for line in known if not line.marker))


def _revoked(line: Known, shown: Shown) -> ReachError:
    return ReachError(
        "hostkey",
        f"it shows the {shown.kind} key {shown.fingerprint}, "
        f"which {line.file} line {line.line} revokes",
        "do not log in; give the node a new host key, or find out who answers in its place",
    )


def _changed(lines: Sequence[Known], shown: Shown, name: str, through: Sequence[str]) -> ReachError:
    old = next((line for line in lines if line.kind == shown.kind), lines[0])
    forget = shlex.join(("ssh-keygen", "-R", name, "-f", old.file))
    return ReachError(
        "hostkey",
        f"its host key changed: it shows {shown.kind} {shown.fingerprint}, "
        f"{old.file} line {old.line} has {old.kind} {old.fingerprint}",
        f"{_compare(shown)}; if the node was reinstalled, run `{forget}`, "
        f"then {_add(shown, name, old.file, through)}; else find out who answers in its place",
    )


def _no_certificate(line: Known, shown: Shown, name: str, through: Sequence[str]) -> ReachError:
    return ReachError(
        "hostkey",
        f"{line.file} line {line.line} vouches for it through an SSH certificate authority, but "
        f"it shows a plain {shown.kind} key, {shown.fingerprint}",
        f"look at HostCertificate in its sshd_config; else {_compare(shown)}, "
        f"then {_add(shown, name, line.file, through)}",
    )


def _beyond_paramiko(line: Known) -> ReachError:
    return ReachError(
        "hostkey",
        f"{line.file} line {line.line} vouches for it through an SSH certificate authority, which "
        "the paramiko transport cannot verify: that takes OpenSSH's own ssh",
        'write transport = "openssh" in the inventory, or leave it out (needs ssh here)',
    )


def _unknown(shown: Shown, name: str, files: Sequence[str], through: Sequence[str]) -> ReachError:
    where = " or ".join(files) or "any known_hosts file"
    return ReachError(
        "hostkey",
        f"its host key is unknown: it shows {shown.kind} {shown.fingerprint}, not in {where}",
        f"{_compare(shown)}, then "
        f"{_add(shown, name, files[0] if files else 'known_hosts', through)}",
    )


def _compare(shown: Shown) -> str:
    """The public half lies where sshd keeps it by default."""
    file = f"/etc/ssh/ssh_host_{_family(shown)}_key.pub"
    return f"compare with `ssh-keygen -lf {file}` on its console"


def _add(shown: Shown, name: str, file: str, through: Sequence[str]) -> str:
    host, _, port = name.removeprefix("[").partition("]:")
    scan = ("ssh-keyscan", "-t", _family(shown), "-p", port or "22", "--", host)
    return f"add it: `{shlex.join((*through, *scan))} >> {shlex.quote(file)}`"


def _family(shown: Shown) -> str:
    kind = shown.kind.removesuffix("-cert-v01@openssh.com")
    return {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}.get(kind, "ecdsa")
