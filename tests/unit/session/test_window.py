"""How far back the kernel log counts is read from what an operator types."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from preflight.errors import UsageError
from preflight.session.options import parse_age


@pytest.mark.parametrize(
    ("said", "seconds"),
    [(None, None), ("boot", None), ("90m", 5400), ("2h", 7200), ("3d", 259200), ("1.5 h", 5400)],
)
def test_ages_are_understood(said: str | None, seconds: float | None) -> None:
    """Boot is no window at all."""
    assert parse_age(said) == seconds


def test_a_moment_is_understood_with_and_without_a_zone() -> None:
    """A time without a zone is this machine's own."""
    moment = datetime.fromtimestamp(time.time() - 3600, tz=UTC)
    for said in (moment.isoformat(), moment.astimezone().replace(tzinfo=None).isoformat()):
        assert parse_age(said) == pytest.approx(3600, abs=60)


@pytest.mark.parametrize("said", ["", "yesterday", "0h", "-2h", "2", "2999-01-01", "9" * 99 + "h"])
def test_anything_else_is_refused_in_one_line(said: str) -> None:
    """With what to type instead."""
    with pytest.raises(UsageError, match="give boot, an age such as 90m, 2h or 3d"):
        parse_age(said)
