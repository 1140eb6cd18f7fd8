"""Longer versions of a small file: one of its parts is repeated, lengthened or nested."""

from __future__ import annotations

import copy
import json
import re
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Change = Callable[[Any, int], Any]
    Make = Callable[[int], Any]

_DIGITS: Final = re.compile(r"[0-9]{1,15}")
_WORD: Final = re.compile(r"[^\s=:,;]+")


def other(value: Any, turn: int) -> Any:
    """The same value with other numbers in its texts: another node, another rank."""
    if isinstance(value, str):
        return _DIGITS.sub(lambda found: str(int(found[0]) + 1000 * turn), value) if turn else value
    if isinstance(value, list):
        return [other(each, turn) for each in value]
    if isinstance(value, dict):
        return {key: other(each, turn) for key, each in value.items()}
    return value


def _longer_list(value: list[Any], times: int) -> list[Any]:
    return [other(each, turn) for turn in range(times) for each in value]


def _same_list(value: list[Any], times: int) -> list[Any]:
    return value * times


def _longer_table(value: dict[str, Any], times: int) -> dict[str, Any]:
    last = list(value)[-1]
    more = {_numbered(last, turn): other(value[last], turn) for turn in range(1, times)}
    return value | more


def _numbered(key: str, turn: int) -> str:
    return other(key, turn) if _DIGITS.search(key) else f"{key}{turn}"


def _longer_text(value: str, times: int) -> str:
    return value * times


def _listed_text(value: str, times: int) -> str:
    return ",".join(other(value, turn) for turn in range(times))


def _in_lists(value: Any, times: int) -> Any:
    for _ in range(times):
        value = [value]
    return value


def _in_tables(value: Any, times: int) -> Any:
    for _ in range(times):
        value = {"a": value}
    return value


def _changes(value: Any) -> Iterator[Change]:
    if isinstance(value, list) and value:
        yield from (_longer_list, _same_list)
    if isinstance(value, dict) and value:
        yield _longer_table
    if isinstance(value, str) and value:
        yield from (_longer_text, _listed_text)
    yield from (_in_lists, _in_tables)


def parts(document: Any) -> Iterator[tuple[str, Make]]:
    """Each part of a document, and what makes the document with so many of it."""
    for key in document if isinstance(document, dict) else range(len(document)):
        value = document[key]
        for change in _changes(value):
            yield (
                f"{key} {change.__name__.strip('_')}",
                partial(_with, document, key, partial(change, value)),
            )
        if isinstance(value, dict | list):
            for name, make in parts(value):
                yield f"{key} {name}", partial(_with, document, key, make)


def _with(document: Any, key: Any, make: Make, times: int) -> Any:
    changed = copy.copy(document)
    changed[key] = make(times)
    return changed


def lines(text: str) -> Iterator[tuple[str, Make]]:
    """Each line of a text, and each word of it, and what makes the text with so many of it."""
    whole = text.splitlines(keepends=True)
    for at, line in enumerate(whole):
        before, after = "".join(whole[:at]), "".join(whole[at + 1 :])
        yield f"{at} same", partial(_repeated, before, line, after)
        yield f"{at} others", partial(_renumbered, before, line, after)
        for found in _WORD.finditer(line):
            head, tail = before + line[: found.start()], line[found.end() :] + after
            yield f"{at} {found[0]:.20}", partial(_repeated, head, found[0], tail)
            yield f"{at} {found[0]:.20} list", partial(_joined, head, found[0], tail)


def _repeated(before: str, part: str, after: str, times: int) -> str:
    return before + part * times + after


def _renumbered(before: str, part: str, after: str, times: int) -> str:
    return before + "".join(other(part, turn) for turn in range(times)) + after


def _joined(before: str, part: str, after: str, times: int) -> str:
    return before + ",".join(other(part, turn) for turn in range(times)) + after


def toml(document: dict[str, Any], path: str = "") -> str:
    """Write a document as TOML: a table for each dictionary, a line for each other value."""
    plain = {key: value for key, value in document.items() if not isinstance(value, dict)}
    text = "".join(f"{json.dumps(key)} = {_inline(value)}\n" for key, value in plain.items())
    for key, value in document.items():
        if key not in plain:
            name = f"{path}{json.dumps(key)}"
            text += f"[{name}]\n{toml(value, f'{name}.')}"
    return text


def _inline(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(k)} = {_inline(v)}' for k, v in value.items())}}}"
    return str(value) if isinstance(value, date) else json.dumps(value)
