"""Texts that make an expression go back, made from the expression itself.

Of each repeat without a small limit: a text that comes to it, then what it repeats, many times,
then what makes the whole fail. Of a search also the text that comes to it, many times: each
begins a try of its own. And any of these parts, joined by chance.
"""

from __future__ import annotations

import random
from re import _constants as c  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_MANY = 20
"""Repeats with a smaller limit cost a fixed factor."""
_LONGEST = 120
_ALPHABET = " a0A.:-_/=,'\"[](){}<>\t\n\r#@|&;$`\\*+%~^!?xzZ9éb\x1b\x00"
_ENDS = ("\n\x00", "", " \x00!")
_CATEGORIES: dict[Any, Callable[[str], bool]] = {
    c.CATEGORY_DIGIT: str.isdigit,
    c.CATEGORY_NOT_DIGIT: lambda char: not char.isdigit(),
    c.CATEGORY_SPACE: str.isspace,
    c.CATEGORY_NOT_SPACE: lambda char: not char.isspace(),
    c.CATEGORY_WORD: lambda char: char.isalnum() or char == "_",
    c.CATEGORY_NOT_WORD: lambda char: not (char.isalnum() or char == "_"),
}
_REPEATS = (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT)
_ONE_CHAR = (c.LITERAL, c.NOT_LITERAL, c.ANY, c.IN, c.CATEGORY)


class Attack(Struct, frozen=True):
    """A text of any length: `pump` is repeated between the other two."""

    before: str
    pump: str
    after: str

    def text(self, length: int) -> str:
        """As many times as fit."""
        rest = length - len(self.before) - len(self.after)
        return self.before + self.pump * max(1, rest // len(self.pump)) + self.after


def attacks(pattern: str, most: int) -> list[Attack]:
    """So many: those made from its repeats, evenly chosen if too many, else more by chance."""
    parts = list(_parts(list(_parser.parse(pattern)), ""))
    found: dict[Attack, None] = {}
    for before, samples, between in parts:
        for pump in samples:
            for end in _ENDS:
                found[Attack(before, pump, end)] = None
                if before and len(before) <= _LONGEST:
                    found[Attack("", before + pump, end)] = None
            if between:
                found[Attack("", before + pump + between, "")] = None
                found[Attack(before, pump + between, _ENDS[0])] = None
                found[Attack(before, between + pump, _ENDS[0])] = None
    made = list(found)
    if len(made) > most:
        return [made[at * len(made) // most] for at in range(most)]
    chance = random.Random(pattern.encode(errors="surrogatepass"))  # noqa: S311  the same ones in each run
    pieces = sorted({piece for before, samples, end in parts for piece in (before, *samples, end)})
    for _ in range(most - len(made) if any(pieces) and most > _MANY * _MANY else 0):
        pump = "".join(chance.choices(pieces, k=chance.randint(1, 4))) or "a"
        made.append(Attack(chance.choice(pieces), pump, chance.choice((*_ENDS, *pieces))))
    return made


def _parts(items: Sequence[Any], before: str) -> Iterator[tuple[str, list[str], str]]:
    """Of every repeat of many: what comes to it, what it repeats, what stands before the next."""
    for at, (op, value) in enumerate(items):
        if op in _REPEATS and (value[1] is c.MAXREPEAT or value[1] >= _MANY):
            ends = (n for n, one in enumerate(items[at + 1 :], at + 1) if one[0] in _REPEATS)
            between = _example(items[at + 1 : next(ends, len(items))])
            yield before, _samples(list(value[2])), between
        for inner in _inner(op, value):
            yield from _parts(inner, before)
        before += _example([(op, value)])


def _inner(op: Any, value: Any) -> list[list[Any]]:
    if op in _REPEATS:
        return [list(value[2])]
    if op is c.SUBPATTERN:
        return [list(value[3])]
    if op is c.ATOMIC_GROUP:
        return [list(value)]
    if op is c.BRANCH:
        return [list(branch) for branch in value[1]]
    if op in (c.ASSERT, c.ASSERT_NOT):
        return [list(value[1])]
    return []


def _samples(body: list[Any]) -> list[str]:
    """What a repeat may repeat: several letters where it is a class, else one of each branch."""
    if len(body) == 1 and body[0][0] in _ONE_CHAR:
        fits = [char for char in _ALPHABET if _fits(body[0], char)]
        words = [char for char in fits if char.isalnum()][:1]
        pairs = [word + char for word in words for char in fits if not char.isalnum()]
        return list(dict.fromkeys([*fits[:8], *pairs[:4], *fits[-1:]])) or [_example(body)]
    inner = _inner(*body[0]) if len(body) == 1 else []
    if len(inner) == 1 and body[0][0] is c.SUBPATTERN:
        return _samples(inner[0])
    return [sample for sample in map(_example, inner or [body]) if sample] or ["a"]


def _fits(item: Any, char: str) -> bool:
    op, value = item
    if op is c.LITERAL:
        return bool(value == ord(char))
    if op is c.NOT_LITERAL:
        return bool(value != ord(char))
    if op is c.ANY:
        return char != "\n"
    if op is c.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    if op is c.CATEGORY:
        return _CATEGORIES[value](char)
    negated = value[0][0] is c.NEGATE
    return any(_fits(one, char) for one in value[negated:]) != negated


def _example(items: Sequence[Any]) -> str:
    """One short text that these match, as far as their assertions allow."""
    told = ""
    for op, value in items:
        if op is c.LITERAL:
            told += chr(value)
        elif op in _ONE_CHAR:
            told += next((char for char in f"a0 :.-/{_ALPHABET}" if _fits((op, value), char)), "a")
        elif op in _REPEATS:
            told += _example(list(value[2])) * value[0]
        elif op not in (c.ASSERT, c.ASSERT_NOT):
            told += min((_example(inner) for inner in _inner(op, value)), key=len, default="")
    return told
