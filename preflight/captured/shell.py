"""Splits a shell script into lines and commands, and expands the variables that it sets itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Final

UNKNOWN: Final = "\0"
"""Stands for a value, or a part of one, that only the shell can compute."""

_LONGEST_LINE: Final = 128 << 10
"""Characters of a line for shlex: Linux allows no longer word, and shlex copies a word for every
character."""

_OPERATOR: Final = re.compile(r"[;&|()<>]+")
# $NAME, ${NAME:-default}; and what only the shell can compute: ${#NAME}, `date`, $(date), $1.
_EXPANSION: Final = re.compile(
    r"\$\{([A-Za-z_]\w*)(?::?[-=]([^{}]*))?\}|\$([A-Za-z_]\w*)|\$\{[^}]*\}?|`[^`]*`?|\$[(0-9@*#?!$]?"
)
_COMMENT: Final = re.compile(r"(?:^|(?<=\s))#.*")
# The "+ " of `set -x`, "$ ", and "me@login-1:~/run$ ".
_PROMPT: Final = re.compile(r"^(?:\+{1,3} |\$ |[\w.-]+@[\w.-]+[^$#\n]{0,60}[$#] )")
# An odd number of backslashes at the end of a line continues it.
_CONTINUATION: Final = re.compile(r"(?<!\\)(?:\\\\)*\\$")


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; continued lines are joined, prompts are removed."""
    joined, first_number = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first_number = first_number or number
        if _CONTINUATION.search(line) and not line.lstrip().startswith("#"):
            joined += line[:-1] + " "
            continue
        yield first_number, _PROMPT.sub("", joined + line, count=1)
        joined, first_number = "", 0
    if joined:
        yield first_number, joined


def is_cut(text: str) -> bool:
    """Whether a script ends in the middle of a line or a quoted word."""
    last = text.rstrip("\n").rpartition("\n")[2]
    if _CONTINUATION.search(last):
        return True
    return not text.endswith("\n") and (len(last) > _LONGEST_LINE or _has_open_quote(last))


def commands(line: str) -> list[list[str]]:
    """The simple commands of a line as lists of words, without comments."""
    commands_of_line: list[list[str]] = [[]]
    for word in _words(line):
        if _OPERATOR.fullmatch(word):
            commands_of_line.append([])
        else:
            commands_of_line[-1].append(word)
    return [words for words in commands_of_line if words]


class Variables(dict[str, str]):
    """Variables by name, and how many characters their expansions may still add.

    Linux allows no more in one environment, and 40 lines that each double a value fill any memory.
    """

    remaining_chars: int = 1 << 20


def expanded(value: str, variables: Variables) -> str:
    """The value with known variables expanded; UNKNOWN if a part is unknown or too long."""

    def fill(match: re.Match[str]) -> str:
        name, default = match[1] or match[3], match[2]
        if name in variables:
            variables.remaining_chars -= len(variables[name])
            return variables[name] if variables.remaining_chars >= 0 else UNKNOWN
        return UNKNOWN if default is None else default

    filled = _EXPANSION.sub(fill, value)
    return UNKNOWN if UNKNOWN in filled else filled


def _words(line: str) -> list[str]:
    uncommented = line if '"' in line or "'" in line else _COMMENT.sub("", line)
    if len(uncommented) > _LONGEST_LINE:
        return _up_to_quotes(uncommented)
    lexer = shlex.shlex(uncommented, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        for word in lexer:
            if word.startswith("#"):
                break
            words.append(word)
    except ValueError:  # a quote that another line closes
        return _up_to_quotes(uncommented)
    return words


def _up_to_quotes(line: str) -> list[str]:
    return [re.sub(r"['\"].*", "$", word) for word in line.split()]


def _has_open_quote(line: str) -> bool:
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return True
    return False
