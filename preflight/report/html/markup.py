"""Pages from templates: what a template does not write itself is text, whoever wrote it."""

from __future__ import annotations

import html
import re
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from preflight.core.text import printable, shortened, visible
from preflight.fleet.nodeset import fold

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jinja2 import Template

_MINUTE, _LONG, _HOUR = 60, 5400, 3600
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_MOST_NAMED = 8


@cache
def template(name: str) -> Template:
    """Compile a template; its own line breaks and indentation are no part of the page."""
    from jinja2 import Environment, StrictUndefined

    page = Environment(autoescape=True, finalize=escaped, undefined=StrictUndefined)
    page.filters |= {"folded": folded, "printable": printable, "count": "{:,}".format}
    source = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return page.from_string("".join(line.strip() for line in source.splitlines()))


def macros(name: str) -> Any:
    """The macros of a template, each a function whose result is markup."""
    return template(name).module


def escaped(words: object) -> Markup:
    """Escape for an element or a quoted attribute; no control or direction character is left."""
    if isinstance(words, Markup):
        return words
    return Markup(html.escape(visible(str(words))))  # noqa: S704  escaped


def many(number: int, word: str) -> str:
    """Count in words: "1 node", "1,000 nodes"."""
    return f"{number:,} {word}{'s' * (number != 1)}"


def date_of(started: str) -> str:
    """Say when as people do; what is no date stays as it is."""
    try:
        when = datetime.fromisoformat(started)
    except ValueError:
        return started
    zone = when.strftime("%Z") or "UTC"
    return f"{when.day} {when:%b %Y %H:%M} {zone}"


def span_of(seconds: float) -> str:
    """Say how long: "41 s", "12 min", "2.5 h"."""
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < _LONG else f"{seconds / _HOUR:.1f} h"


def folded(subjects: Iterable[str]) -> str:
    """Fold node names into a pattern; pairs and sets, and what is no host name, are listed."""
    plain: list[str] = []
    rest: list[str] = []
    for name in subjects:
        (plain if _PLAIN.fullmatch(name) else rest).append(name)
    return ", ".join([*([fold(plain)] if plain else []), *shortened(rest, _MOST_NAMED)])
