"""Finds and reads the matrix of `nvidia-smi topo -m` in a text.

People paste this table from terminals, tickets and log collectors, so the reader accepts colours,
prompts, lost tabs and a shifted header. A matrix that was cut or edited raises `TopologyError`.
Only the NIC rows may be missing, and then all of them: the GPU rows have the same distances.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import combinations, takewhile, zip_longest
from typing import Final

from msgspec import Struct

from preflight.errors import PreflightError

ADVICE: Final = "pass the whole output of `nvidia-smi topo -m`, unedited"

_ANSI: Final = re.compile(
    r"(?:\x1b|\\x1b|\\e|\\033|\^\[|\u241b)\[[0-?]*[ -/]*[@-~]"  # an escape, also as spelled in logs
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\[[0-9]{1,2}(?:;[0-9]{1,2})*m"  # an escape whose first byte was lost in a web form
)
_TABLE_RULES: Final = str.maketrans(dict.fromkeys("|│┃", " "))
_LEGEND: Final = re.compile(r"^[^\w\n]*([A-Z][A-Z0-9]{1,4})\s*=\s", re.MULTILINE)
_P2P_CODES: Final = frozenset(("OK", "CNS", "GNS", "TNS", "NS", "DR"))
"""The words of `nvidia-smi topo -p2p`, whose legend must not make link codes of them."""

_NIC_LEGEND: Final = re.compile(r"\b(NIC[0-9]+)\s*:\s*([A-Za-z][\w.\-]*)")
_GPU: Final = re.compile(r"GPU[0-9]+")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.\-]*")
_CODE: Final = re.compile(r"X|NV[1-9][0-9]?|PIX|PXB|PHB|NODE|SYS|SOC|PSB")
"""The codes of every driver so far: SOC became SYS and NODE in 2017, PSB is a K80's own switch."""
_AFTER_DEVICES: Final = frozenset(("CPU", "NUMA", "GPU", "Affinity", "ID"))
"""Words in the titles of the columns after the devices."""
_MOST_GPUS, _MOST_DEVICES = 64, 1024
"""GPUs: twice as many as NVIDIA's driver takes (NV_MAX_DEVICES of its nvlimits.h)."""

_NUMBERED_NIC: Final = re.compile(r"NIC[0-9]+")

Line = tuple[str, ...]
"""The words of one line that is not blank."""


class TopologyError(PreflightError):
    """The text is not one whole topology matrix, or a device is not in it."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; {ADVICE}")


class Topology(Struct, frozen=True, dict=True):
    """The matrix as printed: every name and code in the driver's own words."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    _links: Mapping[tuple[str, str], str]
    _devices: Mapping[str, str]

    def link(self, a: str, b: str) -> str:
        """The code in row `a`, column `b`: "X", "NV18", "PIX"; TopologyError if there is none."""
        code = self._links.get((a, b)) or self._links.get((b, a))
        if code is None:
            names = ", ".join(self.gpus + self.nics)
            raise TopologyError(f"the matrix does not join {a} and {b} (it has {names})")
        return code

    @cached_property
    def one_sided(self) -> list[tuple[str, str, str, str]]:
        """(a, b, code in row a, code in row b) of the pairs of GPUs whose two codes differ."""
        pairs = [(a, b, self.link(a, b), self.link(b, a)) for a, b in combinations(self.gpus, 2)]
        return [pair for pair in pairs if pair[2] != pair[3]]

    def nic_device(self, nic: str) -> str | None:
        """The RDMA device behind a column ("NIC0" -> "mlx5_0"); None without a NIC legend."""
        if nic not in self.nics:
            raise TopologyError(f"there is no {nic} in the matrix (it has {', '.join(self.nics)})")
        return self._devices.get(nic, None if _NUMBERED_NIC.fullmatch(nic) else nic)


@lru_cache(maxsize=32)  # nodes of a group print exactly the same text
def parse_topo(text: str) -> Topology:
    """Read the first matrix in `text`; TopologyError if no matrix is complete."""
    lines = readable_lines(text)
    number, header = _find_header(lines)
    gpus = tuple(filter(_GPU.fullmatch, header))
    if len(gpus) > _MOST_GPUS or len(header) > _MOST_DEVICES:
        raise TopologyError(f"its {len(header)} devices are more than one node has")
    # A newer driver may print unknown link codes; its legend has them.
    codes = frozenset(_LEGEND.findall(_ANSI.sub("", text))) - _P2P_CODES
    rows: dict[str, Line] = {}
    end = len(lines)
    for index, line in enumerate(lines[number + 1 :], number + 1):
        row = _read_row(line, header, codes)
        if row is None and not line[0].startswith("Legend"):
            _refuse_unnamed_gpu(line, header)
            continue  # A remark or a warning between the rows.
        if row is None or row[0] in rows:
            end = index  # The legend, or a matrix once more.
            break
        rows[row[0]] = row[1]
    _refuse_second_matrix(lines[end:], header, rows, codes)
    missing = [name for name in header if name not in rows]
    if missing and set(rows) != set(gpus):
        raise TopologyError(f"the rows of {', '.join(missing)} are missing: the text was cut")
    links = {
        (device, other): code
        for device, cells in rows.items()
        for other, code in zip(header, cells, strict=True)
    }
    nics = tuple(name for name in header if name not in gpus)
    devices = {nic: device for nic, device in _NIC_LEGEND.findall(text) if nic in nics}
    return Topology(gpus, nics, links, devices)


def readable_lines(text: str) -> list[Line]:
    """The lines with at least one word, without colours and table rules."""
    plain = _ANSI.sub("", text).translate(_TABLE_RULES).splitlines()
    return [tuple(raw.split()) for raw in plain if any(map(str.isalnum, raw))]


def _find_header(lines: Sequence[Line]) -> tuple[int, Line]:
    """The first line that names columns and has a row of them under it."""
    for number in range(len(lines)):
        if header := _header_with_row(lines, number):
            return number, header
    if any(map(_columns, lines)):
        raise TopologyError("there is a header line but no row of a topology matrix under it")
    raise TopologyError("there is no topology matrix in this text")


def _read_row(line: Line, header: Line, codes: frozenset[str]) -> tuple[str, Line] | None:
    """Read a row: its device, and the codes to every column; TopologyError if it is damaged.

    None if the line is no row. `codes` are link codes beyond the known ones, from the text's own
    legend.
    """
    index = _label_position(line, header)
    if index is None:
        return None
    label = line[index]
    cells = line[index + 1 : index + 1 + len(header)]
    for other, code in zip_longest(header, cells):
        if code is None:
            raise TopologyError(f"the row of {label} has {len(cells)} of {len(header)} cells")
        if not _CODE.fullmatch(code) and code not in codes:
            raise TopologyError(f"{label} to {other} reads {code[:20]!r}, which is no link code")
        if (code == "X") != (label == other):
            raise TopologyError(f"{label} to {other} reads {code}: the columns are shifted")
    surplus = line[index + 1 + len(cells) :]
    if surplus and _CODE.fullmatch(surplus[0]):
        reason = f"the row of {label} has more than the {len(cells)} cells of its header"
        raise TopologyError(reason)
    return label, cells


def _refuse_unnamed_gpu(line: Line, header: Line) -> None:
    """Raise TopologyError for the row of a GPU whose column is missing in the header."""
    index = next((i for i, word in enumerate(line[:3]) if _GPU.fullmatch(word)), None)
    if index is None or line[index] in header:
        return
    cells = line[index + 1 : index + 1 + len(header)]
    if len(cells) == len(header) and all(map(_CODE.fullmatch, cells)):
        names = ", ".join(header)
        raise TopologyError(f"there is a row of {line[index][:20]}, but the header names {names}")


def _header_with_row(lines: Sequence[Line], number: int) -> Line:
    """The devices that a line names as columns; none if it is no header, or has no row under it."""
    header = _columns(lines[number])
    below = lines[number + 1 : number + 2]
    return header if any(_label_position(line, header) is not None for line in below) else ()


def _is_p2p_row(line: Line) -> bool:
    """Whether a line is a row of `topo -p2p`: what two GPUs can do, not how they are joined."""
    return not _P2P_CODES.isdisjoint(line[1:])


def _columns(line: Line) -> Line:
    words = line[next((i for i, word in enumerate(line) if _GPU.fullmatch(word)), len(line)) :]
    devices = tuple(takewhile(lambda word: word not in _AFTER_DEVICES, words))
    is_odd = any(_CODE.fullmatch(word) or not _NAME.fullmatch(word) for word in devices)
    return () if is_odd or len(set(devices)) < len(devices) else devices


def _label_position(line: Line, header: Line) -> int | None:
    """The position of the row's label, if a link code follows; other words may precede it."""
    index = next((i for i, word in enumerate(line[:3]) if word in header), None)
    if index is None:
        return None
    cells = line[index + 1 : index + 1 + len(header)]
    return index if any(map(_CODE.fullmatch, cells)) else None


def _refuse_second_matrix(
    lines: Sequence[Line], header: Line, rows: Mapping[str, Line], codes: frozenset[str]
) -> None:
    """Raise TopologyError if a second matrix in the text differs from the first."""
    for index, line in enumerate(lines):
        other = _header_with_row(lines, index)
        if other and not _is_p2p_row(lines[index + 1]) and other != header:
            raise TopologyError("there are two different matrices in this text")
        row = None if _is_p2p_row(line) else _read_row(line, header, codes)
        if row is not None and rows.get(row[0], row[1]) != row[1]:
            raise TopologyError(f"there are two different rows of {row[0]}")
        _refuse_unnamed_gpu(line, header)
