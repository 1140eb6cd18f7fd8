"""When so many are at fault at once that one shared cause is likelier than that many faults."""

from __future__ import annotations

SHARE, LEAST = 0.25, 3
"""Over a quarter of the nodes and at least three."""


def shared_cause(blamed: int, nodes: int) -> bool:
    """Whether that many of `nodes` are no list of faults. Counted on nodes, never on pairs."""
    return blamed >= LEAST and blamed > SHARE * nodes
