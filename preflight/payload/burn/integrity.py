"""Tests whether a device computes and stores correctly, bit by bit.

Two proofs: one exact product, repeated, which must be correct and the same each time; and patterns
over most of the free memory, written, read back, inverted and read back again.

All sums are exact in the format, so neither the order of additions nor the library's kernel changes
a bit. Any difference is an error of arithmetic, memory or wiring.
"""

from __future__ import annotations

from typing import Any

from sweep import verify

_ROWS = 1024
_EXACT_WORD = 2**64


def signs(bench: Any, rows: int, columns: int, key: int) -> Any:
    """A bf16 matrix of +1 and -1 in a fixed pattern: sums of 256 products are exact."""
    words = (_words(bench, rows * columns, key) & 1).mul_(2).sub_(1)
    return words.to(bench.torch.bfloat16).view(rows, columns)


def small(bench: Any, rows: int, columns: int, key: int) -> Any:
    """A bf16 matrix of whole numbers from -15 to 16; sums of 8,192 products are below 2^22."""
    words = (_words(bench, rows * columns, key) & 31).sub_(15)
    return words.to(bench.torch.bfloat16).view(rows, columns)


def wrong_row(bench: Any, left: Any, right: Any, product: Any) -> int | None:
    """The first row in which `product` is not left x right; None if all are correct.

    Freivalds' algorithm: product v = left (right v) for a vector of odd numbers. All of it is exact
    in float64, so any single wrong element shows.
    """
    double = bench.torch.float64
    weights = ((_words(bench, right.shape[1], 7) & 0xFFFF) | 1).to(double)
    inner = _times(bench, right, weights)
    differs = _times(bench, product, weights) != _times(bench, left, inner)
    return int(differs.nonzero()[0].item()) if bool(differs.any().item()) else None


def digest_of(bench: Any, product: Any) -> str:
    """A hash (16 hex digits) of all bits: equal on all devices that computed correctly."""
    torch = bench.torch
    bits = product.contiguous().view(torch.int16).view(-1)
    total, width = 0, _ROWS * _ROWS
    for start in range(0, bits.numel(), width):
        part = bits[start : start + width].to(torch.int64).add_(65537)
        place = torch.arange(start, start + part.numel(), dtype=torch.int64, device=part.device)
        total += int(part.mul_(place.mul_(2).add_(1)).sum().item())
    return f"{total % _EXACT_WORD:016x}"


def place_of(wrong: Any, right: Any) -> tuple[int, int]:
    """(row, column) of the first element that differs."""
    flat = int((wrong != right).view(-1).nonzero()[0].item())
    columns = int(wrong.shape[1])
    return flat // columns, flat % columns


def _times(bench: Any, matrix: Any, vector: Any) -> Any:
    """The product in float64, some rows at a time: the whole would take four times the memory."""
    parts = [
        matrix[start : start + _ROWS].to(bench.torch.float64) @ vector
        for start in range(0, matrix.shape[0], _ROWS)
    ]
    return bench.torch.cat(parts)


def _words(bench: Any, count: int, key: int) -> Any:
    buffer = bench.empty(count, bench.torch.int32)
    verify.fill(bench.torch, buffer, verify.key(key, 0, 0))
    return buffer


MIB = 1 << 20
_WORD = 2**32


def prove(bench: Any, how: dict[str, Any]) -> list[dict[str, Any]]:
    """Run both proofs, of arithmetic and of memory."""
    return [_product(bench, how), _memory(bench, how)]


def proof(what: str, rounds: int, wrong: int, first: str = "", **more: Any) -> dict[str, Any]:
    """The event of a proof: how often it ran, how often it was wrong, and where first."""
    return {
        "event": "proof",
        "what": what,
        "rounds": rounds,
        "wrong": wrong,
        "first": first,
        **more,
    }


def _product(bench: Any, how: dict[str, Any]) -> dict[str, Any]:
    torch, n, k = bench.torch, how["n"], how["k"]
    left, right = signs(bench, n, k, 1), signs(bench, k, n, 2)
    product = torch.mm(left, right)
    row = wrong_row(bench, left, right, product)
    wrong, first = int(row is not None), "" if row is None else f"row {row} of {n} in product 1"
    again = torch.empty_like(product)
    for number in range(2, how["products"] + 1):
        torch.mm(left, right, out=again)
        if not torch.equal(again, product):
            at = place_of(again, product)
            value, before = float(again[at].item()), float(product[at].item())
            words = f"element {at[0]},{at[1]} came out as {value:g} in product {number}"
            first = first or f"{words}, before as {before:g}"
            wrong += 1
    digest = digest_of(bench, product)
    size = f"{n}x{k}"
    return proof("product", how["products"], wrong, first, digest=digest, size=size)


def _memory(bench: Any, how: dict[str, Any]) -> dict[str, Any]:
    torch = bench.torch
    words = how["chunk_mib"] * MIB // 4
    count = max(1, _bytes(bench, how) // (words * 4) - 1)
    chunks = [bench.empty(words, torch.int32) for _ in range(count)]
    expected = bench.empty(words, torch.int32)
    wrong, first = 0, ""
    for turn in range(how["patterns"]):
        for place, chunk in enumerate(chunks):
            verify.fill(torch, chunk, verify.key(3, turn, place))
        for inverted in (False, True):
            for place, chunk in enumerate(chunks):
                verify.fill(torch, expected, verify.key(3, turn, place))
                if inverted:
                    expected.bitwise_not_()
                if not torch.equal(chunk, expected):
                    wrong += int((chunk != expected).sum().item())
                    first = first or _where(chunk, expected, place * words)
                if not inverted:
                    chunk.bitwise_not_()
    mib = count * how["chunk_mib"]
    return proof("memory", 2 * how["patterns"], wrong, first, size=f"{mib} MiB")


def _bytes(bench: Any, how: dict[str, Any]) -> int:
    """Bytes to write: a share of the memory that is free now, up to a limit."""
    most = how["most_mib"] * MIB
    if bench.kind != "cuda":
        return int(most)
    bench.torch.cuda.empty_cache()
    free = bench.torch.cuda.mem_get_info(bench.device)[0]
    return int(min(most, free * how["share"]))


def _where(chunk: Any, expected: Any, offset: int) -> str:
    at = int((chunk != expected).nonzero()[0].item())
    got, right = (int(buffer[at].item()) % _WORD for buffer in (chunk, expected))
    return f"word {offset + at} is 0x{got:08x}, must be 0x{right:08x}"
