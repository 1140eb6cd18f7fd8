"""The exceptions that preflight raises on purpose; their text is one line for the operator."""

from __future__ import annotations


class PreflightError(Exception):
    """The root of everything preflight raises on purpose."""


class UsageError(PreflightError):
    """A wrong option, inventory or node list: exit 4, one line, says what to type."""


class WireError(PreflightError):
    """A node's answer is unusable: too large, not JSON, wrong types, or from another run."""
