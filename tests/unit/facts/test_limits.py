"""Every threshold can be defended: it has a unit, a source, a kind and a date."""

from __future__ import annotations

from preflight.facts.basics import limit, limits


def test_every_limit_says_where_it_comes_from() -> None:
    """An operator who disagrees with a number finds out who chose it, when and why."""
    assert limits()
    for name, one in limits().items():
        assert one.value > 0, name
        assert one.kind in ("documented", "common", "chosen"), name
        assert one.unit, name
        assert one.source, name
        assert one.date.year >= 2026, name
        assert limit(name) == one.value
