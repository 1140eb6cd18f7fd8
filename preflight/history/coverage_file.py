"""`coverage.json` of a history folder: what was measured of each fleet, checked on reading.

It holds node names, round numbers and durations; nothing in it is run, and a wrong number in it can
only change which pairs are measured first.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct

from preflight.core.files import read_regular
from preflight.errors import UsageError
from preflight.fleet.nodeset import fold

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


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


SCHEMA = 1
NAME = "coverage.json"
LARGEST = 16 << 20
"""Bytes; a fleet of 4,096 nodes of which every round was measured takes 100 KiB."""

MOST_FLEETS = 64
"""Fleets that are remembered; the one that was swept longest ago is forgotten first."""


class KnownFleet(Struct, frozen=True, kw_only=True):
    """One fleet."""

    nodes: str
    """Folded, for whoever reads the file."""
    past: Past


class Coverage(Struct, frozen=True, kw_only=True):
    """The whole file: by fleet, the one that was swept last at the end."""

    schema: Annotated[int, Meta(ge=SCHEMA, le=SCHEMA)]
    fleets: dict[str, KnownFleet] = {}

    def past(self, nodes: Sequence[str], leaves: Mapping[str, str]) -> Past:
        """What is known of this very fleet; empty if it was never swept."""
        kept = self.fleets.get(fleet_key(nodes, leaves))
        return kept.past if kept else Past()

    def having(self, nodes: Sequence[str], leaves: Mapping[str, str], past: Past) -> Coverage:
        """Return the file with this fleet's past in the place of what it held."""
        key = fleet_key(nodes, leaves)
        others = [(each, kept) for each, kept in self.fleets.items() if each != key]
        own = KnownFleet(nodes=fold(nodes), past=past)
        return Coverage(schema=SCHEMA, fleets=dict([*others[1 - MOST_FLEETS :], (key, own)]))

    def encode(self) -> bytes:
        """The file's content."""
        return msgspec.json.encode(self) + b"\n"


def read_coverage(folder: Path) -> Coverage:
    """Read a history folder; UsageError if the file is damaged, too large, or no file of ours."""
    path = folder / NAME
    try:
        return msgspec.json.decode(read_regular(path, LARGEST), type=Coverage)
    except FileNotFoundError:
        return Coverage(schema=SCHEMA)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"cannot use the history {path}: {reason}; move it away to begin anew, "
            "or give another folder: --preflight-history=DIR"
        ) from error


def fleet_key(nodes: Sequence[str], leaves: Mapping[str, str]) -> str:
    """Name a fleet: the same nodes on the same leaves have their rounds numbered alike."""
    rows = (f"{name}\t{leaves.get(name, '')}\n" for name in sorted(nodes))
    return hashlib.sha256("".join(rows).encode()).hexdigest()[:32]
