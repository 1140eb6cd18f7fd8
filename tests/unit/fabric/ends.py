"""Ends of a pair for tests of what runs on a node: stand-ins, and two threads over real gloo."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sweep import (
    clocks,
    counters,
    member,
    pair,
    plan,
    process_groups,
    transports,
    verify,
)

from tests.lazy_torch import torch

if TYPE_CHECKING:
    import pytest

GO: dict[str, Any] = {
    "run": "r", "index": 0, "nodes": 2, "rails": 1, "backend": "gloo", "address": "a",
    "towards": "b", "interface": None, "store": ["a", 1], "seed": 7,
    "ladder": [[64, 2, 10], [4096, 1, 50]], "meet_s": 1, "op_s": 1, "box_s": 1, "pair_s": 5,
    "barrier_s": 1,
    "turns": [{"round": 0, "a": "h1", "b": "h2", "rank": 0, "partner": 1}, None],
}  # fmt: skip


class Partner:
    """Stands for a two-ended group whose other end does its part, but for one flipped bit."""

    @property
    def device(self) -> Any:
        """The CPU."""
        return torch.device("cpu")

    def __init__(self, flip_at: int | None = None) -> None:
        self.operations = 0
        self._flip_at = flip_at
        self._other: Any = None

    def reduce(self, tensor: Any, *, smallest: bool = False) -> None:
        """Add what the other end has: its pattern at first, then the same sum as we."""
        if smallest:
            return
        mine = torch.empty_like(tensor)
        verify.fill(torch, mine, verify.key(7, 0, 0))
        if torch.equal(mine, tensor):
            self._other = torch.empty_like(tensor)
            verify.fill(torch, self._other, verify.key(7, 0, 1))
        tensor.add_(self._other)
        self.operations += 1
        if self.operations == self._flip_at:
            tensor.view(torch.int32)[5] ^= 1 << 30
        self._other = tensor.clone()


def climb(partner: Any, **changes: Any) -> pair.Ladder:
    """A whole ladder with such a partner; it has all the time there is."""
    go = plan.read({**GO, **changes})
    keys = [verify.key(go.seed, 0, rank) for rank in (0, 1)]
    context: Any = SimpleNamespace(torch=torch, alive=lambda *_: None)
    climbed = pair.Ladder(context, partner, go, verify.Ends(keys, 0))
    climbed.climb(1e18, time.monotonic())
    return climbed


class Still(counters.Watch):
    """Reads no counters: it has no process for that, and no reason to tell."""

    def __init__(self) -> None:
        self._readers = []
        self._error = ""


class Both:
    """Both ends of one real pair over gloo, as two threads of this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
        self._go = {**GO, "meet_s": 10, "op_s": 10, "pair_s": 60, **changes}
        self._patch = monkeypatch

    def spoil(self, node: str, *, when_rank: int | None = None, only: Any = None) -> None:
        """One node's results come out wrong: in any role or one only, of any type or one only."""
        connect = process_groups.connect

        def connected(torch: Any, store: Any, rank: int, rail: plan.Rail, size: int = 2) -> Any:
            group = connect(torch, store, rank, rail, size)
            reduce = group.reduce

            def spoiled(tensor: Any, *, smallest: bool = False) -> None:
                reduce(tensor, smallest=smallest)
                ours = rail.go.index == int(node == "h2") and when_rank in (None, rank)
                if ours and not smallest and tensor.numel() > 2 and only in (None, tensor.dtype):
                    tensor.view(torch.int32)[3] ^= 4

            group.reduce = spoiled  # type: ignore[method-assign]
            return group

        self._patch.setattr(process_groups, "connect", connected)

    def measure_inside(self, *rails: int, of: int = 3) -> list[dict[str, Any]]:
        """What these rails of one node have to say of each other."""
        store = torch.distributed.HashStore()
        go = plan.read({**self._go, "nodes": 1, "rails": of, "inside": True, "turns": []})

        def rail(number: int) -> dict[str, Any]:
            own = plan.Rail(go, number, "127.0.0.1", ("a", 1))
            met = process_groups.Rendezvous(store, number, of)
            still = Still()
            carriers = transports.Transport(torch, own)
            steps = clocks.Steps()
            return member.measure(
                pair.Context(torch, store, met, own, carriers, still, steps, lambda **_: None)
            )

        with ThreadPoolExecutor(of) as all_of_them:
            return list(all_of_them.map(rail, rails))

    def measure(self) -> list[dict[str, Any]]:
        """What each end has to say."""
        store = torch.distributed.HashStore()
        with ThreadPoolExecutor(2) as both:
            return list(both.map(lambda rank: self._end(store, rank), (0, 1)))

    def _end(self, store: Any, rank: int) -> dict[str, Any]:
        turn = {"round": 0, "a": "h1", "b": "h2", "rank": rank, "partner": 1 - rank}
        rail = plan.Rail(
            plan.read({**self._go, "index": rank, "turns": [turn]}), 0, "127.0.0.1", ("a", 1)
        )
        assert rail.go.turns[0] is not None
        met = process_groups.Rendezvous(store, rank, 2)
        still = Still()
        carriers = transports.Transport(torch, rail)
        steps = clocks.Steps()
        seat = pair.Context(torch, store, met, rail, carriers, still, steps, lambda **_: None)
        return pair.measure(seat, rail.go.turns[0])
