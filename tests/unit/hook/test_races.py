"""Nodes that count drains at the controller, in any order of events, end within their number."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

from hypothesis import given
from hypothesis import strategies as st

from preflight.hook.act import SlurmBreaker
from preflight.hook.slurm import NodeReason

if TYPE_CHECKING:
    from preflight.hook.slurm import Slurm

NODES = 6
STEPS = 3
"""Each node counts, drains if it may, and counts again."""


class Controller:
    """Slurm's list of reasons; its times have whole seconds."""

    def __init__(self) -> None:
        self.time_s = float(int(time.time()))
        self.drained_at: dict[str, float] = {}

    def now_s(self) -> float:
        """What its clock says."""
        return self.time_s

    def reasons(self, _name: str) -> tuple[NodeReason, ...]:
        """Every node that is out."""
        reason = "pf:gpu.count 7 of 8 GPUs answer [node] health check"
        return tuple(NodeReason(node, reason, when) for node, when in self.drained_at.items())


@given(
    order=st.permutations([node for node in range(NODES) for _ in range(STEPS)]),
    ticks=st.lists(st.booleans(), min_size=NODES * STEPS, max_size=NODES * STEPS),
    most=st.integers(0, 4),
)
def test_any_order_of_events(order: list[int], ticks: list[bool], most: int) -> None:
    """However their steps mix, no more nodes are out in the end; alone, each is let out in turn."""
    controller = Controller()
    breaker = SlurmBreaker(cast("Slurm", controller), 3600)
    done = dict.fromkeys(range(NODES), 0)
    granted: set[str] = set()
    for number, tick in zip(order, ticks, strict=True):
        controller.time_s += tick
        node = f"n{number}"
        if done[number] == 0 and breaker.ask(node, most).granted:
            granted.add(node)
        if done[number] == 1 and node in granted:
            controller.drained_at[node] = controller.time_s
        if done[number] == 2 and node in granted and not breaker.still_allowed(node, most):
            del controller.drained_at[node]
        done[number] += 1
    assert len(controller.drained_at) <= most
    if order == sorted(order):
        assert len(controller.drained_at) == min(most, NODES)
