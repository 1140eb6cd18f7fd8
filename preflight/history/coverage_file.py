"""`coverage.json` of a history folder: what was measured of each fleet, checked on reading.

It holds node names, round numbers and durations; nothing in it is run, and a wrong number in it can
only change which pairs are measured first.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct

from preflight.errors import UsageError
from preflight.fleet.files import read_regular
from preflight.fleet.nodeset import fold
from preflight.history.past import Past

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

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
