"""Which GPUs and NICs sit near each other, as `nvidia-smi topo -m` prints it.

People hand this table on through terminals, tickets and log collectors, so the reader takes it
with colours, prompts, lost tabs or a shifted header, but never half of it: a matrix that was cut
or edited raises `TopologyError`. Only the NIC rows may be missing, and then all of them: the GPU
rows hold the same distances.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from preflight.facts.topo_rows import (
    Header,
    Row,
    find_header,
    header_at,
    is_of_p2p,
    read_row,
    refuse_stranger,
)
from preflight.facts.topo_text import TopologyError, legend_codes, nic_legend, readable_lines

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from preflight.facts.topo_text import Line

__all__ = ["Topology", "TopologyError", "parse_topo"]

_NUMBERED_NIC: Final = re.compile(r"NIC[0-9]+")


@dataclass(frozen=True, slots=True)
class Topology:
    """The matrix as printed: every name, code and affinity in the driver's own words."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    _rows: Mapping[str, Row] = field(repr=False)
    _links: Mapping[tuple[str, str], str] = field(repr=False)
    _devices: Mapping[str, str] = field(repr=False)

    def link(self, a: str, b: str) -> str:
        """Code in row `a`, column `b`: "X", "NV18", "PIX"; TopologyError if none was printed."""
        code = self._links.get((a, b)) or self._links.get((b, a))
        if code is None:
            known = ", ".join(self.gpus + self.nics)
            raise TopologyError(f"the matrix does not join {a} and {b} (it has {known})")
        return code

    def cpu_affinity(self, gpu: str) -> str | None:
        """The CPUs near a GPU as printed ("0-51,104-155", "N/A"); None where none were."""
        return self._row(gpu).cpu

    def numa(self, gpu: str) -> str | None:
        """The NUMA nodes near a GPU as printed ("1", "0,5-11", "N/A"); None where none were."""
        return self._row(gpu).numa

    def nic_device(self, nic: str) -> str | None:
        """The RDMA device behind a column ("NIC0" -> "mlx5_0"); None without a NIC legend."""
        if nic not in self.nics:
            raise TopologyError(f"there is no {nic} in the matrix (it has {', '.join(self.nics)})")
        return self._devices.get(nic, None if _NUMBERED_NIC.fullmatch(nic) else nic)

    def _row(self, gpu: str) -> Row:
        if gpu not in self.gpus:
            raise TopologyError(f"there is no {gpu} in the matrix (it has {', '.join(self.gpus)})")
        return self._rows[gpu]


@lru_cache(maxsize=32)  # nodes of a group print the same, to the letter
def parse_topo(text: str) -> Topology:
    """Read the first matrix in `text`; TopologyError says why there is none that is whole."""
    lines = readable_lines(text)
    number, header = find_header(lines)
    codes = legend_codes(text)
    rows: dict[str, Row] = {}
    end = len(lines)
    for at, line in enumerate(lines[number + 1 :], number + 1):
        row = read_row(line, header, codes)
        if row is None and not line.words[0].startswith("Legend"):
            refuse_stranger(line, header)
            continue  # A remark or a warning between the rows.
        if row is None or row.device in rows:
            end = at  # The legend, or a matrix once more.
            break
        rows[row.device] = row
    _refuse_another(lines[end:], header, rows, codes)
    _refuse_missing_rows(header, rows)
    nics = tuple(name for name in header.devices if name not in header.gpus)
    links = {
        (row.device, other): code
        for row in rows.values()
        for other, code in zip(header.devices, row.codes, strict=True)
    }
    return Topology(header.gpus, nics, rows, links, nic_legend(text, nics))


def _refuse_another(
    rest: Sequence[Line], header: Header, rows: Mapping[str, Row], codes: frozenset[str]
) -> None:
    """What follows may repeat the matrix; where it says otherwise, neither can be believed."""
    for at, line in enumerate(rest):
        other = header_at(rest, at)
        if other is not None and not is_of_p2p(rest[at + 1]) and other.devices != header.devices:
            raise TopologyError("there are two different matrices in this text")
        row = None if is_of_p2p(line) else read_row(line, header, codes)
        if row is not None and row.device in rows and row.codes != rows[row.device].codes:
            raise TopologyError(f"there are two different rows of {row.device}")
        refuse_stranger(line, header)


def _refuse_missing_rows(header: Header, rows: Collection[str]) -> None:
    missing = [name for name in header.devices if name not in rows]
    if missing and set(rows) != set(header.gpus):
        raise TopologyError(f"the rows of {', '.join(missing)} are missing: the text was cut")
