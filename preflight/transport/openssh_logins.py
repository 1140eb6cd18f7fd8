"""One `ssh` per node or jump host logs in once and shares its connection, or says why it cannot.

A bastion lets few connections log in at once (sshd's MaxStartups): of one ssh per node it would
refuse some at random, and those nodes would be reported down.
"""

from __future__ import annotations

import os
import re
import selectors
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Final, TypeAlias

from preflight.core.remote_command import ReachError, signal_group
from preflight.core.text import excerpt
from preflight.fleet.model import Host
from preflight.transport import reach_error, start_thread
from preflight.transport.host_keys import REVOKED, HostKey, KnownHost, read_known_hosts, refusal
from preflight.transport.ssh_config import (
    FetchOnce,
    Route,
    config_option,
    login_refused,
    login_wants_more,
    no_connection,
    no_name,
)

MOST_HOPS: Final = 8
LOG_WAIT_S: Final = 1.0
"""How long to wait for the master to log why a connection through it failed."""

WAIT_SLACK_S: Final = 2.0
LINE: Final = 4096

_HOP: Final = re.compile(
    r"(?:ssh://)?(?:(?P<user>[^\s,]+)@)?(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s:@/\[\],]+)"
    r"(?::(?P<port>\d{1,5}))?/?"
)
_FAILED: Final = re.compile(r"channel (\d+): open failed: (.*)")
_FREED: Final = re.compile(
    r"debug1: channel (\d+): free: direct-tcpip: .{0,200}? for (\S{1,255}) port (\d+),"
)

_JumpPath: TypeAlias = tuple[tuple[str, ...], str | None]


def hop(text: str, ssh_config: str | None) -> Host | None:
    """Read one jump host of ProxyJump; None if it cannot be read."""
    match = _HOP.fullmatch(text)
    if match is None:
        return None
    name = match["host"].strip("[]")
    port = int(match["port"]) if match["port"] else None
    return Host(name=name, address=name, user=match["user"], port=port, ssh_config=ssh_config)


class JumpHost:
    """A login on a jump host, and why connections through it fail."""

    def __init__(self, host: Host, master: Master) -> None:
        self.name = host.name
        self.master = master
        self._host = host
        self._reasons: dict[tuple[str, str], str] = {}
        self._reason_logged = threading.Condition()
        start_thread(self._listen, name=f"preflight-jump-{host.name}")

    def connect_error(self, log: str, route: Route, seconds: float) -> ReachError | None:
        """Say why the jump host did not connect; None if the fault lies behind the node's port."""
        if "debug1: Remote protocol version" in log:
            return None
        if "forwarding request failed" in log:
            return self._why_closed(route, seconds)
        if not self.master.alive:
            return jump_host_error(self._host, "the connection to it was lost")
        return None

    def _why_closed(self, route: Route, seconds: float) -> ReachError:
        reason = self._reason(route.hostname, route.port)
        kind, _, detail = reason.partition(": ")
        if kind != "connect failed":
            advice = "look at AllowTcpForwarding and PermitOpen in its sshd_config"
            return jump_host_error(self._host, f"it forwards no connection: {reason}", advice)
        if re.search(r"not known|resol|nodename|No address", detail):
            return no_name(route.hostname, f"{excerpt(detail)} (asked on {self.name})")
        return no_connection(route.where, detail, seconds)

    def _reason(self, host: str, port: int) -> str:
        with self._reason_logged:
            self._reason_logged.wait_for(lambda: (host, str(port)) in self._reasons, LOG_WAIT_S)
            return excerpt(self._reasons.get((host, str(port)), "no reason given"))

    def _listen(self) -> None:
        """Read the master's log until it ends; with a full pipe it would stop."""
        failed: dict[str, str] = {}
        stderr = self.master.stderr
        lines = BufferedReader(stderr)
        with suppress(OSError, ValueError):
            os.set_blocking(stderr.fileno(), True)
            while line := lines.readline(LINE):
                text = line.decode("utf-8", "replace").strip()
                if match := _FAILED.search(text):
                    failed[match[1]] = match[2]
                elif (match := _FREED.search(text)) and match[1] in failed:
                    with self._reason_logged:
                        self._reasons[match[2], match[3]] = failed.pop(match[1])
                        self._reason_logged.notify_all()


class JumpHosts:
    """The jump hosts of a run; the first node that needs one logs in to it."""

    def __init__(self, log_in: Callable[[Host, float, tuple[str, ...]], Master]) -> None:
        """`log_in(host, deadline, jumps)` logs in to a jump host through those before it."""
        self._log_in = log_in
        self._logins: FetchOnce[_JumpPath, JumpHost] = FetchOnce()

    def reach(self, hops: tuple[str, ...], ssh_config: str | None, until: float) -> JumpHost | None:
        """Reach the last of these jump hosts; None if only ssh can read their names.

        ReachError("route"), which blames the jump host, if the login fails: the same for all nodes.
        """
        host = hop(hops[-1], ssh_config)
        if host is None or len(hops) > MOST_HOPS:
            return None
        wait_s = max(0.0, until - time.monotonic()) + WAIT_SLACK_S
        open_jump_host = partial(self._open, host, until, hops[:-1])
        try:
            return self._logins.get((hops, ssh_config), open_jump_host, wait_s)
        except TimeoutError as error:
            raise jump_host_error(host, "its login did not finish in time") from error
        except ReachError as error:
            raise ReachError(error.step, error.sentence, error.advice, blame=error.blame) from error

    def _open(self, host: Host, deadline: float, jumps: tuple[str, ...]) -> JumpHost:
        # Those who wait must get the failure before their own deadline.
        login_deadline = time.monotonic() + 0.8 * (deadline - time.monotonic())
        try:
            return JumpHost(host, self._log_in(host, login_deadline, jumps))
        except ReachError as error:
            if error.blame:
                raise
            advice = error.advice if error.step == "hostkey" else ""
            raise jump_host_error(host, error.sentence, advice) from error


def jump_host_error(host: Host, sentence: str, advice: str = "") -> ReachError:
    """Return the error that blames the jump host; the nodes behind it are unknown."""
    words = ["ssh", *config_option(host.ssh_config), "-o", "BatchMode=yes"]
    words += ["-l", host.user] if host.user else []
    words += ["-p", str(host.port)] if host.port else []
    words += [host.name, "true"]
    return ReachError(
        "route",
        f"the jump host {host.name} is in the way: {sentence}",
        advice or f"repair the jump host first, until this works: `{shlex.join(words)}`",
        blame=f"jump host {host.name}",
    )


LOG_KEPT: Final = 256 << 10
"""Last bytes of ssh's log that are kept during a login; a node's banner may be endless."""

TICK_S: Final = 0.05
REAP_S: Final = 1.0


class Master:
    """An ssh that has logged in, or is logging in."""

    def __init__(self, argv: Sequence[str], path: Path) -> None:
        self.socket = path
        self.log = b""
        """What `ssh -v` logged until the login was complete."""
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # preflight handles Ctrl-C; its ProxyCommand ends with it
            env=os.environ | {"SSH_ASKPASS_REQUIRE": "never"},
        )

    @property
    def alive(self) -> bool:
        """Whether the process runs; it ends with the connection."""
        return self._process.poll() is None

    @property
    def serves(self) -> bool:
        """Whether the login still takes commands; before ssh ends, it closes its socket."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(TICK_S)
            try:
                client.connect(str(self.socket))
            except TimeoutError:
                return self.alive  # too many connections wait
            except OSError:
                return False
        return self.alive

    @property
    def stderr(self) -> FileIO:
        """The standard error of ssh, unbuffered."""
        assert isinstance(self._process.stderr, FileIO)
        return self._process.stderr

    def wait_for_login(self, deadline: float) -> bool:
        """Wait until commands can use it; False if it ended or time is up."""
        os.set_blocking(self.stderr.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(self.stderr, selectors.EVENT_READ)
            while not self.socket.exists():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                if selector.select(min(left_s, TICK_S)) and not self._read_log():
                    self._reap(max(0.0, deadline - time.monotonic()))
                    return False
        return True

    def close_log(self) -> None:
        """Stop reading its log, which may be endless.

        ssh ignores SIGPIPE, so it may write to a closed pipe.
        """
        with suppress(OSError):
            self.stderr.close()

    def hang_up(self) -> None:
        """Hang up; `end` then reaps it. Never raises."""
        signal_group(self._process, signal.SIGTERM)

    def end(self) -> None:
        """Hang up, wait until it is gone, remove its socket. Never raises."""
        self.hang_up()
        if not self._reap(REAP_S):
            signal_group(self._process, signal.SIGKILL)
            self._reap(REAP_S)
        self.close_log()
        with suppress(OSError):
            self.socket.unlink(missing_ok=True)

    def _read_log(self) -> bool:
        """Read what it logged; False at its end."""
        data = self.stderr.read(1 << 16)
        self.log = (self.log + (data or b""))[-LOG_KEPT:]
        return data != b""

    def _reap(self, wait_s: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        return self._process.returncode is not None


_KEY: Final = re.compile(r"^debug1: Server host key: (\S+) (SHA256:\S+)", re.MULTILINE)
_CERTIFICATE: Final = re.compile(
    r"^debug1: Server host certificate: (\S+) (SHA256:[^\s,]+), serial \d+ "
    r'ID "(.*)" CA (\S+) (SHA256:\S+) valid (.*)$',
    re.MULTILINE,
)
_INVALID_CERTIFICATE: Final = re.compile(r"^Certificate invalid: (.+)$", re.MULTILINE)


def host_key_error(log: str, route: Route) -> ReachError:
    """Name key, certificate and authority by their fingerprints. `log`: the log of `ssh -v`."""
    try:
        lines = read_known_hosts(route.known_hosts, route.known_names)
    except ReachError as error:
        return error
    certificate = _CERTIFICATE.search(log)
    if certificate:
        return _refused_certificate(log, certificate, route, lines)
    key = _KEY.search(log)
    if key is None:
        words = [line for line in log.splitlines() if line and not line.startswith("debug")]
        reason = excerpt(words[-2] if len(words) > 1 else "no reason given")
        return reach_error("key_not_seen", where=route.where, reason=reason)
    shown = HostKey(excerpt(key[1], 60), key[2])
    why = refusal(lines, shown, route)
    is_revoked = "is marked as revoked" in log or "was revoked" in log or "revoked by" in log
    if is_revoked and "revokes" not in why.sentence:
        sentence = f"it shows the {shown.kind} key {shown.fingerprint}, which ssh's {_REVOKED_BY}"
        return reach_error("revoked", sentence=sentence)
    return why


_REVOKED_BY: Final = "configuration revokes (RevokedHostKeys)"


def _refused_certificate(
    log: str, match: re.Match[str], route: Route, lines: tuple[KnownHost, ...]
) -> ReachError:
    shown = HostKey(excerpt(match[1], 60), match[2])
    authority = HostKey(excerpt(match[4], 60), match[5])
    prefix = f"its host certificate {excerpt(match[3], 60)!a}, signed by {authority.kind} "
    prefix += authority.fingerprint
    for line in lines:
        if line.marker == REVOKED and line.fingerprint == authority.fingerprint:
            sentence = f"{prefix}, is void: {line.file} line {line.line} revokes that key"
            return reach_error("revoked", sentence=sentence)
        if line.marker == REVOKED and line.fingerprint == shown.fingerprint:
            return refusal(lines, shown, route)
    if "was revoked" in log or "is marked as revoked" in log:
        return reach_error("revoked", sentence=f"{prefix}, is void: ssh's {_REVOKED_BY}")
    if invalid := _INVALID_CERTIFICATE.search(log):
        name = route.known_names[0]
        sign = shlex.join(("ssh-keygen", "-s", "CA", "-I", "ID", "-h", "-n", name, "HOST_KEY.pub"))
        reason = excerpt(invalid[1])
        return reach_error("invalid_certificate", whose=prefix, name=name, reason=reason, sign=sign)
    if any(not line.marker for line in lines):
        return refusal(lines, shown, route)
    kind = "unknown_authority" if route.known_hosts else "no_hosts_file"
    file, name = next(iter(route.known_hosts), ""), route.known_names[0]
    files = " or ".join(route.known_hosts)
    return reach_error(kind, whose=prefix, files=files, name=name, file=file)


_NO_NAME: Final = re.compile(r"^ssh: Could not resolve hostname (\S+): (.+)$", re.MULTILINE)
_NO_CONNECT: Final = re.compile(r"^ssh: connect to host \S+ port \d+: (.+)$", re.MULTILINE)
_NO_COMMON_ALGORITHM: Final = re.compile(r"^Unable to negotiate with .*?: (.+)$", re.MULTILINE)
_NOT_SSH: Final = re.compile(
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
_TIMED_OUT: Final = re.compile(
    r"^Connection (?:timed out during banner exchange|to .* timed out)$", re.MULTILINE
)
_UNINFORMATIVE: Final = re.compile(
    r"^(?:debug\d|OpenSSH_|Connection (?:to|closed by|reset by) UNKNOWN|Pseudo-terminal)"
)


def login_error(log: str, route: Route, seconds: float, *, timed_out: bool) -> ReachError:
    """Say at which step ssh failed, after so many seconds.

    `log`: its standard error. `timed_out`: we ended it at its deadline.
    """
    log = log.replace("\r", "")
    greeted = "debug1: Remote protocol version" in log
    errors = _after_greeting if greeted else _before_greeting
    return next(errors(log, route, seconds, timed_out=timed_out))


def _before_greeting(
    log: str, route: Route, seconds: float, *, timed_out: bool
) -> Iterator[ReachError]:
    """Yield the errors that fit, best first, before the SSH greeting."""
    connected = "debug1: Connection established." in log
    if match := _NO_NAME.search(log):
        yield no_name(match[1], excerpt(match[2]))
    if match := _NO_CONNECT.search(log):
        yield no_connection(route.where, match[1], seconds)
    if match := _BANNER.search(log) or _NOT_SSH.search(log):
        yield reach_error("not_ssh", where=route.where, why=excerpt(match[match.lastindex or 0]))
    if timed_out or _TIMED_OUT.search(log):
        kind = "never_speaks" if connected else "no_answer"
        yield reach_error(kind, where=route.where, seconds=seconds)
    if "kex_exchange_identification:" in log and connected:
        yield reach_error("closes_early", where=route.where)
    why = _last_line(log) or "ssh ended without a word"
    yield reach_error("unreachable", where=route.where, why=why)


def _after_greeting(
    log: str, route: Route, seconds: float, *, timed_out: bool
) -> Iterator[ReachError]:
    """Yield the errors that fit, best first, after the SSH greeting."""
    if "Host key verification failed." in log:
        yield host_key_error(log, route)
    if match := _NO_COMMON_ALGORITHM.search(log):
        yield reach_error("no_handshake", where=route.where, why=excerpt(match[1]))
    if not _KEY_ACCEPTED.search(log):
        why = f"not finished in {seconds:.0f} s" if timed_out else _last_line(log)
        why = why or "the connection was closed"
        yield reach_error("no_handshake", where=route.where, why=why)
    if "\nAuthenticated to " in log:
        yield reach_error("not_shared", login=route.login, news=_last_line(log))
    if "with partial success" in log:
        yield login_wants_more(route, _CONTINUE.findall(log)[-1:])
    if "Permission denied" in log or "Too many authentication failures" in log:
        yield login_refused(route, *_refused_and_unusable(log))
    if timed_out:
        yield reach_error("slow", login=route.login)
    yield reach_error("disconnected", login=route.login, news=_last_line(log))


def _refused_and_unusable(log: str) -> tuple[list[str], list[str]]:
    """Return the keys that the node refused, and those that could not be tried, with the reason."""
    accepted = dict.fromkeys(_ACCEPTED.findall(log))
    tried = [key for key in dict.fromkeys(_OFFERED.findall(log)) if key not in accepted]
    unusable = dict(_UNUSABLE.findall(log)) | dict.fromkeys(accepted, _CANNOT_SIGN)
    return (
        [excerpt(key, 80) for key in tried],
        [f"{excerpt(key, 80)} ({excerpt(why, 80)})" for key, why in unusable.items()],
    )


def _last_line(log: str) -> str:
    """Return the last line of the log that is not a debug line."""
    lines = [line for line in log.splitlines() if line.strip() and not _UNINFORMATIVE.match(line)]
    return excerpt(lines[-1]) if lines else ""
