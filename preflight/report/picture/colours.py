"""Five steps from fine to broken that stay apart for colour-blind eyes and on a grey printer.

The reds are ColorBrewer's OrRd, "colorblind safe" and of falling lightness (on a dark screen of
rising lightness); a pair that gave no time has a letter, so nothing is told by colour alone.
"""

from __future__ import annotations

from msgspec import Struct


class Step(Struct, frozen=True):
    """One colour of the scale."""

    css: str
    colour: str
    dark: str
    """The same on a dark screen."""
    words: str
    up_to: float = 0.0
    """Times as long as the peers take, exclusively."""
    strong: bool = False
    """Whether what is written on it must be of the page's own colour."""


NO_PEERS = Step("cp", "#9ecae1", "#2f5a73", "no peers to compare with")
BROKEN = Step(
    "cx",
    "#111111",
    "#ffffff",
    "no result: C corrupt, H hung, N no connection, A absent, E error",
    strong=True,
)
STEPS = (
    Step("c0", "#e9e5da", "#2a2d32", "as its peers (under 1.1 x, or by chance)", 1.1),
    Step("c1", "#fdd49e", "#5a4020", "1.1 to 1.5 x", 1.5),
    Step("c2", "#fc8d59", "#a85a24", "1.5 to 2.5 x", 2.5),
    Step("c3", "#d7301f", "#f08a4b", "2.5 to 5 x", 5.0, strong=True),
    Step("c4", "#7f0000", "#ffd3a8", "5 x and more", float("inf"), strong=True),
)
LEGEND = (*STEPS, BROKEN, NO_PEERS)


def step(ratio: float | None) -> Step:
    """The colour of a pair that takes `ratio` times as long as its peers; None: it has none."""
    if ratio is None:
        return NO_PEERS
    return next((one for one in STEPS if ratio < one.up_to), STEPS[-1])


def css() -> str:
    """Style rules that fill the shapes of each class; the reader's system says light or dark."""
    light = "".join(f".{one.css}{{fill:{one.colour}}}" for one in LEGEND)
    dark = "".join(f".{one.css}{{fill:{one.dark}}}" for one in LEGEND)
    return f"{light}@media screen and (prefers-color-scheme:dark){{{dark}}}"
