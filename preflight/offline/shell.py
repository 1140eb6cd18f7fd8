"""The words of a shell script, as far as they can be known without running it; nothing is ever run.

A value that only the shell could work out (`$(hostname)`, a variable that nothing sets) is UNTOLD.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

UNTOLD: Final = "\0"

_LONGEST: Final = 128 << 10
"""Characters of a line that shlex splits: Linux takes no longer word, and shlex copies each anew
for every character."""

_OPERATOR: Final = re.compile(r"[;&|()<>]+")
_EXPANSION: Final = re.compile(
    r"\$\{([A-Za-z_]\w*)(?::?[-=]([^{}]*))?\}|\$([A-Za-z_]\w*)|\$\{[^}]*\}?|`[^`]*`?|\$[(0-9@*#?!$]?"
)
_COMMENT: Final = re.compile(r"(?:^|(?<=\s))#.*")
_PROMPT: Final = re.compile(r"^(?:\+{1,3} |\$ |[\w.-]+@[\w.-]+[^$#\n]{0,60}[$#] )")
_ENDS_OPEN: Final = re.compile(r"(?<!\\)(?:\\\\)*\\$")


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, those that end in a backslash joined, prompts taken off."""
    kept, began = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        began = began or number
        if _ENDS_OPEN.search(line) and not line.lstrip().startswith("#"):
            kept += line[:-1] + " "
            continue
        yield began, _PROMPT.sub("", kept + line, count=1)
        kept, began = "", 0
    if kept:
        yield began, kept


def is_cut(text: str) -> bool:
    """Whether a script ends in the middle of a line or of a quoted word."""
    last = text.rstrip("\n").rpartition("\n")[2]
    if _ENDS_OPEN.search(last):
        return True
    return not text.endswith("\n") and (len(last) > _LONGEST or _unbalanced(last))


def commands(line: str) -> list[list[str]]:
    """The simple commands of a line, each as its words; comments are none."""
    words = _words(line)
    found: list[list[str]] = [[]]
    for word in words:
        if _OPERATOR.fullmatch(word):
            found.append([])
        else:
            found[-1].append(word)
    return [one for one in found if one]


def expanded(value: str, known: Mapping[str, str]) -> str:
    """The value with what is known filled in; UNTOLD where a part of it is not."""

    def fill(found: re.Match[str]) -> str:
        name = found[1] or found[3]
        if name in known:
            return known[name]
        return found[2] if found[2] is not None else UNTOLD

    filled = _EXPANSION.sub(fill, value)
    return UNTOLD if UNTOLD in filled else filled


def _words(line: str) -> list[str]:
    bare = line if '"' in line or "'" in line else _COMMENT.sub("", line)
    if len(bare) > _LONGEST:
        return _up_to_quotes(bare)
    lexer = shlex.shlex(bare, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        for word in lexer:
            if word.startswith("#"):
                break
            words.append(word)
    except ValueError:  # a quote that another line closes
        return _up_to_quotes(bare)
    return words


def _up_to_quotes(line: str) -> list[str]:
    return [re.sub(r"['\"].*", "$", word) for word in line.split()]


def _unbalanced(line: str) -> bool:
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return True
    return False
