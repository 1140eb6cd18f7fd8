"""A pasted `nvidia-smi topo -m`, cleaned of what terminals and tickets do to it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from preflight.errors import PreflightError

if TYPE_CHECKING:
    from collections.abc import Iterable

ADVICE: Final = "pass the whole output of `nvidia-smi topo -m`, unedited"

_ANSI: Final = re.compile(
    r"(?:\x1b|\\x1b|\\e|\\033|\^\[|\u241b)\[[0-?]*[ -/]*[@-~]"  # the escape, or how a log spells it
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\[[0-9]{1,2}(?:;[0-9]{1,2})*m"  # the rest of one whose escape byte was lost in a web form
)
_TABLE: Final = str.maketrans(dict.fromkeys("|│┃", " "))
_LEGEND: Final = re.compile(r"^[^\w\n]*([A-Z][A-Z0-9]{1,4})\s*=\s", re.MULTILINE)
P2P_CODES: Final = frozenset(("OK", "CNS", "GNS", "TNS", "NS", "DR"))
"""The words of `nvidia-smi topo -p2p`, whose legend must not make link codes of them."""

_NIC_LEGEND: Final = re.compile(r"\b(NIC[0-9]+)\s*:\s*([A-Za-z][\w.\-]*)")


class TopologyError(PreflightError):
    """A text that is not one whole topology matrix, or a device that is not in it."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; {ADVICE}")


@dataclass(frozen=True, slots=True)
class Line:
    """One line that says something: its words, where each starts, and its cells if it has tabs."""

    words: tuple[str, ...]
    columns: tuple[int, ...]
    cells: tuple[str, ...]

    def cells_after(self, word: str, count: int) -> tuple[str, ...]:
        """The tab-separated cells behind `word` and `count` more; () where tabs are gone."""
        at = next((i for i, cell in enumerate(self.cells) if word in cell.split()), len(self.cells))
        return self.cells[at + 1 + count :] if len(self.cells) > count else ()


def readable_lines(text: str) -> list[Line]:
    """The lines with at least one word, without colours and table rules."""
    lines = []
    for raw in _ANSI.sub("", text).translate(_TABLE).splitlines():
        found = list(re.finditer(r"\S+", raw))
        if found and any(character.isalnum() for character in raw):
            words = tuple(match.group() for match in found)
            cells = tuple(cell.strip() for cell in raw.split("\t")) if "\t" in raw else ()
            lines.append(Line(words, tuple(match.start() for match in found), cells))
    return lines


def legend_codes(text: str) -> frozenset[str]:
    """Link codes that the text itself explains: a newer driver may print one we do not know."""
    return frozenset(_LEGEND.findall(_ANSI.sub("", text))) - P2P_CODES


def nic_legend(text: str, nics: Iterable[str]) -> dict[str, str]:
    """What the NIC legend says of each column: {"NIC0": "mlx5_0"}."""
    names = set(nics)
    return {nic: device for nic, device in _NIC_LEGEND.findall(text) if nic in names}
