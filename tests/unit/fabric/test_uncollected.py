"""The search for cycles rests while much is decoded, and only then."""

from __future__ import annotations

import gc

import pytest

from preflight.fabric.samples import gc_paused


@gc_paused()
def _fails(seen: list[bool]) -> None:
    with gc_paused():
        pass
    seen.append(gc.isenabled())
    raise ZeroDivisionError


def test_the_collector_is_left_as_it_was() -> None:
    """Off within, also after a work within a work; on again afterwards, also after an error."""
    seen: list[bool] = []
    with pytest.raises(ZeroDivisionError):
        _fails(seen)
    assert seen == [False]
    assert gc.isenabled()
