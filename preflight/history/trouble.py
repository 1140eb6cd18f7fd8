"""A history that cannot be used: it costs a line, never a verdict."""

from __future__ import annotations

from preflight.errors import UsageError


class HistoryError(UsageError):
    """Locked, damaged, read-only, full, or written by a newer preflight: said in one line.

    A run goes on without it; the `history` command has nothing else to tell and ends with it.
    """
