"""The numbers that a whole run goes by: how sure it must be, and what its backend's limits say."""

from __future__ import annotations

from preflight.fabric.limits import limit

FALSE_ALARM = 1e-3
"""How probable it may be that a healthy fabric has any part named, over all tests of a run."""

SHARE = FALSE_ALARM / 4
"""Bandwidth, latency, spikes, late hosts: each gets its share of that."""


def number(backend: str, name: str) -> float:
    """A limit of that backend; of one that nobody knows, those of NCCL, which are the stricter."""
    found = limit(backend, name)
    if found is None:
        found = limit("nccl", name)
    return found or 0.0
