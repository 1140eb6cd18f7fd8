"""Which digests statistics may use, and the numbers they go by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.fabric.limits import limit

if TYPE_CHECKING:
    from preflight.fabric.digest import Digest
    from preflight.fabric.observed import Observed

FALSE_ALARM = 1e-3
"""How probable it may be that a healthy fabric has any part named, over all tests of a run."""

SHARE = FALSE_ALARM / 4
"""Bandwidth, latency, spikes, late hosts: each gets its share of that."""


def usable(observed: Observed) -> list[Digest]:
    """Those of pairs that were measured to their end."""
    out = {(one.a, one.b, one.rail, one.round) for one in observed.tried if one.state != "measured"}
    return [
        one
        for one in observed.digests
        if one.operations and (one.a, one.b, one.rail, one.round) not in out
    ]


def number(backend: str, name: str) -> float:
    """A limit of that backend; of one that nobody knows, those of NCCL, which are the stricter."""
    found = limit(backend, name)
    if found is None:
        found = limit("nccl", name)
    return found or 0.0
