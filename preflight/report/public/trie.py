"""One pattern for thousands of names that begin alike: alternatives one by one are too slow."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_Trie = dict[str, "_Trie"]


def any_of(words: Iterable[str]) -> str:
    """A pattern that matches the longest of these words; one that matches nothing for none."""
    root: _Trie = {}
    for word in words:
        at = root
        for char in word:
            at = at.setdefault(char, {})
        if word:
            at[""] = {}
    return _pattern(root) if root else r"(?!)"


def _pattern(node: _Trie) -> str:
    """Longest first: the end of a word is tried when nothing goes on from there."""
    steps: list[str] = []
    for char, after in node.items():
        if not char:
            continue
        run, at = char, after
        while len(at) == 1 and "" not in at:
            ((more, at),) = at.items()
            run += more
        tail = "" if set(at) == {""} else _pattern(at)
        steps.append(re.escape(run) + tail)
    body = steps[0] if len(steps) == 1 else f"(?:{'|'.join(steps)})"
    return f"(?:{body})?" if "" in node else body
