"""Dates as the history shows them: UTC, whatever the terminal's zone is."""

from __future__ import annotations

from datetime import UTC, datetime


def day(seconds: float | None) -> str:
    """A date in UTC."""
    return _in_utc(seconds, "%Y-%m-%d")


def moment(seconds: float | None) -> str:
    """A date and time in UTC."""
    return _in_utc(seconds, "%Y-%m-%d %H:%M UTC")


def _in_utc(seconds: float | None, form: str) -> str:
    try:
        return datetime.fromtimestamp(seconds or 0, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return "an impossible date"
