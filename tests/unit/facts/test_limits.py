"""Every threshold can be defended: it has a unit, a source, a kind and a date."""

from __future__ import annotations

from preflight.core.thresholds import SHIPPED, shipped


def test_every_limit_says_where_it_comes_from() -> None:
    """An operator who disagrees with a number finds out who chose it, when and why."""
    of_nodes = {name: one for name, one in shipped().items() if "." not in name}
    assert of_nodes
    for name, one in of_nodes.items():
        assert one.value > 0, name
        assert one.kind in ("documented", "common", "chosen"), name
        assert one.unit, name
        assert one.source, name
        assert one.date.year >= 2026, name
        assert SHIPPED(name) == one.value
