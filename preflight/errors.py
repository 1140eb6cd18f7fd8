"""The exceptions that preflight raises on purpose; their text is one line for the operator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class PreflightError(Exception):
    """The root of everything preflight raises on purpose."""


class UsageError(PreflightError):
    """A wrong option, inventory or node list: exit 4, one line, says what to type."""


@contextmanager
def errors_about(subject: str) -> Iterator[None]:
    """Let the message of a UsageError begin with its subject: "fleet.toml: ..."."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{subject}: {error}") from error


class WireError(PreflightError):
    """A node's answer is unusable: too large, not JSON, wrong types, or from another run."""
