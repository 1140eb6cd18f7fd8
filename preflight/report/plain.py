"""JSON in ASCII whose texts drive no terminal, also where jq -r prints them."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from msgspec import Struct

_UNKNOWN = "\\ufffd"
_CONTROL = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u00[01][0-9a-f]|b|f|r)")
"""As JSON writes it; not a backslash that stands before a "u" of the text itself."""
_NOT_PLAIN = re.compile(r"[^\n -~]")
_DRIVES = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Control, bidirectional and formatting characters, halves of a pair, line ends."""


def plain(document: Struct, indent: int = 1) -> str:
    """Write a document as indented JSON that ends in a newline."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=indent).decode()
    return escaped(text) + "\n"


def escaped(text: str) -> str:
    """Put U+FFFD in place of what drives a terminal, and JSON's escapes for what is not ASCII.

    Line ends and tabs of a text stay; `text` is JSON.
    """
    if "\\" in text:
        text = _CONTROL.sub(rf"\1\{_UNKNOWN}", text)
    if text.isascii() and text.isprintable():  # nearly every line of events
        return text
    return _NOT_PLAIN.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    if unicodedata.category(match[0]) in _DRIVES:
        return _UNKNOWN
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
