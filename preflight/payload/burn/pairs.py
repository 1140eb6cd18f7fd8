"""How fast every two GPUs of a node copy to each other, and whether what arrives is right.

One pair after the other: two that share a link would measure each other.
"""

from __future__ import annotations

import time

from sweep import cuda, verify

from . import crew, integrity
from .bench import Bench, reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Emit = Callable[["dict[str, Any]"], None]

_MOST_LOST = 3
MIB = 1 << 20


def measure(kind: str, alive: list[int], plan: dict[str, Any], emit: Emit) -> None:
    """Measure all pairs of the devices that came through; a pair that hangs is named and left."""
    left = [(a, b) for a in alive for b in alive if a < b]
    lost = 0
    while left and lost < _MOST_LOST:
        if not _go_on(kind, left, plan, emit):
            return
        lost += 1


def _go_on(kind: str, left: list[tuple[int, int]], plan: dict[str, Any], emit: Emit) -> bool:
    """Measure pairs in one process, taking each from the list; whether one of them ended it."""
    limit_s = float(plan["limit_s"]["p2p"])
    try:
        one = crew.Worker("preflight-p2p", Work(kind, plan["p2p"]).serve)
    except OSError as error:
        emit(crew.lost(left[0][0], "p2p", "error", str(error), to=left[0][1]))
        return False
    new = sorted({index for pair in left for index in pair}) if kind == "cuda" else []
    limit_s += float(plan["limit_s"]["open"]) if new else 0.0
    while left:
        a, b = left.pop(0)
        try:
            one.tell({"open": new, "a": a, "b": b})
        except OSError:
            emit(crew.lost(a, "p2p", "died", one.end() or "its process ended", to=b))
            return True
        answer = one.answer(time.monotonic() + limit_s, limit_s)
        for event in answer.events:
            emit(event)
        if answer.how:
            emit(crew.lost(a, "p2p", answer.how, answer.error, to=b, starved=answer.starved))
            return True
        new, limit_s = [], float(plan["limit_s"]["p2p"])
    one.end()
    return False


class Work:
    """The process that holds both ends of each pair."""

    def __init__(self, kind: str, how: dict[str, Any]) -> None:
        self._kind = kind
        self._how = how

    def serve(self, order: Callable[[], dict[str, Any] | None], say: Callable[..., None]) -> None:
        """Copy between each two devices that are named, both ways."""
        import torch

        torch.set_num_threads(1)
        while True:
            told = order()
            if told is None:
                return
            a, b = told["a"], told["b"]
            for index in told["open"]:
                cuda.initialise(torch, index)
            say([*self._copy(torch, a, b), *self._copy(torch, b, a)])

    def _copy(self, torch: Any, a: int, b: int) -> list[dict[str, Any]]:
        source, target = Bench(torch, self._kind, a), Bench(torch, self._kind, b)
        words = self._how["mib"] * MIB // 4
        one = source.empty(words, torch.int32)
        verify.fill(torch, one, verify.key(6, a, b))
        other = target.empty(words, torch.int32).fill_(0)
        both = _Both(source, target)
        seconds = both.samples(lambda: other.copy_(one, non_blocking=True), self._how)
        rates = [words * 4 / each / 1e9 for each in seconds]
        wanted = target.empty(words, torch.int32)
        verify.fill(torch, wanted, verify.key(6, a, b))
        wrong = int((other != wanted).sum().item())
        direct = None
        if self._kind == "cuda":
            direct = bool(torch.cuda.can_device_access_peer(a, b))
        found = reading("p2p_gbs", rates, device=a, to=b, direct=direct)
        size = f"{self._how['mib']} MiB"
        first = f"{wrong} of {words} words are not what was sent" if wrong else ""
        right = integrity.proof("p2p", len(rates), wrong, first, size=size)
        return [found, dict(right, device=a, to=b)]


class _Both(Bench):
    """A copy is over when both ends have done with it."""

    def __init__(self, source: Bench, target: Bench) -> None:
        super().__init__(source.torch, source.kind, source.device.index or 0)
        self._target = target

    def sync(self) -> None:
        super().sync()
        self._target.sync()
