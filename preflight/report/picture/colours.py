"""Five steps from fine to broken that stay apart for colour-blind eyes and on a grey printer.

The reds are ColorBrewer's OrRd, "colorblind safe" and of falling lightness; a pair that gave no
time is black with a letter, so nothing is told by colour alone.
"""

from __future__ import annotations

from msgspec import Struct


class Step(Struct, frozen=True):
    """One colour of the scale."""

    css: str
    colour: str
    words: str
    up_to: float = 0.0
    """Times as long as the peers take, exclusively."""


NO_PEERS = Step("cp", "#9ecae1", "no peers to compare with")
BROKEN = Step("cx", "#111111", "no result: C corrupt, H hung, N no connection, A absent, E error")
STEPS = (
    Step("c0", "#e9e5da", "as its peers (under 1.15 x)", 1.15),
    Step("c1", "#fdd49e", "1.15 to 1.5 x", 1.5),
    Step("c2", "#fc8d59", "1.5 to 2.5 x", 2.5),
    Step("c3", "#d7301f", "2.5 to 5 x", 5.0),
    Step("c4", "#7f0000", "5 x and more", float("inf")),
)
LEGEND = (*STEPS, BROKEN, NO_PEERS)


def step(ratio: float | None) -> Step:
    """The colour of a pair that takes `ratio` times as long as its peers; None: it has none."""
    if ratio is None:
        return NO_PEERS
    return next((one for one in STEPS if ratio < one.up_to), STEPS[-1])


def css() -> str:
    """Style rules that fill the shapes of each class."""
    return "".join(f".{one.css}{{fill:{one.colour}}}" for one in LEGEND)
