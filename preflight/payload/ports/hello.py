"""Only a listener of this very run knows the answer: whoever else accepts is found out.

The nonce itself never crosses the wire, since other listeners may hear what we say.
"""

from __future__ import annotations

import hmac

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
