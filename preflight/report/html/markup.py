"""Markup by construction: what is not made here is text, whoever wrote it, and is escaped."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

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
