"""What `preflight history --json` prints; `docs/history.md` explains each field."""

from __future__ import annotations

from msgspec import Struct

from preflight.history.told import Changes, GpuPast, NodePast, Ran, Standing

SCHEMA = 1
"""Raised by a change that an older reader would misread. Additions do not raise it."""


class Told(Struct, frozen=True, kw_only=True):
    """The whole document; what was not asked for is null."""

    schema: int = SCHEMA
    preflight: str
    history: str
    """The file or database it was read from."""
    nights: int
    """So many before the last run count for `worst`, standings and trends."""
    last: Ran | None
    """The last run; null where none is remembered."""
    night: tuple[Ran, ...] = ()
    """The runs of the last night, the last one among them: a sweep has one per wave."""
    first: Ran | None = None
    changes: Changes | None = None
    worst: tuple[Standing, ...] | None = None
    node: NodePast | None = None
    gpu: GpuPast | None = None
