"""What a misspelt name was meant to be: known names that differ by a letter or two, quickly.

A job may have thousands of variables, and each is held against all known names within the budget:
first by which letters occur at all, then letter by letter until they are too far apart.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from preflight.facts.environ.variables import variables

if TYPE_CHECKING:
    from collections.abc import Mapping

FARTHEST: Final = 2
"""Letters by which a typing error may differ; swapping two neighbours counts as one."""

_SHORTEST: Final = 8


def meant(name: str) -> str:
    """The variable that a wrong name is probably meant to be; "" where none is near."""
    upper = name.upper()
    if upper in variables():
        return upper
    return _by_words().get(_words(upper), "") or _nearest(upper)


def _words(name: str) -> tuple[str, ...]:
    return tuple(sorted(name.split("_")))


@cache
def _by_words() -> Mapping[tuple[str, ...], str]:
    """The known names by their words in any order; of several the first."""
    return {_words(one): one for one in reversed(variables())}


@cache
def _known() -> tuple[tuple[str, int], ...]:
    """The known names, each with the letters that occur in it."""
    return tuple((one, _letters(one)) for one in variables() if len(one) >= _SHORTEST)


def _nearest(name: str) -> str:
    best, least, mine = "", FARTHEST + 1, _letters(name)
    for one, letters in _known():
        # An edit takes at most one letter away and brings at most one.
        if abs(len(one) - len(name)) > FARTHEST or (mine ^ letters).bit_count() > 2 * FARTHEST:
            continue
        far = _distance(name, one)
        if far < least:
            best, least = one, far
    return best


def _letters(name: str) -> int:
    """A bit for each letter that occurs."""
    found = 0
    for letter in name:
        found |= 1 << (ord(letter) & 63)
    return found


def _distance(a: str, b: str) -> int:
    """Letters to insert, delete, replace or swap (restricted Damerau-Levenshtein distance).

    Given up, as more than FARTHEST, once two rows in turn are farther than that.
    """
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        now = [i]
        for j, other in enumerate(b, 1):
            cost = min(row[j] + 1, now[j - 1] + 1, row[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                cost = min(cost, before[j - 2] + 1)
            now.append(cost)
        before, row = row, now
        if min(row) > FARTHEST and min(before) > FARTHEST:
            return FARTHEST + 1
    return row[-1]
