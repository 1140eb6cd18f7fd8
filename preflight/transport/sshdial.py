"""An encrypted line to the right host: each way to fail has its own sentence."""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from preflight.transport.hostkey_check import kinds_known, verify
from preflight.transport.hostkeys import read_known_hosts
from preflight.transport.legible import legible
from preflight.transport.sshtcp import connected
from preflight.transport.sshwords import closes_early, handshake_fails, never_speaks, not_ssh

if TYPE_CHECKING:
    from collections.abc import Sequence

    import paramiko

    from preflight.transport.protocol import ReachError
    from preflight.transport.sshconfig import Route

WEAK = {
    "ciphers": ["aes128-cbc", "aes192-cbc", "aes256-cbc", "3des-cbc"],
    "macs": ["hmac-sha1", "hmac-sha1-96", "hmac-md5", "hmac-md5-96"],
}
"""What paramiko still offers last and OpenSSH no longer does."""

POLL_S = 0.5
"""How often an idle connection's thread wakes; paramiko's own 0.1 s costs 400 of them 7 % CPU."""

LOG = "preflight.ssh"


def dial(route: Route, ends: float) -> paramiko.Transport:
    """Connect, agree on keys, and prove that the host is the one we know; ReachError if not."""
    known = read_known_hosts(route.known_hosts, route.known_names)
    transport = _handshake(connected(route, ends), route, kinds_known(known), ends)
    try:
        key = transport.get_remote_server_key()
        verify(
            known,
            key.get_name(),
            key.asbytes(),
            names=route.known_names,
            files=route.known_hosts,
        )
    except BaseException:
        hang_up(transport)
        raise
    return transport


def hang_up(transport: paramiko.Transport) -> None:
    """Close at once: the thread that reads would otherwise notice only at its next wake-up."""
    transport.packetizer.complete_handshake()  # ends a timer thread that would outlive us
    with suppress(OSError):
        transport.sock.shutdown(socket.SHUT_RDWR)
    with suppress(OSError, EOFError):
        transport.close()


def _handshake(
    sock: socket.socket, route: Route, kinds: Sequence[str], ends: float
) -> paramiko.Transport:
    import paramiko

    _silence()
    began = time.monotonic()
    left_s = max(0.1, ends - began)
    transport = paramiko.Transport(sock, disabled_algorithms=WEAK)
    transport.set_log_channel(LOG)
    transport.banner_timeout = transport.handshake_timeout = left_s
    sock.settimeout(POLL_S)
    _prefer(transport, kinds)
    done = threading.Event()
    transport.start_client(event=done)
    in_time = done.wait(left_s)
    if in_time and transport.is_active():
        return transport
    trouble = _no_handshake(transport, route, time.monotonic() - began)
    hang_up(transport)
    raise trouble


def _silence() -> None:
    """Keep to itself what paramiko logs: our errors say it, without tracebacks on stderr."""
    log = logging.getLogger(LOG)
    log.propagate = False
    if not log.handlers:
        log.addHandler(logging.NullHandler())


def _prefer(transport: paramiko.Transport, kinds: Sequence[str]) -> None:
    """Ask first for host keys of the types we could recognise."""
    options = transport.get_security_options()
    offered = tuple(options.key_types)
    wanted = [name for kind in kinds for name in _signatures(kind) if name in offered]
    options.key_types = (*wanted, *(name for name in offered if name not in wanted))


def _signatures(kind: str) -> tuple[str, ...]:
    return ("rsa-sha2-512", "rsa-sha2-256") if kind == "ssh-rsa" else (kind,)


def _no_handshake(transport: paramiko.Transport, route: Route, seconds: float) -> ReachError:
    error = transport.get_exception()
    cause = getattr(error, "__context__", None) or error
    if transport.remote_version:
        return handshake_fails(route.where, _words(error, seconds))
    if cause is None or isinstance(cause, TimeoutError):
        return never_speaks(route.where, seconds)
    if isinstance(cause, EOFError | OSError):
        return closes_early(route.where)
    return not_ssh(route.where, _words(error, seconds))


def _words(error: BaseException | None, seconds: float) -> str:
    if error is None:
        return f"no end of it in {seconds:.0f} s"
    return legible(str(error)) or "the connection was closed"
