"""Why `ssh` did not get in: its own log (`ssh -v`), read into a step, a sentence and advice."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from preflight.transport import sshwords
from preflight.transport.legible import legible
from preflight.transport.openssh_hostkey import refused_key
from preflight.transport.protocol import ReachError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.transport.sshconfig import Route

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
        yield sshwords.no_name(match[1], legible(match[2]))
    if match := _NO_CONNECT.search(said):
        yield _no_connection(route, match[1], seconds)
    if match := _BANNER.search(said) or _OTHER_TONGUE.search(said):
        yield sshwords.not_ssh(route.where, legible(match[match.lastindex or 0]))
    if timed_out or _LATE.search(said):
        words = sshwords.never_speaks if connected else sshwords.no_answer
        yield words(route.where, seconds)
    if "kex_exchange_identification:" in said and connected:
        yield sshwords.closes_early(route.where)
    yield sshwords.unreachable(route.where, _last_news(said) or "ssh ended without a word")


def _no_connection(route: Route, reason: str, seconds: float) -> ReachError:
    if reason == "Connection refused":
        return sshwords.refuses(route.where)
    if reason in ("Connection timed out", "Operation timed out"):
        return sshwords.no_answer(route.where, seconds)
    return sshwords.unreachable(route.where, legible(reason))


def _after_greeting(
    said: str, route: Route, seconds: float, *, timed_out: bool
) -> Iterator[ReachError]:
    """What fits, best first, when somebody speaks SSH there."""
    if "Host key verification failed." in said:
        yield refused_key(said, route)
    if match := _NO_DEAL.search(said):
        yield sshwords.handshake_fails(route.where, legible(match[1]))
    if not _KEY_ACCEPTED.search(said):
        why = f"no end of it in {seconds:.0f} s" if timed_out else _last_news(said)
        yield sshwords.handshake_fails(route.where, why or "the connection was closed")
    if "\nAuthenticated to " in said:
        yield _not_shared(said, route)
    if "with partial success" in said:
        yield sshwords.login_wants_more(route, _CONTINUE.findall(said)[-1:])
    if "Permission denied" in said or "Too many authentication failures" in said:
        yield sshwords.login_refused(route, *_keys(said))
    if timed_out:
        yield sshwords.login_slow(route)
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
