"""Why `ssh` did not get in: its own log (`ssh -v`), read into a step, a sentence and advice."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

from preflight.core.remote_command import ReachError
from preflight.core.text import legible
from preflight.transport import ssh_config
from preflight.transport.host_keys import REVOKED, Known, Shown, read_known_hosts, refusal
from preflight.transport.ssh_config import config_option, no_route

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.transport.ssh_config import Route


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


_NO_NAME: Final = re.compile(r"^ssh: Could not resolve hostname (\S+): (.+)$", re.MULTILINE)
_NO_CONNECT: Final = re.compile(r"^ssh: connect to host \S+ port \d+: (.+)$", re.MULTILINE)
_NO_DEAL: Final = re.compile(r"^Unable to negotiate with .*?: (.+)$", re.MULTILINE)
_OTHER_TONGUE: Final = re.compile(
    r"^(?:kex_exchange_identification: (?:banner line contains|No SSH|received too much)"
    r"|Protocol major versions differ|Bad remote protocol version).*$",
    re.MULTILINE,
)
_BANNER: Final = re.compile(
    r"^debug1: kex_exchange_identification: banner line 0: (.*)$", re.MULTILINE
)
_OFFERED: Final = re.compile(r"^debug1: Offering public key: (.+?) \S+ SHA256:", re.MULTILINE)
_ACCEPTED: Final = re.compile(r"^debug1: Server accepts key: (.+?) \S+ SHA256:", re.MULTILINE)
_CANNOT_SIGN: Final = "the node accepts it, but it needs a passphrase, a touch or its agent"
_UNUSABLE: Final = re.compile(r'^(?:no such identity: |Load key ")(.+?)"?: (.+)$', re.MULTILINE)
_CONTINUE: Final = re.compile(r"^debug1: Authentications that can continue: (\S+)$", re.MULTILINE)
_KEY_ACCEPTED: Final = re.compile(r"^debug1: Host .* is known and matches", re.MULTILINE)
_LATE: Final = re.compile(
    r"^Connection (?:timed out during banner exchange|to .* timed out)$", re.MULTILINE
)
_NO_NEWS: Final = re.compile(
    r"^(?:debug\d|OpenSSH_|Connection (?:to|closed by|reset by) UNKNOWN|Pseudo-terminal)"
)


def trouble(said: str, route: Route, seconds: float, *, timed_out: bool) -> ReachError:
    """Say at which step ssh failed, after so many seconds.

    `said`: its standard error. `timed_out`: we ended it, for its time was over.
    """
    said = said.replace("\r", "")
    greeted = "debug1: Remote protocol version" in said
    read = _after_greeting if greeted else _before_greeting
    return next(read(said, route, seconds, timed_out=timed_out))


def _before_greeting(
    said: str, route: Route, seconds: float, *, timed_out: bool
) -> Iterator[ReachError]:
    """What fits, best first, while nobody has spoken SSH to us."""
    connected = "debug1: Connection established." in said
    if match := _NO_NAME.search(said):
        yield ssh_config.no_name(match[1], legible(match[2]))
    if match := _NO_CONNECT.search(said):
        yield ssh_config.no_connection(route.where, match[1], seconds)
    if match := _BANNER.search(said) or _OTHER_TONGUE.search(said):
        yield no_route("not SSH", route.where, why=legible(match[match.lastindex or 0]))
    if timed_out or _LATE.search(said):
        kind = "never speaks" if connected else "no answer"
        yield no_route(kind, route.where, seconds=seconds)
    if "kex_exchange_identification:" in said and connected:
        yield no_route("closes early", route.where)
    why = _last_news(said) or "ssh ended without a word"
    yield no_route("unreachable", route.where, why=why)


def _after_greeting(
    said: str, route: Route, seconds: float, *, timed_out: bool
) -> Iterator[ReachError]:
    """What fits, best first, when somebody speaks SSH there."""
    if "Host key verification failed." in said:
        yield refused_key(said, route)
    if match := _NO_DEAL.search(said):
        yield no_route("handshake fails", route.where, why=legible(match[1]))
    if not _KEY_ACCEPTED.search(said):
        why = f"no end of it in {seconds:.0f} s" if timed_out else _last_news(said)
        why = why or "the connection was closed"
        yield no_route("handshake fails", route.where, why=why)
    if "\nAuthenticated to " in said:
        yield _not_shared(said, route)
    if "with partial success" in said:
        yield ssh_config.login_wants_more(route, _CONTINUE.findall(said)[-1:])
    if "Permission denied" in said or "Too many authentication failures" in said:
        yield ssh_config.login_refused(route, *_keys(said))
    if timed_out:
        yield ssh_config.login_slow(route)
    yield ReachError(
        "login",
        f"{route.whom} is turned away before the login ends: {_last_news(said)}",
        "look at sshd's log on the node (PAM, nologin, a full disk)",
    )


def _keys(said: str) -> tuple[list[str], list[str]]:
    """Which keys the node refused, and which ones never came that far, with the reason."""
    accepted = dict.fromkeys(_ACCEPTED.findall(said))
    tried = [key for key in dict.fromkeys(_OFFERED.findall(said)) if key not in accepted]
    unusable = dict(_UNUSABLE.findall(said)) | dict.fromkeys(accepted, _CANNOT_SIGN)
    return (
        [legible(key, 80) for key in tried],
        [f"{legible(key, 80)} ({legible(why, 80)})" for key, why in unusable.items()],
    )


def _not_shared(said: str, route: Route) -> ReachError:
    return ReachError(
        "login",
        f"{route.whom} logs in, but ssh cannot share the connection: {_last_news(said)}",
        "look at the free space and the rights of the folder for temporary files here (TMPDIR)",
    )


def _last_news(said: str) -> str:
    """The last line that is more than a trace."""
    lines = [line for line in said.splitlines() if line.strip() and not _NO_NEWS.match(line)]
    return legible(lines[-1]) if lines else ""
