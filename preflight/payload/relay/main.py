"""Started by srun on every node: calls the controller back, then does what that one says."""

from __future__ import annotations

import ctypes
import errno
import hmac
import os
import socket
import time

from . import serve
from .serve import Opener, Refused, Sealer, Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, List, Tuple


GREETING = b"preflight relay 1\n"
RANDOM = 32
PROOF = 32
DIAL_S = 4.0
"""For one address; all of them are tried, and the controller waits longer than two take."""

_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3))
_STALL_MS = 15_000


class NoWay(Exception):  # noqa: N818 (the payload's endings are named for what happened)
    """No address of the controller can be reached from here; the text says what was tried."""


def dial(addresses: List[str], port: int) -> socket.socket:
    """Connect to the first address that answers."""
    tried = []
    for address in addresses:
        try:
            connection = socket.create_connection((address, port), timeout=DIAL_S)
        except OSError as error:
            tried.append("%s port %d: %s" % (address, port, _reason(error)))
        else:
            _tune(connection)
            return connection
    raise NoWay("; ".join(tried) or "the controller gave no address")


def meet(connection: socket.socket, name: str, secret: bytes) -> Tuple[Sealer, Opener]:
    """Prove who we are and have the controller do the same; Refused if it cannot."""
    connection.settimeout(DIAL_S)
    hello = _exactly(connection, len(GREETING) + RANDOM)
    theirs = hello[len(GREETING) :]
    if not hello.startswith(GREETING):
        raise Refused("something else than the controller answered")
    ours, word = os.urandom(RANDOM), name.encode()
    proof = hmac.digest(secret, b"relay\0" + word + theirs + ours, "sha256")
    connection.sendall(bytes([len(word)]) + word + ours + proof)
    expected = hmac.digest(secret, b"controller\0" + word + ours + theirs, "sha256")
    if not hmac.compare_digest(_exactly(connection, PROOF), expected):
        raise Refused("who answered does not know this run's secret")
    up = hmac.digest(secret, b"from relay\0" + theirs + ours, "sha256")
    down = hmac.digest(secret, b"from controller\0" + theirs + ours, "sha256")
    return Sealer(up), Opener(down)


def _exactly(connection: socket.socket, size: int) -> bytes:
    ends = time.monotonic() + DIAL_S
    data = b""
    while len(data) < size:
        if time.monotonic() > ends:
            raise Refused("the controller greeted too slowly")
        part = connection.recv(size - len(data))
        if not part:
            raise Refused("the controller hung up")
        data += part
    return data


def _tune(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # A controller that vanished without a word (power, cable) must end us as one that said it.
    for option, value in (*_KEEPALIVE, ("TCP_USER_TIMEOUT", _STALL_MS)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _reason(error: OSError) -> str:
    if isinstance(error, socket.timeout) or error.errno == errno.ETIMEDOUT:
        return "no answer in %g s" % DIAL_S
    return error.strerror or type(error).__name__


if TYPE_CHECKING:
    Read = Callable[[], "dict[str, Any] | None"]
    Emit = Callable[["dict[str, Any]"], None]

# linux/prctl.h
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


def run(request: dict[str, Any], read_line: Read, emit: Emit) -> None:
    """Serve one run of preflight; `start` ends whatever is left when this returns."""
    del read_line
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NAME, b"preflight-relay", 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        # Where Slurm itself reaches the launching host is the likeliest way for us too.
        slurms = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
        offered = [each for each in request["addresses"] if each != slurms]
        connection = dial([*([slurms] if slurms else []), *offered], request["port"])
        sealer, opener = meet(connection, name, bytes.fromhex(request["secret"]))
    except (NoWay, serve.Refused, OSError) as error:
        emit({"node": name, "trouble": str(error) or type(error).__name__})
        return
    Server(connection, sealer, opener).run()
