"""A cell of nvidia-smi's matrix unlike nearly all others, where only the matrix is known."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from preflight.facts.topology import Topology

_MOST_SHARE: Final = 0.75
"""Fewer alike are a machine that is built unevenly, such as a mesh of eight."""


@dataclass(frozen=True, slots=True)
class OddCell:
    """A pair that is joined by `code`, while `usual` joins `alike` of all `of` pairs."""

    a: str
    b: str
    code: str
    usual: str
    alike: int
    of: int

    @property
    def sentence(self) -> str:
        """GPU0-GPU1 is joined by NV17, 27 of 28 pairs by NV18."""
        most = f"{self.alike} of {self.of} pairs by {self.usual}"
        return f"{self.a}-{self.b} is joined by {self.code}, {most}"


def odd_cells(printed: Topology) -> tuple[OddCell, ...]:
    """Pairs of a machine whose other pairs are nearly all joined by the same number of NVLinks."""
    codes = {(a, b): printed.link(a, b) for a, b in combinations(printed.gpus, 2)}
    if not codes:
        return ()
    usual, alike = Counter(codes.values()).most_common(1)[0]
    if not usual.startswith("NV") or alike < _MOST_SHARE * len(codes):
        return ()
    return tuple(
        OddCell(a, b, code, usual, alike, len(codes))
        for (a, b), code in codes.items()
        if code != usual
    )
