"""Which of a fleet's rounds come next: suspects, then what was not measured for longest."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from preflight.fabric.schedule import Frame
    from preflight.history.past import Past

IN_LEAF, IN_LEAF_SHARE = 2, 3
"""Rounds inside of leaves per run, and at most one in three: they tell a node from its uplink."""


def choose(frame: Frame, past: Past, rounds: int, seed: int) -> tuple[int, ...]:
    """Choose rounds by number: one that holds a suspected pair, some inside of leaves, the oldest.

    Of rounds equally old those come first whose leaves were longest not joined, then the seed says.
    """
    queue = _Queue(frame, past, seed)
    chosen = queue.take_suspected(past) if rounds else []
    chosen += queue.take(min(reserved(frame, rounds), rounds - len(chosen)), {-1})
    return (*chosen, *queue.take(rounds - len(chosen)))


def reserved(frame: Frame, rounds: int) -> int:
    """How many of a run's rounds are inside of leaves at least."""
    across = len(frame.numbers) - frame.in_leaf
    return min(IN_LEAF, rounds // IN_LEAF_SHARE, frame.in_leaf) if across else 0


class _Queue:
    """Rounds not yet chosen, the oldest of each span of leaves in front."""

    def __init__(self, frame: Frame, past: Past, seed: int) -> None:
        self._frame = frame
        self._now = past.runs + 1
        self._age = {number: _last(past, number) for number in frame.numbers}
        shuffled = list(frame.numbers)
        random.Random(seed).shuffle(shuffled)  # noqa: S311  an order that a seed repeats, no secret
        self._place = {number: at for at, number in enumerate(shuffled)}
        self._spans: dict[int, list[int]] = {}
        self._joined: dict[int, int] = {}
        for number in sorted(frame.numbers, key=self._old_first, reverse=True):
            span = frame.span(number)
            self._spans.setdefault(span, []).append(number)
            self._joined[span] = max(self._joined.get(span, 0), self._age[number])

    def _old_first(self, number: int) -> tuple[int, int]:
        return self._age[number], self._place[number]

    def take(self, count: int, only: set[int] | None = None) -> list[int]:
        """Take the longest untested; `only` from these spans."""
        taken: list[int] = []
        for _ in range(count):
            heads = [
                (self._age[left[-1]], self._joined[span], self._place[left[-1]], span)
                for span, left in self._spans.items()
                if left and (only is None or span in only)
            ]
            if not heads:
                break
            span = min(heads)[-1]
            taken.append(self._spans[span].pop())
            self._joined[span] = self._now
        return taken

    def take_suspected(self, past: Past) -> list[int]:
        """Take the longest untested of the rounds that hold a suspected pair, if there is one."""
        held: dict[int, int] = {}
        for a, b in past.suspects:
            try:
                number = self._frame.holding(a, b)
            except KeyError:
                continue  # a name that is not of this fleet
            if a != b and number in self._age:
                held[number] = held.get(number, 0) + 1
        if not held:
            return []
        number = min(held, key=lambda one: (self._age[one], -held[one], self._place[one]))
        span = self._frame.span(number)
        self._spans[span].remove(number)
        self._joined[span] = self._now
        return [number]


def _last(past: Past, number: int) -> int:
    done = past.done.get(number)
    return done.run if done else 0
