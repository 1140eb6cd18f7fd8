"""Markup by construction: what is not made here is text, whoever wrote it, and is escaped."""

from __future__ import annotations

import html
import re
from datetime import datetime
from typing import TYPE_CHECKING

from preflight.fleet.nodeset import fold

if TYPE_CHECKING:
    from collections.abc import Iterable


_VOID = frozenset(("br", "input", "meta"))


class Html(str):
    """Markup that was made here, or a drawing of ours; every other string is somebody's words."""

    __slots__ = ()


Child = str | None
Children = "Child | Iterable[Child]"


def tag(name: str, /, *children: Child | Iterable[Child], **attributes: str | int | None) -> Html:
    """Make an element. `class_` is `class`, `data_copy` is `data-copy`; None leaves one out."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_text(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{said}/>")
    return Html(f"<{name}{said}>{join(*children)}</{name}>")


def join(*children: Child | Iterable[Child]) -> Html:
    """Put pieces behind one another; plain strings are escaped, None is nothing."""
    pieces: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, str):
            pieces.append(child if isinstance(child, Html) else _text(child))
        else:
            pieces.append(join(*child))
    return Html("".join(pieces))


def _text(words: str) -> str:
    """Escape for an element or a quoted attribute; no control or direction character is left."""
    if words.isascii() and words.isprintable():
        return html.escape(words)
    return html.escape("".join(c if c.isprintable() else " " if c.isspace() else "" for c in words))


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
