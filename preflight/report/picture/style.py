"""How the page looks: light or dark as the reader's system says, and on paper without colour."""

from __future__ import annotations

from preflight.report.picture.colours import css

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
stroke:var(--bad);stroke-width:2}.dots{fill:none;stroke:var(--mine);stroke-width:2;
stroke-linecap:round}.key{margin-right:16px;white-space:nowrap}.key svg{vertical-align:-2px;
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
