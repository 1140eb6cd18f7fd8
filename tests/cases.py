"""How many cases the tests of an enemy's words and moves draw: 100,000 in `make bench-full`."""

from __future__ import annotations

import os

from hypothesis import settings

CASES = int(os.environ.get("PREFLIGHT_CASES", "1000"))
"""Moves: a thousand are cheap."""

MANY = settings(max_examples=int(os.environ.get("PREFLIGHT_CASES", "200")), deadline=None)
"""Words: hypothesis needs a few milliseconds for each."""
