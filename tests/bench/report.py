"""What was measured, for a person and for a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from tests.bench.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.bench.ratio import Row, Spread

_INDENT = "    "


class Result(Struct, frozen=True, kw_only=True):
    """`bench-results/bench.json`."""

    machine: Machine
    started: str
    seconds: float
    load_before: tuple[float, float, float]
    load_after: tuple[float, float, float]
    rows: tuple[dict[str, object], ...]
    not_measured: dict[str, str]
    """Measurement → why it could not be made here."""


def row_document(row: Row) -> dict[str, object]:
    """A row with what follows from it."""
    return {**msgspec.to_builtins(row), "met": row.met}


def write(path: Path, result: Result) -> None:
    """Write the JSON file; its folder is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")


def table(rows: Sequence[Row]) -> str:
    """Two lines per comparison: what it is, and the figures, in columns."""
    heads = ("ours", "theirs", "value", "runs", "bound")
    figures = [_figures(row) for row in rows]
    widths = [max(len(line[at]) for line in [heads, *figures]) for at in range(len(heads))]

    def laid(cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return (_INDENT + "  ".join(padded)).rstrip()

    lines = ["", laid(heads)]
    for row, cells in zip(rows, figures, strict=True):
        lines += [row.what, laid(cells)]
        lines += [f"{_INDENT}({row.note})"] if row.note else []
    return "\n".join(lines)


def _figures(row: Row) -> tuple[str, ...]:
    bound = "-"
    if row.bound is not None:
        bound = f"{row.bound.words}: {'met' if row.met else 'missed'}"
    return (
        _spread(row.ours, row.unit),
        _spread(row.theirs, row.unit),
        _spread(row.value, row.value_unit),
        str(row.runs),
        bound,
    )


def _spread(spread: Spread | None, unit: str) -> str:
    if spread is None:
        return "-"
    return f"{_number(spread.median)} {unit} ({_number(spread.low)} to {_number(spread.high)})"


def _number(value: float) -> str:
    """Three digits that matter, without exponents."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}"
