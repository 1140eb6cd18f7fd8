"""Matrices of small whole numbers, whose product is exact: a right GPU has the same bits each time.

All sums stay within what the format holds, so neither the order of additions nor the kernel that a
library picks can change a bit. Whatever differs is broken arithmetic, memory or wiring.
"""

from __future__ import annotations

from sweep import pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ROWS = 1024
_WORD = 2**64


def signs(bench: Any, rows: int, columns: int, key: int) -> Any:
    """A bf16 matrix of +1 and -1 by a fixed pattern: with 256 summands no sum loses a bit."""
    return (
        (_words(bench, rows * columns, key) & 1)
        .mul_(2)
        .sub_(1)
        .to(bench.torch.bfloat16)
        .view(rows, columns)
    )


def small(bench: Any, rows: int, columns: int, key: int) -> Any:
    """A bf16 matrix of whole numbers from -15 to 16; sums of 8,192 products are below 2^22."""
    return (
        (_words(bench, rows * columns, key) & 31)
        .sub_(15)
        .to(bench.torch.bfloat16)
        .view(rows, columns)
    )


def wrong_row(bench: Any, one: Any, other: Any, product: Any) -> int | None:
    """The first row in which `product` is not one x other; None if all are right.

    After Freivalds: product v = one (other v) for a vector of odd numbers. In float64 all of it is
    exact, and any single wrong element shows.
    """
    double = bench.torch.float64
    weights = ((_words(bench, other.shape[1], 7) & 0xFFFF) | 1).to(double)
    inner = _times(bench, other, weights)
    differs = _times(bench, product, weights) != _times(bench, one, inner)
    return int(differs.nonzero()[0].item()) if bool(differs.any().item()) else None


def digest(bench: Any, product: Any) -> str:
    """16 hex digits of every bit and its place: equal on all devices that computed right."""
    torch = bench.torch
    bits = product.contiguous().view(torch.int16).view(-1)
    total, width = 0, _ROWS * _ROWS
    for start in range(0, bits.numel(), width):
        part = bits[start : start + width].to(torch.int64).add_(65537)
        place = torch.arange(start, start + part.numel(), dtype=torch.int64, device=part.device)
        total += int(part.mul_(place.mul_(2).add_(1)).sum().item())
    return f"{total % _WORD:016x}"


def place_of(wrong: Any, right: Any) -> tuple[int, int]:
    """(row, column) of the first element that differs."""
    flat = int((wrong != right).view(-1).nonzero()[0].item())
    columns = int(wrong.shape[1])
    return flat // columns, flat % columns


def _times(bench: Any, matrix: Any, vector: Any) -> Any:
    """The product in float64, some rows at a time: the whole would need four times its room."""
    parts = [
        matrix[start : start + _ROWS].to(bench.torch.float64) @ vector
        for start in range(0, matrix.shape[0], _ROWS)
    ]
    return bench.torch.cat(parts)


def _words(bench: Any, count: int, key: int) -> Any:
    buffer = bench.empty(count, bench.torch.int32)
    pattern.fill(bench.torch, buffer, pattern.key(key, 0, 0))
    return buffer
