"""What the operator typed or configured wrong, said in one line that ends with what to do."""

from __future__ import annotations


class PreflightError(Exception):
    """The root of everything preflight raises on purpose."""


class UsageError(PreflightError):
    """A wrong option, inventory or node list: exit 4, one line, says what to type."""


class WireError(PreflightError):
    """A node's answer that cannot be used: too large, not JSON, wrong types, another run's."""
