"""perfquery's counters as somebody pasted them: a port that lost bits, on a NIC or on a switch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from preflight.facts.model import Nic, NicPort
from preflight.facts.rdma_model import Counter, Counters

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEAD: Final = re.compile(
    r"^#\s*(Port[\w ]*?) counters:\s*Lid (\d{1,5}) port (\d{1,3})", re.IGNORECASE
)
_WHOLE: Final = re.compile(r"^#\s*Port (?:extended )?counters:", re.IGNORECASE)
_FIRST: Final = "port_select"
_LAST: Final = "vl15_dropped"
"""How the standard counters begin and end: those of errors come first, traffic follows."""
_LINE: Final = re.compile(r"^\s*([A-Za-z][A-Za-z0-9]{3,40}):\.*\s*(\S*)\s*$")
_WORDS: Final = re.compile(r"VL15|QP1|[A-Z]{2,}(?![a-z])|[A-Z][a-z]*|[0-9]+")
_ERRORS: Final = re.compile(r"error|discard|downed|recovery|dropped|overrun|integrity")
_MOST: Final = 2**53


class Queried(Struct, frozen=True):
    """The ports of a text, each as a device of its own: perfquery knows LIDs and no names."""

    nics: tuple[Nic, ...]
    counters: int
    """Error counters read, over all ports."""
    damaged: str = ""


def parse(text: str) -> Queried | None:
    """Read the counters of every port that has a heading; None without any heading."""
    blocks: list[tuple[str, int, dict[str, int]]] = []
    damaged = ""
    standard: list[dict[str, int]] = []
    for line in text.splitlines():
        if found := _HEAD.search(line):
            blocks.append((f"lid {found.group(2)}", int(found.group(3)), {}))
            standard += [blocks[-1][2]] * bool(_WHOLE.search(line))
        elif blocks and (pair := _LINE.match(line)):
            name, value = snake(pair.group(1)), pair.group(2)
            if value.isdecimal():
                blocks[-1][2][name] = min(int(value), _MOST)
            elif not re.fullmatch(r"0x[0-9a-fA-F]+", value):
                damaged = damaged or f"{pair.group(1)} of {blocks[-1][0]} has no value"
        elif blocks and line.strip() and not line.startswith("#"):
            damaged = damaged or f"a line of {blocks[-1][0]} cannot be read: {line.strip()[:40]!a}"
    if not blocks:
        return None
    read = [_errors(counts) for _, _, counts in blocks]
    empty = [lid for (lid, _, _), errors in zip(blocks, read, strict=True) if not errors]
    if empty and not damaged:
        damaged = f"{empty[0]} has no error counter"
    if not damaged and any(_FIRST in counts and _LAST not in counts for counts in standard):
        damaged = "it ends before the last error counter (VL15Dropped)"
    return Queried(_nics(blocks), sum(len(errors) for errors in read), damaged)


def snake(name: str) -> str:
    """A counter's name as sysfs has it: SymbolErrorCounter is symbol_error."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if words and words[-1] == "counter":
        words.pop()
    return "_".join(words)


def _nics(blocks: list[tuple[str, int, dict[str, int]]]) -> tuple[Nic, ...]:
    ports: dict[str, dict[int, dict[str, int]]] = {}
    for lid, number, counts in blocks:
        ports.setdefault(lid, {}).setdefault(number, {}).update(_errors(counts))
    return tuple(
        Nic(name=lid, ports=tuple(_port(number, counts) for number, counts in sorted(its.items())))
        for lid, its in ports.items()
    )


def _port(number: int, counts: Mapping[str, int]) -> NicPort:
    nonzero = tuple(Counter(name, value) for name, value in sorted(counts.items()) if value)
    return NicPort(port=number, counters=Counters(len(counts), 0.0, nonzero) if counts else None)


def _errors(counts: Mapping[str, int]) -> dict[str, int]:
    """Leave out traffic and selectors: what is left means trouble."""
    return {name: value for name, value in counts.items() if _ERRORS.search(name)}
