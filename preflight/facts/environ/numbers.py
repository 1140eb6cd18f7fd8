"""A number is what its reader makes of the text: "true" is 0 to NCCL, and "4M" is 4.

NCCL reads by strtoll with base 0 and looks at overflow only (src/misc/param.cc); torch reads by
std::stoi and std::stod, and stops where there is no number at all (c10d/Utils.hpp).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

_STRTOLL: Final = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", re.ASCII)
_STOI: Final = re.compile(r"\s*([+-]?)([0-9]+)", re.ASCII)
_INT64: Final = 1 << 63
_INT32: Final = 1 << 31
_MOST_DIGITS: Final = 30


@dataclass(frozen=True, slots=True)
class Number:
    """What a reader makes of a text. `how`: why that is not what was meant."""

    value: int | None
    """None: the default counts (empty, or overflow), or the reader raises."""
    how: Literal["fine", "empty", "rest", "octal", "words", "huge"] = "fine"


def as_strtoll(text: str) -> Number:
    """Read it as C's strtoll with base 0, as NCCL does."""
    if not text:
        return Number(None, "empty")
    found = _STRTOLL.match(text)
    if found is None:
        return Number(0, "words")
    digits = found[2].lower()
    if len(digits) > _MOST_DIGITS:
        return Number(None, "huge")
    octal = len(digits) > 1 and digits[0] == "0" and digits[1] != "x"
    value = int(digits, 8 if octal else 16 if digits.startswith("0x") else 10)
    value = -value if found[1] == "-" else value
    if not -_INT64 <= value < _INT64:
        return Number(None, "huge")
    if text[found.end() :].strip():
        return Number(value, "rest")
    return Number(value, "octal" if octal and int(digits) != abs(value) else "fine")


def as_stoi(text: str) -> Number:
    """Read it as C++'s stoi, as torch does; None where that raises."""
    found = _STOI.match(text)
    if found is None:
        return Number(None, "words")
    value = int(found[2][:20]) * (-1 if found[1] == "-" else 1)
    if not -_INT32 <= value < _INT32:
        return Number(None, "huge")
    return Number(value, "rest" if text[found.end() :].strip() else "fine")


def number(text: str | None, read_as: str = "strtoll") -> int | None:
    """The number that counts; None where the text is not set, or sets none."""
    if text is None:
        return None
    return (as_stoi if read_as == "stoi" else as_strtoll)(text).value


def switched_on(text: str | None) -> bool:
    """Whether NCCL takes a switch for on: any number but 0."""
    return bool(number(text))
