"""Where a topology matrix begins in a text, and what each of its rows says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from preflight.facts.topo_text import P2P_CODES, Line, TopologyError

if TYPE_CHECKING:
    from collections.abc import Sequence

_GPU: Final = re.compile(r"GPU[0-9]+")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.\-]*")
_CODE: Final = re.compile(r"X|NV[1-9][0-9]?|PIX|PXB|PHB|NODE|SYS|SOC|PSB")
"""The words of every driver so far: SOC became SYS and NODE in 2017, PSB is a K80's own switch."""
_AFFINITY: Final = re.compile(r"N/A|[0-9]+(?:[-,][0-9]+)*")
_CPU: Final = ("CPU", "Affinity")
_NUMA: Final = ("NUMA", "Affinity")
_TITLES: Final = (_CPU, _NUMA, ("GPU", "NUMA", "ID"))
_TITLE_WORDS: Final = frozenset(word for title in _TITLES for word in title)


@dataclass(frozen=True, slots=True)
class Header:
    """The line that names the columns."""

    line: Line
    first: int
    """Position of the first device among the line's words: noise may stand before it."""
    devices: tuple[str, ...]
    titles: tuple[tuple[str, ...], ...]

    @property
    def gpus(self) -> tuple[str, ...]:
        """The columns that are GPUs; the others are NICs."""
        return tuple(name for name in self.devices if _GPU.fullmatch(name))

    def nearest_title(self, column: int) -> tuple[str, ...]:
        """The affinity column whose title starts nearest to `column`."""
        starts, at = {}, self.first + len(self.devices)
        for title in self.titles:
            starts[title] = self.line.columns[at]
            at += len(title)
        return min(starts, key=lambda title: abs(starts[title] - column))


@dataclass(frozen=True, slots=True)
class Row:
    """One device's codes to every column, and the affinity printed behind them."""

    device: str
    codes: tuple[str, ...]
    cpu: str | None
    numa: str | None


def find_header(lines: Sequence[Line]) -> tuple[int, Header]:
    """The first line that names columns and has a row of them under it."""
    for number in range(len(lines)):
        header = header_at(lines, number)
        if header is not None:
            return number, header
    if any(_header(line) for line in lines):
        raise TopologyError("there is a header line but no row of a topology matrix under it")
    raise TopologyError("there is no topology matrix in this text")


def read_row(line: Line, header: Header, codes: frozenset[str]) -> Row | None:
    """The row that a line holds, None if it is none; TopologyError if it is a damaged one.

    `codes` are link codes beyond the known ones, from the text's own legend.
    """
    at = _label_at(line, header)
    if at is None:
        return None
    label = line.words[at]
    cells = line.words[at + 1 : at + 1 + len(header.devices)]
    for other, code in zip_longest(header.devices, cells):
        if code is None:
            raise TopologyError(
                f"the row of {label} has {len(cells)} of {len(header.devices)} cells"
            )
        if not _CODE.fullmatch(code) and code not in codes:
            raise TopologyError(f"{label} to {other} reads {code[:20]!r}, which is no link code")
        if (code == "X") != (label == other):
            raise TopologyError(f"{label} to {other} reads {code}: the columns are shifted")
    more = line.words[at + 1 + len(cells) :]
    if more and _CODE.fullmatch(more[0]):
        raise TopologyError(
            f"the row of {label} has more than the {len(cells)} cells of its header"
        )
    return Row(label, cells, *_affinities(line, at, header))


def refuse_stranger(line: Line, header: Header) -> None:
    """A row of a GPU that the header does not name: the column was lost, and its GPU with it."""
    at = next((i for i, word in enumerate(line.words[:3]) if _GPU.fullmatch(word)), None)
    if at is None or line.words[at] in header.devices:
        return
    cells = line.words[at + 1 : at + 1 + len(header.devices)]
    if len(cells) == len(header.devices) and all(_CODE.fullmatch(word) for word in cells):
        known = ", ".join(header.devices)
        raise TopologyError(
            f"there is a row of {line.words[at][:20]}, but the header names {known}"
        )


def header_at(lines: Sequence[Line], number: int) -> Header | None:
    """The header that a line is, if a row of a matrix stands under it."""
    header = _header(lines[number])
    below = lines[number + 1 : number + 2]
    return header if header and any(_label_at(line, header) is not None for line in below) else None


def is_of_p2p(line: Line) -> bool:
    """A row of `topo -p2p`: what two GPUs can do, not how they are joined."""
    return any(word in P2P_CODES for word in line.words[1:])


def _header(line: Line) -> Header | None:
    first = next((i for i, word in enumerate(line.words) if _GPU.fullmatch(word)), None)
    if first is None:
        return None
    words = line.words[first:]
    end = next((i for i, word in enumerate(words) if word in _TITLE_WORDS), len(words))
    devices = words[:end]
    if any(_CODE.fullmatch(word) or not _NAME.fullmatch(word) for word in devices):
        return None
    if len(set(devices)) < len(devices):
        return None
    return Header(line, first, devices, _titles(words[end:]))


def _titles(words: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The affinity columns of the header; a title that was cut off at the right does not count."""
    found: list[tuple[str, ...]] = []
    while title := next((title for title in _TITLES if words[: len(title)] == title), None):
        found.append(title)
        words = words[len(title) :]
    return tuple(found)


def _label_at(line: Line, header: Header) -> int | None:
    """Where the row's device is named, if something like a code follows; noise may precede it."""
    at = next((i for i, word in enumerate(line.words[:3]) if word in header.devices), None)
    if at is None:
        return None
    cells = line.words[at + 1 : at + 1 + len(header.devices)]
    return at if any(_CODE.fullmatch(word) for word in cells) else None


def _affinities(line: Line, at: int, header: Header) -> tuple[str | None, str | None]:
    """CPU and NUMA affinity: by count where all are there, else by tab, else by position."""
    last = at + len(header.devices)
    words = line.words[last + 1 :]
    if not all(_AFFINITY.fullmatch(word) for word in words):
        return None, None  # A remark that somebody typed there.
    values: dict[tuple[str, ...], str] = {}
    tail = line.cells_after(line.words[at], len(header.devices))
    if len(words) >= len(header.titles):
        values = dict(zip(header.titles, words, strict=False))
    elif tail:
        values = {title: cell for title, cell in zip(header.titles, tail, strict=False) if cell}
    else:
        shift = line.columns[last] - header.line.columns[header.first + len(header.devices) - 1]
        for word, column in zip(words, line.columns[last + 1 :], strict=True):
            values[header.nearest_title(column - shift)] = word
    return values.get(_CPU), values.get(_NUMA)
