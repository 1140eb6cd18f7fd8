"""How preflight's pages look: templates, five colours, light or dark, and escaped text.

Everything that a template does not write itself is escaped. The reds are ColorBrewer's OrRd,
"colorblind safe" and of falling lightness (on a dark screen of rising lightness); a pair without a
result has a letter, so that no information is in the colour alone.
"""

from __future__ import annotations

import html
import re
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from msgspec import Struct

from preflight.core.files import shipped_table
from preflight.core.text import cut_list, printable, sanitize
from preflight.fleet.nodeset import fold

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jinja2 import Template


_FILES = Path(__file__).with_name("templates")
_MINUTE, _LONG, _HOUR = 60, 5400, 3600
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_MOST_NAMED = 8


@cache
def template(name: str) -> Template:
    """Compile a template, without its own line breaks and indentation."""
    from jinja2 import Environment, StrictUndefined

    page = Environment(autoescape=True, finalize=escaped, undefined=StrictUndefined)
    page.filters |= {"folded": folded, "printable": printable, "count": "{:,}".format}
    return page.from_string("".join(line.strip() for line in file(name).splitlines()))


def macros(name: str) -> Any:
    """The macros of a template, each a function whose result is markup."""
    return template(name).module


def escaped(words: object) -> Markup:
    """Escape for an element or a quoted attribute; no control or direction character is left."""
    if isinstance(words, Markup):
        return words
    return Markup(html.escape(sanitize(str(words))))  # noqa: S704  escaped


def plural(number: int, word: str) -> str:
    """Count in words: "1 node", "1,000 nodes"."""
    return f"{number:,} {word}{'s' * (number != 1)}"


def date(started: str) -> str:
    """Write a date for people; text that is not a date stays as it is."""
    try:
        time = datetime.fromisoformat(started)
    except ValueError:
        return started
    zone = time.strftime("%Z") or "UTC"
    return f"{time.day} {time:%b %Y %H:%M} {zone}"


def duration(seconds: float) -> str:
    """Write a duration: "41 s", "12 min", "2.5 h"."""
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < _LONG else f"{seconds / _HOUR:.1f} h"


def folded(subjects: Iterable[str]) -> str:
    """Fold node names into a pattern; pairs, sets and anything else are listed."""
    nodes: list[str] = []
    others: list[str] = []
    for name in subjects:
        (nodes if _PLAIN.fullmatch(name) else others).append(name)
    return ", ".join([*([fold(nodes)] if nodes else []), *cut_list(others, _MOST_NAMED)])


class Step(Struct, frozen=True):
    """One colour of the scale."""

    css: str
    colour: str
    dark: str
    """The same on a dark screen."""
    words: str
    up_to: float = 0.0
    """Ratios below this: times as long as the peers take."""
    strong: bool = False
    """Whether text on it must have the page's background colour."""


_SCALE = shipped_table(__file__, "scale.toml")
NO_PEERS, BROKEN = Step(**_SCALE["no_peers"]), Step(**_SCALE["broken"])
STEPS = tuple(Step(**row) for row in _SCALE["step"])
LEGEND = (*STEPS, BROKEN, NO_PEERS)


def step(ratio: float | None) -> Step:
    """The colour of a pair that takes `ratio` times as long as its peers; None: no peers."""
    if ratio is None:
        return NO_PEERS
    return next((colour for colour in STEPS if ratio < colour.up_to), STEPS[-1])


def _fills() -> str:
    """Style rules that fill the shapes of each class; the reader's system chooses light or dark."""
    light = "".join(f".{entry.css}{{fill:{entry.colour}}}" for entry in LEGEND)
    dark = "".join(f".{entry.css}{{fill:{entry.dark}}}" for entry in LEGEND)
    return f"{light}@media screen and (prefers-color-scheme:dark){{{dark}}}"


def file(name: str) -> str:
    """A template or style sheet of this package."""
    return (_FILES / name).read_text(encoding="utf-8")


def style(*layout: str) -> str:
    """All style rules of a page: colours, layout and figures; no address, font or image."""
    return file("colours.css") + "".join(map(file, layout)) + file("figures.css") + _fills()


_LABEL = 26


def text(words: str) -> str:
    """Escape for an element or a quoted attribute; control characters are dropped."""
    return html.escape(printable(words))


def label(name: str) -> str:
    """Cut a name to what fits beside a row, and escape it."""
    return text(name if len(name) <= _LABEL else f"{name[: _LABEL - 1]}…")


def number(value: float) -> str:
    """Write a coordinate in few characters: a large fabric has thousands."""
    return f"{value:.1f}".removesuffix(".0")


_ATTRIBUTES = {"css": "class", "anchor": "text-anchor", "aria_label": "aria-label"}


def element(tag: str, content: str = "", **attributes: float | str) -> str:
    """Write an SVG element; an attribute that is "" is left out."""
    words = "".join(
        f' {_ATTRIBUTES.get(name, name)}="{value if isinstance(value, str) else number(value)}"'
        for name, value in attributes.items()
        if value != ""
    )
    return f"<{tag}{words}>{content}</{tag}>" if content else f"<{tag}{words}/>"
