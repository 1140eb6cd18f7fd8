"""How many cases the tests of an enemy's words draw: 1,000, and 100,000 in `make bench-full`."""

from __future__ import annotations

import os

from hypothesis import settings

CASES = int(os.environ.get("PREFLIGHT_CASES", "1000"))
MANY = settings(max_examples=CASES, deadline=None)
