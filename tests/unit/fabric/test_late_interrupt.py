"""Ctrl-C when all is measured and nothing is kept yet: minutes of a whole fleet, not to be lost."""

from __future__ import annotations

from functools import partialmethod
from typing import TYPE_CHECKING

import pytest

from preflight.core.registry import Registry, load_folder, shipped_folder
from preflight.fabric.agents import Agents
from preflight.fabric.collect import clock_lines
from preflight.fleet.model import Fleet
from preflight.run.expected_verdicts import Settings
from preflight.run.run import Run
from preflight.verdict import Outcome
from tests.unit.fabric.nodes import HAS_TORCH, fleet, states

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.fabric.samples import Sweep

pytestmark = [
    pytest.mark.busy,
    pytest.mark.skipif(not HAS_TORCH, reason="no torch in this Python"),
    pytest.mark.usefixtures("nothing_left"),
]

PAIR = ("fabric.allreduce", ("h1", "h2"))


class Once:
    """What it stands for, but that a signal arrives at its first call."""

    def __init__(self, real: Callable[..., object]) -> None:
        self._real = real
        self.calls = 0

    def __call__(self, *given: object) -> object:
        """Interrupt, or do it."""
        self.calls += 1
        if self.calls == 1:
            raise KeyboardInterrupt
        return self._real(*given)


@pytest.mark.parametrize("moment", ["farewell", "keeping"])
def test_what_was_measured_is_kept_and_judged(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """While the nodes are sent home, or while their accounts are filed: no pair is missing."""
    close = Once(Agents.close)
    if moment == "farewell":
        monkeypatch.setattr(Agents, "close", partialmethod(close))
    else:
        monkeypatch.setattr("preflight.run.run.clock_lines", Once(clock_lines))
    registry = Registry(load_folder(shipped_folder()))
    hosts = Fleet(hosts=tuple(fleet(2)), origin="a test")
    run = Run(hosts, registry, Settings(budget_s=90))
    with pytest.raises(KeyboardInterrupt):
        run.measure([PAIR], lambda _key, _verdict: None)
    swept: Sweep | None = run.judgement.measured.sweep
    assert swept is not None
    assert (states(swept), swept.unfinished) == ({"h1-h2": ("measured", "measured")}, "")
    known = run.judgement.verdicts()[PAIR]
    assert known.outcome in (Outcome.OK, Outcome.UNKNOWN), known
    if moment == "farewell":
        assert close.calls == 2  # it is done after all
