"""How the picture looks: five colours, light or dark, and escaped text.

The reds are ColorBrewer's OrRd, "colorblind safe" and of falling lightness (on a dark screen of
rising lightness); a pair that gave no time has a letter, so nothing is told by colour alone.
"""

from __future__ import annotations

import html

from msgspec import Struct

from preflight.core.text import printable


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


COLOURS = """
:root{color-scheme:light dark;--ink:#1c1d20;--paper:#fff;--dim:#5d6066;--bad:#8f1409;--leaf:#3b6e8f;
--rule:#e4e4e1;--peers:#c3c9d0;--peer:#8b949e;--mine:#d7301f}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e6e6e6;--paper:#16181c;--dim:#a0a4aa;
--bad:#ff9d7a;--leaf:#86b7d6;--rule:#33373d;--peers:#454c55;--peer:#79828d;--mine:#f08a4b}}
"""
FIGURES = """
figure{margin:8px 28px 8px 0;display:inline-block;vertical-align:top;max-width:100%;overflow-x:auto}
figcaption{font-size:13px;font-weight:600;margin-bottom:4px;max-width:480px}
svg text{font:11px ui-monospace,monospace;fill:var(--ink)}svg .bad{font-weight:700;fill:var(--bad)}
svg .leaf{font-weight:700;fill:var(--leaf)}svg .letter{fill:var(--paper);font-weight:700}
.heat rect{stroke:var(--paper);stroke-width:1}.heat .frame{fill:none;stroke:var(--ink);
stroke-width:2}.heat .maybe{stroke-dasharray:4 3}.line{stroke:var(--rule);fill:none}
.peers{fill:var(--peers);stroke:var(--peer)}.mine{fill:var(--mine);fill-opacity:.25;
stroke:var(--bad);stroke-width:2}
.key{margin-right:16px;white-space:nowrap}.key svg{vertical-align:-2px;
margin-right:5px}.wide{overflow-x:auto;max-width:100%}
"""
_LAYOUT = """
body{font:14px/1.45 system-ui,sans-serif;margin:24px;color:var(--ink);background:var(--paper);
max-width:1500px}
h1{font-size:22px;margin:0 0 4px}h2{font-size:16px;margin:28px 0 6px}p{margin:4px 0}
.verdict{font-size:17px;font-weight:600}.finding{border-left:5px solid var(--bad);padding:2px 12px;
margin:10px 0}.finding b{font-size:16px}.small{color:var(--dim);font-size:12px}
summary{cursor:pointer;font-weight:600}
table{border-collapse:collapse;margin:6px 0;font-size:13px}
th,td{text-align:left;padding:2px 14px 2px 0;
border-bottom:1px solid var(--rule)}td.n{text-align:right;font-family:ui-monospace,monospace}
"""


def style() -> str:
    """All rules of a page that is nothing but the fabric; no address, no font, no image."""
    return COLOURS + _LAYOUT + figures()


def figures() -> str:
    """The rules of its drawings alone."""
    return FIGURES + css()


_LABEL = 26


def text(words: str) -> str:
    """Escape for an element or a quoted attribute; control characters are dropped."""
    return html.escape(printable(words))


def label(name: str) -> str:
    """Cut a name to what fits beside a row, and escape it."""
    return text(name if len(name) <= _LABEL else f"{name[: _LABEL - 1]}…")


def number(value: float) -> str:
    """Write a coordinate in few characters: a large fabric has thousands."""
    return f"{value:.1f}".rstrip("0").rstrip(".")
