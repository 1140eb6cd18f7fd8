"""No unit test is about wall time: hypothesis sets no deadline of its own either."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
# For `make quick`: a fifth of the examples; `tests.cases.draws` takes its own counts by it.
settings.register_profile("quick", settings.get_profile("unhurried"), max_examples=20)
