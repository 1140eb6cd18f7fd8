"""Reach nodes over SSH with paramiko, without ssh processes: one connection per node."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import shlex
import socket
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from preflight.core.remote_command import OUTPUT_LIMIT, ReachError, Remote, with_deadline
from preflight.core.text import excerpt
from preflight.transport import reach_error, ssh_config
from preflight.transport.host_keys import known_kinds, read_known_hosts, verify
from preflight.transport.ssh_config import SettingsCache

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import paramiko

    from preflight.fleet.model import Host
    from preflight.transport.ssh_config import Route, SshSettings


MOST_KEYS = 5
"""sshd hangs up after six failures (MaxAuthTries), and newer versions then block our address."""

_LIST_KEYS, _KEYS_LISTED = b"\x0b", 12
"""SSH_AGENTC_REQUEST_IDENTITIES and its answer (draft-ietf-sshm-ssh-agent)."""
LONGEST_ANSWER, MOST_LISTED = 256 << 10, 2048
"""Bytes of an agent's answer, and keys in it: OpenSSH has the same limits."""


class ParamikoTransport:
    """Logs in with keys to hosts whose keys are known; see `verify` and `log_in`."""

    name = "paramiko"

    def __init__(self, settings: SettingsCache | None = None) -> None:
        self._settings = settings or SettingsCache()

    def connect(self, host: Host, timeout_s: float) -> ParamikoConnection:
        """Log in within that time; ReachError says at which step it failed."""
        deadline = time.monotonic() + timeout_s
        config = self._settings.get(host, timeout_s)
        refuse_jump_hosts(config)
        route = ssh_config.route_to(host, config)
        lines = read_known_hosts(route.known_hosts, route.known_names)
        transport = _handshake(open_socket(route, deadline), route, known_kinds(lines), deadline)
        try:
            key = transport.get_remote_server_key()
            verify(lines, key.get_name(), key.asbytes(), route)
            log_in(transport, route, deadline)
        except BaseException:
            hang_up(transport)
            raise
        return ParamikoConnection(transport)

    def close(self) -> None:
        """Nothing is shared between nodes."""


class ParamikoConnection:
    """One login; each command gets a channel of its own."""

    def __init__(self, transport: paramiko.Transport) -> None:
        self._transport = transport

    def start(
        self, argv: Sequence[str], *, timeout_s: float, limit: int = OUTPUT_LIMIT
    ) -> ParamikoRemote:
        """Start it through the user's shell, every word quoted; ReachError if the node refuses."""
        import paramiko

        try:
            channel = self._transport.open_session(timeout=OPEN_S)
            with _exec_deadline(channel):
                channel.exec_command(shlex.join(with_deadline(argv, timeout_s)))
        except (paramiko.SSHException, EOFError, OSError) as error:
            reason = excerpt(str(error)) or "connection lost"
            raise reach_error("no_command", reason=reason) from error
        return ParamikoRemote(channel, timeout_s, limit)

    def close(self) -> None:
        """Hang up; commands that still run lose their channels."""
        hang_up(self._transport)


class ParamikoRemote(Remote):
    """One command on one channel."""

    def __init__(self, channel: paramiko.Channel, timeout_s: float, limit: int) -> None:
        super().__init__(timeout_s, limit)
        self._channel = channel
        self._arrival = threading.Event()
        channel.settimeout(0.0)
        channel.in_buffer.set_event(self._arrival)
        channel.in_stderr_buffer.set_event(self._arrival)

    def finish_input(self) -> None:
        """Send an end of file, once everything sent before has gone out."""
        with suppress(OSError, EOFError):
            self._channel.shutdown_write()

    def _write(self, data: memoryview) -> int:
        try:
            if not self._channel.send_ready():
                return 0
            sent = self._channel.send(bytes(data[:PACKET]))
        except TimeoutError:
            return 0
        except EOFError as error:
            raise BrokenPipeError from error
        if not sent:
            raise BrokenPipeError
        return sent

    def _transfer(self, wait_s: float, *, writing: bool) -> bool:
        if self._drain():
            return True
        if writing:
            time.sleep(min(wait_s, ROOM_TICK_S))
        elif not self._buffer.ended:
            self._arrival.wait(wait_s)
        return self._drain()

    def _drain(self) -> bool:
        """Take all output that has arrived; return whether there was any."""
        channel, buffer = self._channel, self._buffer
        at_end = bool(channel.eof_received or channel.closed)  # read first: no data follows it
        moved = False
        with suppress(OSError, EOFError):
            while channel.recv_ready() and not buffer.overflow:
                buffer.add_stdout(channel.recv(CHUNK))
                moved = True
            while channel.recv_stderr_ready() and not buffer.overflow:
                buffer.add_stderr(channel.recv_stderr(CHUNK))
                moved = True
        buffer.ended = buffer.ended or at_end
        return moved

    def _exited(self, wait_s: float) -> bool:
        return self._channel.status_event.wait(wait_s)

    def _release(self) -> int | None:
        import paramiko

        status = self._channel.exit_status
        # -1 is paramiko's "no status": a signal if the node closed in order, else a lost line.
        ended_there = status >= 0 or (self._channel.closed and bool(self._channel.eof_received))
        with suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.close()
        return status if ended_there else None


@dataclass(frozen=True, slots=True)
class _Key:
    label: str
    secret: paramiko.PKey


def log_in(transport: paramiko.Transport, route: Route, deadline: float) -> None:
    """Try the keys in turn; ReachError("login") that names them if none is accepted."""
    tried: list[str] = []
    unusable: list[str] = []
    for key in _keys(route, unusable, deadline):
        if len(tried) == MOST_KEYS:
            unusable.append(f"more keys than {MOST_KEYS}")
            break
        tried.append(key.label)
        if _try_key(transport, route, key, deadline):
            return
        if not transport.is_active():
            break
    raise ssh_config.login_refused(route, tried, unusable)


def _keys(route: Route, unusable: list[str], deadline: float) -> Iterator[_Key]:
    """Yield the configured keys, then the agent's; keys that cannot be used go to `unusable`."""
    for file in route.identity_files:
        try:
            yield _Key(file, _load_key(file, Path(file).stat().st_mtime_ns))
        except Exception as error:  # noqa: BLE001 (cryptography raises whatever it likes)
            unusable.append(f"{file} ({excerpt(str(error), 80)})")
            yield from _agent_copy(file, deadline)
    if route.use_agent:
        yield from _agent_keys(deadline)


@lru_cache(maxsize=16)
def _load_key(file: str, _mtime_ns: int) -> paramiko.PKey:
    import paramiko

    # paramiko opens a key twice, and waits for ever where it is a pipe.
    with os.fdopen(os.memfd_create("key"), "wb", buffering=0) as copy:
        copy.write(ssh_config.read_key(file))
        key = paramiko.PKey.from_path(f"/proc/self/fd/{copy.fileno()}")
    with suppress(FileNotFoundError):
        key.load_certificate(ssh_config.read_key(f"{file}-cert.pub").decode())
    return key


def _agent_copy(file: str, deadline: float) -> Iterator[_Key]:
    """Yield the agent's copy of a key whose file has a passphrase, found by its .pub file."""
    with suppress(OSError):
        public = ssh_config.read_key(f"{file}.pub").decode(errors="replace").split()
        yield from (key for key in _agent_keys(deadline) if key.secret.get_base64() in public)


class _AgentSocket(socket.socket):
    """Limits the time and size of an agent's answers: paramiko waits for ever, and reads 4 GiB."""

    deadline = 0.0

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Receive a part of an answer; OSError if it is too long, or later than `deadline`."""
        if size > LONGEST_ANSWER:
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        self.settimeout(max(0.001, self.deadline - time.monotonic()))
        try:
            return super().recv(size, flags)
        except TimeoutError as error:  # without a number, paramiko's thread prints a traceback
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from error


def _agent_keys(deadline: float) -> Iterator[_Key]:
    """Yield the agent's keys, without those that paramiko cannot read; none if it is too slow.

    paramiko's own list raises an exception for a comment that is not UTF-8.
    """
    import paramiko

    path = os.environ.get("SSH_AUTH_SOCK")
    if not path or ssh_config.silent_agent():
        return
    with suppress(paramiko.SSHException, OSError), _AgentSocket(socket.AF_UNIX) as agent_socket:
        agent_socket.settimeout(ssh_config.AGENT_S)
        agent_socket.connect(path)
        agent_socket.deadline = min(deadline, time.monotonic() + ssh_config.AGENT_S)
        agent: Any = paramiko.agent.AgentSSH()
        agent._conn = agent_socket  # noqa: SLF001  paramiko has no other way
        kind, answer = agent._send_message(_LIST_KEYS)  # noqa: SLF001
        agent_socket.deadline = deadline
        for _ in range(min(answer.get_int(), MOST_LISTED) if kind == _KEYS_LISTED else 0):
            blob, comment = answer.get_binary(), excerpt(answer.get_binary(), 60)
            try:
                secret = paramiko.AgentKey(agent, blob)
            except Exception:  # noqa: BLE001, S112  the same for a key as for a key's file
                continue
            yield _Key(f"the agent's {comment or secret.fingerprint}", secret)


def _try_key(transport: paramiko.Transport, route: Route, key: _Key, deadline: float) -> bool:
    import paramiko

    transport.auth_timeout = max(0.1, deadline - time.monotonic())
    try:
        missing = transport.auth_publickey(route.user, key.secret)
    except paramiko.BadAuthenticationType as error:
        raise ssh_config.login_wants_more(route, error.allowed_types) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        if time.monotonic() >= deadline:
            raise reach_error("slow", login=route.login) from error
        return False
    if missing:
        raise ssh_config.login_wants_more(route, missing)
    return True


STALL_MS = 20_000
"""After which the kernel gives up a connection whose other end takes no bytes."""

_Address: TypeAlias = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]


def open_socket(route: Route, deadline: float) -> socket.socket:
    """Return a TCP connection to the first address that answers."""
    addresses = _addresses(route)
    began = time.monotonic()
    trouble = ReachError("route", "its name has no address", "give the node an `address`")
    for tried, (family, address) in enumerate(addresses):
        share_s = (deadline - time.monotonic()) / (len(addresses) - tried)
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(max(0.1, share_s))
            sock.connect(address)
            # Without this, small packets wait for the other end's delayed ACK: 40 ms a time.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALL_MS)
        except OSError as error:
            sock.close()
            where = f"{address[0]!s} port {route.port}"
            reason = error.strerror or str(error)
            trouble = ssh_config.no_connection(where, reason, time.monotonic() - began)
        else:
            return sock
    raise trouble


def _addresses(route: Route) -> list[tuple[int, _Address]]:
    try:
        infos = socket.getaddrinfo(route.hostname, route.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a host name"
        raise ssh_config.no_name(route.hostname, reason) from error
    return [(family, address) for family, _, _, _, address in infos]


WEAK = {
    "ciphers": ["aes128-cbc", "aes192-cbc", "aes256-cbc", "3des-cbc"],
    "macs": ["hmac-sha1", "hmac-sha1-96", "hmac-md5", "hmac-md5-96"],
}
"""Algorithms that paramiko still offers and OpenSSH no longer does."""

CHEAP = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
"""Ciphers that need no MAC, which paramiko compares byte by byte in Python."""

POLL_S = 0.5
"""How often an idle connection's thread wakes; paramiko's own 0.1 s costs 400 of them 7 % CPU."""

LOG_NAME = "preflight.ssh"


def hang_up(transport: paramiko.Transport) -> None:
    """Close at once: else the reading thread notices only at its next wake-up."""
    transport.packetizer.complete_handshake()  # ends a timer thread that would outlive us
    with suppress(OSError):
        transport.sock.shutdown(socket.SHUT_RDWR)
    with suppress(OSError, EOFError):
        transport.close()


def _handshake(
    sock: socket.socket, route: Route, kinds: Sequence[str], deadline: float
) -> paramiko.Transport:
    _import_paramiko()  # only now: meanwhile sshd starts a process for this connection
    import paramiko

    _mute_log()
    began = time.monotonic()
    left_s = max(0.1, deadline - began)
    transport = paramiko.Transport(sock, disabled_algorithms=WEAK)
    transport.set_log_channel(LOG_NAME)
    transport.banner_timeout = transport.handshake_timeout = left_s
    sock.settimeout(POLL_S)
    _prefer(transport.get_security_options(), kinds)
    done = threading.Event()
    transport.start_client(event=done)
    if done.wait(left_s) and transport.is_active():
        return transport
    trouble = _handshake_error(transport, route, time.monotonic() - began)
    hang_up(transport)
    raise trouble


def _mute_log() -> None:
    """Suppress paramiko's log: our errors say the same without tracebacks on stderr."""
    log = logging.getLogger(LOG_NAME)
    log.propagate = False
    if not log.handlers:
        log.addHandler(logging.NullHandler())


def _prefer(options: paramiko.SecurityOptions, kinds: Sequence[str]) -> None:
    """Prefer host keys of the known types, and the cheapest ciphers."""
    signatures = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}
    algorithms = [name for kind in kinds for name in signatures.get(kind, (kind,))]
    options.key_types = _put_first(options.key_types, algorithms)
    options.ciphers = _put_first(options.ciphers, CHEAP)


def _put_first(offered: Sequence[str], priority: Sequence[str]) -> tuple[str, ...]:
    first = [name for name in priority if name in offered]
    return (*first, *(name for name in offered if name not in first))


def _handshake_error(transport: paramiko.Transport, route: Route, seconds: float) -> ReachError:
    error = transport.get_exception()
    cause = getattr(error, "__context__", None) or error
    if transport.remote_version:
        return reach_error("no_handshake", where=route.where, why=_reason(error, seconds))
    if cause is None or isinstance(cause, TimeoutError):
        return reach_error("never_speaks", where=route.where, seconds=seconds)
    if isinstance(cause, EOFError | OSError):
        return reach_error("closes_early", where=route.where)
    return reach_error("not_ssh", where=route.where, why=_reason(error, seconds))


def _reason(error: BaseException | None, seconds: float) -> str:
    if error is None:
        return f"not finished in {seconds:.0f} s"
    return excerpt(str(error)) or "the connection was closed"


CHUNK = 1 << 21
"""paramiko's window; each read moves all the rest of its buffer."""

PACKET = 1 << 15
OPEN_S = 15.0
"""For the node to open a channel and start a command on it."""

ROOM_TICK_S = 0.005
"""How often to check for room to write: paramiko has no event for it."""


class _Invoke:
    """A stand-in for invoke, which paramiko needs for `Match exec`: it loads on first use."""

    def __getattr__(self, name: str) -> object:
        return getattr(importlib.import_module("invoke"), name)


def _import_paramiko() -> None:
    """Import paramiko without invoke, whose asyncio and unittest.mock take a third of the time."""
    if "paramiko" in sys.modules or "invoke" in sys.modules:
        return
    sys.modules["invoke"] = None  # type: ignore[assignment]  # how imports are kept from a module
    try:
        import paramiko.config
    finally:
        sys.modules.pop("invoke", None)
    paramiko.config.invoke = _Invoke()  # type: ignore[attr-defined]


def refuse_jump_hosts(config: SshSettings) -> None:
    """Refuse a node behind a jump host, and say what would reach it."""
    for option in ("proxyjump", "proxycommand"):
        through = config.first(option)
        if through not in ("", "none"):
            raise reach_error("jump_host", way=option, through=excerpt(through, 80))


@contextmanager
def _exec_deadline(channel: paramiko.Channel) -> Iterator[None]:
    """Give `exec_command` the deadline it lacks: closing its channel makes it raise."""
    watch = threading.Timer(OPEN_S, channel.close)
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
