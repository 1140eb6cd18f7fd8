"""No unit test is about wall time: hypothesis sets no deadline of its own either."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
