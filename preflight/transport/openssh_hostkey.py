"""A host key or certificate that `ssh` did not accept: what it showed, and what to do about it."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

from preflight.transport.hostkey_check import Shown, refusal
from preflight.transport.hostkeys import REVOKED, Known, read_known_hosts
from preflight.transport.legible import legible
from preflight.transport.protocol import ReachError
from preflight.transport.sshask import config_option

if TYPE_CHECKING:
    from preflight.transport.sshconfig import Route

_KEY: Final = re.compile(r"^debug1: Server host key: (\S+) (SHA256:\S+)", re.MULTILINE)
_CERTIFICATE: Final = re.compile(
    r"^debug1: Server host certificate: (\S+) (SHA256:[^\s,]+), serial \d+ "
    r'ID "(.*)" CA (\S+) (SHA256:\S+) valid (.*)$',
    re.MULTILINE,
)
_INVALID: Final = re.compile(r"^Certificate invalid: (.+)$", re.MULTILINE)


def refused_key(said: str, route: Route) -> ReachError:
    """Name key, certificate and authority by their fingerprints. `said`: the log of `ssh -v`."""
    try:
        known = read_known_hosts(route.known_hosts, route.known_names)
    except ReachError as error:
        return error
    certificate = _CERTIFICATE.search(said)
    if certificate:
        return _refused_certificate(said, certificate, route, known)
    key = _KEY.search(said)
    if key is None:
        return _unseen(said, route)
    shown = Shown(legible(key[1], 60), key[2])
    found = _refusal(known, shown, route)
    is_revoked = "is marked as revoked" in said or "was revoked" in said or "revoked by" in said
    if is_revoked and "revokes" not in found.sentence:
        return _revoked(f"it shows the {shown.kind} key {shown.fingerprint}, which ssh's {_WHERE}")
    return found


_WHERE: Final = "configuration revokes (RevokedHostKeys)"


def _refused_certificate(
    said: str, certificate: re.Match[str], route: Route, known: tuple[Known, ...]
) -> ReachError:
    shown = Shown(legible(certificate[1], 60), certificate[2])
    authority = Shown(legible(certificate[4], 60), certificate[5])
    whose = f"its host certificate {legible(certificate[3], 60)!a}, signed by {authority.kind} "
    whose += authority.fingerprint
    for line in known:
        if line.marker == REVOKED and line.fingerprint == authority.fingerprint:
            return _revoked(f"{whose}, is void: {line.file} line {line.line} revokes that key")
        if line.marker == REVOKED and line.fingerprint == shown.fingerprint:
            return _refusal(known, shown, route)
    if "was revoked" in said or "is marked as revoked" in said:
        return _revoked(f"{whose}, is void: ssh's {_WHERE}")
    if invalid := _INVALID.search(said):
        name = route.known_names[0]
        sign = shlex.join(("ssh-keygen", "-s", "CA", "-I", "ID", "-h", "-n", name, "HOST_KEY.pub"))
        return ReachError(
            "hostkey",
            f"{whose}, is not accepted for {name}: {legible(invalid[1])}",
            f"sign the node's host key anew (`{sign}`), or find out who answers in its place",
        )
    if any(not line.marker for line in known):
        return _refusal(known, shown, route)
    files = " or ".join(route.known_hosts)
    return ReachError(
        "hostkey",
        f"{whose}: no @cert-authority line of {files} trusts that key for it",
        f"compare the fingerprint with your authority's (`ssh-keygen -lf CA.pub`), then add "
        f"`@cert-authority {route.known_names[0]} KEY` to {route.known_hosts[0]}"
        if route.known_hosts
        else "give the node a `known_hosts` in the inventory",
    )


def _refusal(known: tuple[Known, ...], shown: Shown, route: Route) -> ReachError:
    through = ("ssh", *config_option(route.ssh_config), route.via) if route.via else ()
    names, files = route.known_names, route.known_hosts
    return refusal(known, shown, names=names, files=files, through=through)


def _revoked(sentence: str) -> ReachError:
    return ReachError(
        "hostkey",
        sentence,
        "do not log in; give the node a new host key, or find out who answers in its place",
    )


def _unseen(said: str, route: Route) -> ReachError:
    """Some ssh that words its log otherwise."""
    lines = [line for line in said.splitlines() if line and not line.startswith("debug")]
    return ReachError(
        "hostkey",
        f"ssh does not accept the host key of {route.where}: "
        + legible(lines[-2] if len(lines) > 1 else "no reason given"),
        "find the key with `ssh-keyscan`, compare it on the node's console, add it to known_hosts",
    )
