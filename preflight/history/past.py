"""What earlier runs measured of one fleet: which rounds, when, whom they suspected, how long."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Pairing = tuple[str, str]
Count = Annotated[int, Meta(ge=0, le=1 << 40)]
Seconds = Annotated[float, Meta(ge=0, le=1e7)]
Speed = Annotated[float, Meta(gt=0, le=1e6)]
"""GB/s."""


class Done(Struct, frozen=True):
    """The last time a round was measured."""

    run: Annotated[int, Meta(ge=1, le=1 << 40)]
    """The how-many-th run of this fleet that was."""
    pairs: Count
    """How many of its pairs were measured; those of a node that was down were not."""


class Cost(Struct, frozen=True):
    """How long a sweep took, so that the next one is as long as its budget."""

    round_s: Seconds
    """One round."""
    other_s: Seconds
    """All that is no round: logging in, facts, importing torch."""


class Past(Struct, frozen=True, kw_only=True):
    """All that a planner wants to know; empty for a fleet that was never swept."""

    runs: Count = 0
    done: dict[int, Done] = {}
    """By the round's number."""
    suspects: tuple[Pairing, ...] = ()
    """Pairs that were bad when they were last measured."""
    costs: dict[str, Cost] = {}
    """By tier."""
    speeds: dict[str, tuple[Speed, ...]] = {}
    """Of a fleet too small for peers: what each pair reached on each rail in its latest runs."""
    units: dict[str, tuple[float, ...]] = {}
    """Of devices that may have no peers: what each reached in its latest runs, in the unit of its
    measure (`history.units.unit_key`). Read from the nights themselves, never kept here."""
