"""Knocks at the other nodes' ports as the job's ranks will, and says in one word how it went.

The nonce itself never crosses the wire, since other listeners may hear what we say.
"""

from __future__ import annotations

import errno
import hmac
import os
import socket
import struct
import threading
import time

from probe.text import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


_OPENING = b"preflight hello "

OTHER_RUN = b"preflight here " + b"0" * 64 + b"\n"
"""What another run's node hears, rather than a reset that would look like a firewall's."""


def greeting(nonce: str) -> bytes:
    """Return the line a connecting node says first."""
    return _OPENING + _mark(nonce, "hello")


def reply(nonce: str, node: str) -> bytes:
    """Return the line with which that node's listener answers."""
    return b"preflight here " + _mark(nonce, f"here is {node}")


def is_preflight(heard: bytes) -> bool:
    """Whether a wrong greeting is at least one of some preflight run."""
    return heard.startswith(_OPENING)


def same(heard: bytes, expected: bytes) -> bool:
    """Compare without telling a listener-in how much was right."""
    return hmac.compare_digest(heard, expected)


def _mark(nonce: str, text: str) -> bytes:
    digest = hmac.new(nonce.encode(), text.encode("utf-8", "replace"), "sha256").hexdigest()
    return digest.encode("ascii") + b"\n"


if TYPE_CHECKING:
    Target = dict[str, Any]

CONNECT_S = 3.0
"""For one connection, and again for the answer."""

AT_ONCE = 64

_WORDS = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timeout",
    errno.ENETUNREACH: "unreachable",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETDOWN: "unreachable",
    errno.EHOSTDOWN: "unreachable",
    errno.EACCES: "unreachable",
    errno.EPERM: "unreachable",
    errno.ECONNRESET: "reset",
    errno.EPIPE: "reset",
}
"""A local firewall that rejects shows as EPERM or EACCES, one on the way as EHOSTUNREACH."""


class _NotOursError(Exception):
    """Somebody accepted who is not this run's listener on that node."""


def try_all(targets: list[Target], nonce: str, until: float) -> list[dict[str, Any]]:
    """Try every target, 64 at a time, and return one `Attempt` of the document for each, in order.

    Those not done by `until` (a name service that hangs) are told as timed out.
    """
    attempts = [
        _attempt(target, "timeout", "not done in time: name lookup, or too many")
        for target in targets
    ]
    waiting = iter(range(len(targets)))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                at = next(waiting, None)
            if at is None or time.monotonic() > until:
                return
            attempts[at] = _try(targets[at], nonce)

    threads = [
        threading.Thread(target=work, daemon=True) for _ in range(min(AT_ONCE, len(targets)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return list(attempts)


def _try(target: Target, nonce: str) -> dict[str, Any]:
    began = time.monotonic()
    result, error = "ok", ""
    try:
        _converse(target, nonce)
    except _NotOursError as stranger:
        result, error = "wrong_answer", str(stranger)
    except socket.timeout:
        result, error = "timeout", f"no connection within {CONNECT_S:.0f} s"
    except OSError as failure:
        known = not isinstance(failure, socket.gaierror) and failure.errno in _WORDS
        result = _WORDS[failure.errno or 0] if known else "error"
        error = failure.strerror or str(failure)
    except (ValueError, OverflowError) as failure:
        result, error = "error", str(failure)
    return _attempt(target, result, error, (time.monotonic() - began) * 1000)


def _attempt(target: Target, result: str, error: str, ms: float = 0.0) -> dict[str, Any]:
    return {
        "target": target["node"],
        "port": target["port"],
        "kind": target["kind"],
        "result": result,
        "error": clean(error),
        "ms": round(ms, 3),
    }


def _converse(target: Target, nonce: str) -> None:
    """Connect, greet, hear the reply, and close first: TIME_WAIT stays on this side."""
    expected = reply(nonce, target["node"])
    address = (target["address"], target["port"])
    with socket.create_connection(address, timeout=CONNECT_S) as taken:
        if taken.getsockname() == taken.getpeername():
            # Linux can connect an ephemeral port to itself when nobody listens there.
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        taken.sendall(greeting(nonce))
        heard = _heard(taken, len(expected))
    if not same(heard, expected):
        how = "closed without a word" if not heard else "gave another answer"
        raise _NotOursError(f"somebody else accepted and {how}")


def _heard(taken: socket.socket, length: int) -> bytes:
    until = time.monotonic() + CONNECT_S
    heard = b""
    while len(heard) < length:
        taken.settimeout(max(0.001, until - time.monotonic()))
        try:
            chunk = taken.recv(length - len(heard))
        except socket.timeout:
            how = f"said nothing for {CONNECT_S:.0f} s" if not heard else "gave another answer"
            raise _NotOursError(f"somebody accepted and {how}") from None
        if not chunk:
            break
        heard += chunk
    return heard
