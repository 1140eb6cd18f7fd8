"""Words that a variable takes: a blank, a wrong case or an unknown one is often lost silently."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.facts.environ.numbers import as_strtoll
from preflight.facts.environ.remark import Remark, told
from preflight.fleet.words import did_you_mean

if TYPE_CHECKING:
    from preflight.facts.environ.variables import Variable


def choice(variable: Variable, value: str) -> Remark | None:
    """One word of a list."""
    return None if not value or _is_one(variable, value) else _unknown_word(variable, value, value)


def word_list(variable: Variable, value: str) -> Remark | None:
    """Words with commas between; `^` in front inverts where the variable knows that."""
    listed = value.removeprefix("^") if variable.invert else value
    words = listed.split(",")
    wrong = next((word for word in words if word and not _is_one(variable, word)), None)
    return None if wrong is None else _unknown_word(variable, value, wrong)


def functions(variable: Variable, value: str) -> Remark | None:
    """`ring,tree;allreduce:^tree`: lists, each for one function (since NCCL 2.24)."""
    for part in value.split(";"):
        _, _, listed = part.rpartition(":")
        for word in listed.removeprefix("^").split(","):
            if word and not _is_one(variable, word):
                return _unknown_word(variable, value, word)
    return None


def level(variable: Variable, value: str) -> Remark | None:
    """A distance by name, in capitals, or one of the old numbers."""
    if not value or value in variable.values:
        return None
    number = as_strtoll(value)
    if number.how == "fine" and 0 <= (number.value or 0) <= (variable.max or 0):
        return None
    said = f"{told(variable.name, value)} is ignored without a word"
    capitals = f"write {value.strip().upper()}" if value.strip().upper() in variable.values else ""
    return Remark(said, capitals or f"give one of {', '.join(variable.values)}")


def float_number(variable: Variable, value: str) -> Remark | None:
    """A positive number with a point."""
    try:
        good = not value or float(value) > 0
    except ValueError:
        good = False
    said = f"{told(variable.name, value)} is no positive number, and is ignored"
    return None if good else Remark(said, f"give {variable.name} a number such as 1.5")


def path(variable: Variable, value: str) -> Remark | None:
    """A path: nothing but a shell knows the tilde, and quotes and blanks are part of the name."""
    if value.startswith("~"):
        said = f"{told(variable.name, value)}: only a shell replaces ~, here it is part of the name"
        return Remark(said, "write the whole path")
    if value != value.strip():
        said = f"{told(variable.name, value)}: the blank at its end is part of the name"
        return Remark(said, "remove the blank")
    return None


def _is_one(variable: Variable, word: str) -> bool:
    taken = [one.upper() for one in variable.values] if variable.fold else variable.values
    return (word.upper() if variable.fold else word) in taken


def _unknown_word(variable: Variable, value: str, word: str) -> Remark:
    said = f"{told(variable.name, value)}: "
    if word.strip() != word and _is_one(variable, word.strip()):
        said += f"the blank in {word!a} is part of the word, so it is not known"
        advice = "remove the blank"
    elif not variable.fold and word.upper() in variable.values:
        said += f"{word[:40]!a} is not known, capitals count"
        advice = f"write {word.upper()}"
    else:
        said += f"{word[:40]!a} is not one of {', '.join(variable.values)}"
        near = did_you_mean(word.upper(), variable.values)
        meant = near.partition("'")[2].partition("'")[0] if "did you mean" in near else ""
        advice = f"write {meant}" if meant else f"unset {variable.name}, or give one of these"
    said += f"; {variable.beyond}" if variable.beyond else ""
    return Remark(said, advice, "warn" if variable.mild else "fail")
