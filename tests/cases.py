"""How many cases the tests of an enemy's words and moves draw: 100,000 in `make bench-full`."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

CASES = int(os.environ.get("PREFLIGHT_CASES", "1000"))
"""Moves: a thousand are cheap."""


def draws(cases: int, **more: Any) -> settings:
    """As many cases of one test; a fifth of them in `make quick`, whose profile draws a fifth."""
    usual = settings().max_examples
    return settings(max_examples=max(min(cases, 5), cases * usual // 100), deadline=None, **more)


MANY = draws(int(os.environ.get("PREFLIGHT_CASES", "200")))
"""Words: hypothesis needs a few milliseconds for each."""
