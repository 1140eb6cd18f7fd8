"""Work on hundreds of thousands of small values, none of which ever refers back to another."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def uncollected() -> Iterator[None]:
    """Spare Python the search for cycles: a fifth of the decoding of 4,096 nodes, and finds none.

    What is not needed any more is freed all the same, when the last reference to it is gone.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
