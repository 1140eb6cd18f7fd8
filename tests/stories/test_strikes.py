"""Whatever ends a sweep in the middle, no host keeps a process, and what is known is told."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.lab import wire
from tests.stories.sweeping import Sweeping, agent, sweeping

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab.cluster import Lab
    from tests.stories.conftest import Told

pytestmark = pytest.mark.lab


@pytest.fixture
def run(lab: Lab, tmp_path: Path) -> Iterator[Sweeping]:
    """A sweep that lasts, because h4 is slow; its first round has a pair that is through."""
    with wire.slow_link(lab.hosts["h4"], "20mbit"), sweeping(lab, tmp_path) as run:
        run.wait_for_pairs(1)
        assert run.left().keys() == {"h1", "h2", "h3", "h4"}
        yield run


def measured(told: Told) -> set[str]:
    """Pairs with accounts of both ends in the report."""
    return {f"{p['a']}-{p['b']}" for p in told.report["pairs"] if p["state"] == "measured"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_tells_what_it_knows(run: Sweeping, number: signal.Signals) -> None:
    """Ctrl-C or a scheduler's SIGTERM: exit 2, a report with the pairs so far, clean hosts."""
    os.killpg(run.process.pid, number)
    run.wait_until_clean()
    told = run.told()
    assert told.exit == 2, told.out
    assert "h2-h3" in measured(told)
    assert told.report["fleet"]["not_ready"] == []
    assert ("fabric.allreduce", "h2-h3", "ok") in told.outcomes()
    states = {p["state"] for p in told.report["pairs"]}
    assert states == {"measured", "not_run"}


def test_a_killed_controller_leaves_nothing(run: Sweeping) -> None:
    """SIGKILL gives no time for a farewell; the hosts do without."""
    os.killpg(run.process.pid, signal.SIGKILL)
    run.wait_until_clean()


def test_a_connection_that_dies_without_a_sound(run: Sweeping, lab: Lab) -> None:
    """Packets of h3's login are dropped: it ends by itself and is named, its partners are not."""
    with wire.silence(lab.hosts["h3"]):
        run.wait_until_clean("h3")
        told = run.told()
        run.wait_until_clean()
    assert told.exit == 1, told.out
    assert "h3" in told.report["fleet"]["not_ready"]
    assert set(told.report["fleet"]["not_ready"]) <= {"h3", "h4"}
    assert {"h1-h2", "h2-h3"} <= measured(told)
    assert "the connection to it was lost" in " ".join(told.out.split())


def test_the_stores_host_dies(run: Sweeping, lab: Lab) -> None:
    """Without the store nobody can go on: all leave, and its host alone is blamed."""
    with lab.hosts["h1"].down():
        run.wait_until_clean("h2", "h3", "h4")
        told = run.told()
    assert told.exit == 1, told.out
    assert "h1" in told.report["fleet"]["not_ready"]
    assert not {"h2", "h3"} & set(told.report["fleet"]["not_ready"])
    assert "h2-h3" in measured(told)


def test_the_stores_host_freezes(run: Sweeping, lab: Lab) -> None:
    """A stopped agent answers nothing: the others leave, and so does it once it can again."""
    host = lab.hosts["h1"]
    pid = agent(host)
    host.run(["kill", "-STOP", str(pid)])
    try:
        run.wait_until_clean("h2", "h3", "h4")
        told = run.told()
    finally:
        host.run(["kill", "-CONT", str(pid)], check=False)
    run.wait_until_clean()
    assert told.exit == 1, told.out
    assert "h1" in told.report["fleet"]["not_ready"]
    assert not {"h2", "h3"} & set(told.report["fleet"]["not_ready"])
