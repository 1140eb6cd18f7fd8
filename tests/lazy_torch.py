"""torch for tests: no worker spends seconds to import it before a test uses it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
"""For tests whose processes import torch; this one need not."""


class _Lazy:
    """Is imported at its first attribute; that skips the test where there is no torch."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks each name of a module for its marks
            raise AttributeError(name)
        return getattr(pytest.importorskip("torch"), name)


torch: Any = _Lazy()
