"""A node whose clock was set in the middle of a sweep: told, and never taken for the network.

Durations are counted by steady clocks, so what was measured stands. But libraries wait by the wall
clock (gloo built for an old glibc does), so a wait that failed meanwhile proves nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.fabric.words import span

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from preflight.fabric.samples import End, Sweep


def clock_words(ends: Mapping[str, End]) -> str:
    """Say whose clock was set during a pair and by how much; nothing if none was.

    Wrong sums are wrong at any time of the day.
    """
    if any(end.state == "corrupt" for end in ends.values()):
        return ""
    return "; ".join(_words(end.node, end.stepped_s) for end in ends.values() if end.stepped_s)


def clock_lines(sweep: Sweep) -> list[str]:
    """One sentence per node whose clock was set during the sweep."""
    most: dict[str, float] = {}
    for end in _ends(sweep):
        if abs(end.stepped_s) > abs(most.get(end.node, 0.0)):
            most[end.node] = end.stepped_s
    return [
        f"{_words(name, step_s)} during the sweep; what was measured goes by its steady clock and "
        f"stands; see what sets the clock of {name} (chronyc tracking, journalctl -u chronyd)"
        for name, step_s in most.items()
    ]


def _ends(sweep: Sweep) -> Iterable[End]:
    both = (end for pair in sweep.pairs for end in (pair.first, pair.second))
    return (end for end in both if end is not None)


def _words(name: str, step_s: float) -> str:
    direction = "forward" if step_s > 0 else "back"
    return f"the clock of {name} was set {direction} by {span(abs(step_s))}"
