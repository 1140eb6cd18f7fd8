"""Small things that several sections are made of."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

from preflight.fleet.nodeset import fold
from preflight.report.html.markup import Html, tag

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preflight.report.html.markup import Child

_MINUTE, _LONG = 60, 5400
_HOUR = 3600
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_MOST_NAMED = 8


def copied(words: str, content: str, *, about: str = "") -> Html:
    """A button that copies; without a script the content stands beside it anyway."""
    return tag(
        "button", words, type="button", data_copy=content, aria_label=f"{words}{about}" or None
    )


def section(name: str, heading: str, *children: Child, note: str = "") -> Html:
    """One part of the page, which the bar at the top leads to."""
    said = tag("p", note, class_="small") if note else None
    return tag("section", tag("h2", heading), said, *children, id=name)


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
    shown = rest if len(rest) <= _MOST_NAMED else rest[: _MOST_NAMED - 1]
    more = [f"and {len(rest) - len(shown)} more"] if len(rest) > len(shown) else []
    return ", ".join([*([fold(plain)] if plain else []), *shown, *more])
