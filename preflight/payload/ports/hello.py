"""Only a listener of this very run knows the answer: whoever else accepts is found out.

The nonce itself never crosses the wire, since other listeners may hear what we say.
"""

from __future__ import annotations

import hmac


def greeting(nonce: str) -> bytes:
    """Return the line a connecting node says first."""
    return b"preflight hello " + _mark(nonce, "hello")


def reply(nonce: str, node: str) -> bytes:
    """Return the line with which that node's listener answers."""
    return b"preflight here " + _mark(nonce, f"here is {node}")


def same(heard: bytes, expected: bytes) -> bool:
    """Compare without telling a listener-in how much was right."""
    return hmac.compare_digest(heard, expected)


def _mark(nonce: str, text: str) -> bytes:
    digest = hmac.new(nonce.encode(), text.encode("utf-8", "replace"), "sha256").hexdigest()
    return digest.encode("ascii") + b"\n"
