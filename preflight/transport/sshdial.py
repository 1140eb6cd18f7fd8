"""From a name to an encrypted line to the right host: each way to fail has its own sentence."""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from preflight.transport.hostkey_check import kinds_known, verify
from preflight.transport.hostkeys import read_known_hosts
from preflight.transport.legible import legible
from preflight.transport.protocol import ReachError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import paramiko

    from preflight.transport.sshconfig import Route

WEAK = {
    "ciphers": ["aes128-cbc", "aes192-cbc", "aes256-cbc", "3des-cbc"],
    "macs": ["hmac-sha1", "hmac-sha1-96", "hmac-md5", "hmac-md5-96"],
}
"""What paramiko still offers last and OpenSSH no longer does."""

STALL_MS = 20_000
"""After which the kernel gives up a connection whose other end takes no bytes."""

POLL_S = 0.5
"""How often an idle connection's thread wakes; paramiko's own 0.1 s costs 400 of them 7 % CPU."""

LOG = "preflight.ssh"

_Address: TypeAlias = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]


def dial(route: Route, ends: float) -> paramiko.Transport:
    """Connect, agree on keys, and prove that the host is the one we know; ReachError if not."""
    known = read_known_hosts(route.known_hosts, route.known_names)
    transport = _handshake(_connected(route, ends), route, kinds_known(known), ends)
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


def _connected(route: Route, ends: float) -> socket.socket:
    """A TCP connection to the first of its addresses that answers."""
    found = _addresses(route)
    began = time.monotonic()
    trouble = ReachError("route", "its name has no address", "give the node an `address`")
    for tried, (family, address) in enumerate(found):
        share_s = (ends - time.monotonic()) / (len(found) - tried)
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(max(0.1, share_s))
            sock.connect(address)
            _tune(sock)
        except OSError as error:
            sock.close()
            where = f"{address[0]!s} port {route.port}"
            trouble = _no_route(where, error, time.monotonic() - began)
        else:
            return sock
    raise trouble


def _tune(sock: socket.socket) -> None:
    # Without this, small packets wait for the other end's delayed ACK: 40 ms a time.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALL_MS)


def _addresses(route: Route) -> list[tuple[int, _Address]]:
    try:
        found = socket.getaddrinfo(route.hostname, route.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a host name"
        raise ReachError(
            "name",
            f"the name {legible(route.hostname, 80)!a} does not resolve: {reason}",
            "correct the name in the node list, or give the node an `address` in the inventory",
        ) from error
    return [(family, address) for family, _, _, _, address in found]


def _no_route(where: str, error: OSError, seconds: float) -> ReachError:
    if isinstance(error, ConnectionRefusedError):
        sentence = f"{where} refuses connections"
        advice = "start sshd on the node, or correct its `port` in the inventory"
    elif isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        sentence = f"no answer from {where} in {seconds:.0f} s"
        advice = "look whether the node is up, and whether a firewall drops the port"
    else:
        sentence = f"{where} cannot be reached: {error.strerror or error}"
        advice = "look whether the node is up, and at the route to its network"
    return ReachError("route", sentence, advice)


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
    where = f"{route.hostname} port {route.port}"
    error = transport.get_exception()
    cause = getattr(error, "__context__", None) or error
    if transport.remote_version:
        sentence = f"{where} greets, but the SSH handshake fails: {_words(error, seconds)}"
        advice = "look at sshd's log on the node; `ssh -v` shows what the two sides offer"
    elif cause is None or isinstance(cause, TimeoutError):
        sentence = (
            f"{where} accepts connections and never speaks: no SSH greeting in {seconds:.0f} s"
        )
        advice = "look at sshd on the node: it hangs, or something else listens there"
    elif isinstance(cause, EOFError | OSError):
        sentence = f"{where} accepts connections and closes them before the SSH greeting"
        advice = "look at sshd's log on the node (MaxStartups, PerSourcePenalties, full disk)"
    else:
        sentence = f"{where} does not speak SSH: {_words(error, seconds)}"
        advice = "correct the node's `port` in the inventory"
    return ReachError("route", sentence, advice)


def _words(error: BaseException | None, seconds: float) -> str:
    if error is None:
        return f"no end of it in {seconds:.0f} s"
    return legible(str(error)) or "the connection was closed"
