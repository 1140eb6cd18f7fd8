"""A node whose clocks are off, or jump, is measured as the others are, and never blamed for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lab import wire
from tests.lab.clock import Clock
from tests.stories.sweeping import sweeping

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.cluster import Lab

pytestmark = pytest.mark.lab


def test_a_clock_that_is_an_hour_off_and_set_in_the_middle(lab: Lab, tmp_path: Path) -> None:
    """h3 is an hour ahead, up for 100 days, and set back by 300 s: told, and all is measured."""
    clock = Clock(tmp_path)
    clock.set(3600)
    changes = {"h3": {"python": clock.python}}
    with (
        wire.slow_link(lab.hosts["h4"], "20mbit"),
        sweeping(lab, tmp_path, node=changes) as run,
    ):
        run.wait_for_pairs(1)
        clock.set(3300)
        told = run.told()
    said = " ".join(told.out.split())
    assert "the clock of h3 was set back by 300 s during the sweep" in said
    assert "h3" not in told.report["fleet"]["not_ready"]
    assert {p["state"] for p in told.report["pairs"]} == {"measured"}
    assert len({(p["a"], p["b"]) for p in told.report["pairs"]}) == 6
