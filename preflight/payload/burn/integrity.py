"""Whether a device computes and remembers right, to the bit: silent corruption ruins a model.

Two proofs: one exact product, again and again, which must be right by itself and the same each
time; and patterns over most of the free memory, written, read back, inverted and read back again.
"""

from __future__ import annotations

from sweep import pattern

from . import exact

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .bench import Bench

MIB = 1 << 20
_WORD = 2**32


def prove(bench: Bench, how: dict[str, Any]) -> list[dict[str, Any]]:
    """One proof of arithmetic, one of memory."""
    return [_product(bench, how), _memory(bench, how)]


def proof(what: str, rounds: int, wrong: int, first: str = "", **more: Any) -> dict[str, Any]:
    """The event: how often it was tried, how often it came out wrong, and where first."""
    return {
        "event": "proof",
        "what": what,
        "rounds": rounds,
        "wrong": wrong,
        "first": first,
        **more,
    }


def _product(bench: Bench, how: dict[str, Any]) -> dict[str, Any]:
    torch, n, k = bench.torch, how["n"], how["k"]
    one, other = exact.signs(bench, n, k, 1), exact.signs(bench, k, n, 2)
    product = torch.mm(one, other)
    row = exact.wrong_row(bench, one, other, product)
    wrong, first = int(row is not None), "" if row is None else f"row {row} of {n} in product 1"
    again = torch.empty_like(product)
    for number in range(2, how["products"] + 1):
        torch.mm(one, other, out=again)
        if not torch.equal(again, product):
            at = exact.place_of(again, product)
            got, before = float(again[at].item()), float(product[at].item())
            words = f"element {at[0]},{at[1]} came out as {got:g} in product {number}"
            first = first or f"{words}, before as {before:g}"
            wrong += 1
    digest = exact.digest(bench, product)
    size = f"{n}x{k}"
    return proof("product", how["products"], wrong, first, digest=digest, size=size)


def _memory(bench: Bench, how: dict[str, Any]) -> dict[str, Any]:
    torch = bench.torch
    words = how["chunk_mib"] * MIB // 4
    count = max(1, _bytes(bench, how) // (words * 4) - 1)
    chunks = [bench.empty(words, torch.int32) for _ in range(count)]
    wanted = bench.empty(words, torch.int32)
    wrong, first = 0, ""
    for turn in range(how["patterns"]):
        for place, chunk in enumerate(chunks):
            pattern.fill(torch, chunk, pattern.key(3, turn, place))
        for inverted in (False, True):
            for place, chunk in enumerate(chunks):
                pattern.fill(torch, wanted, pattern.key(3, turn, place))
                if inverted:
                    wanted.bitwise_not_()
                if not torch.equal(chunk, wanted):
                    wrong += int((chunk != wanted).sum().item())
                    first = first or _where(chunk, wanted, place * words)
                if not inverted:
                    chunk.bitwise_not_()
    mib = count * how["chunk_mib"]
    return proof("memory", 2 * how["patterns"], wrong, first, size=f"{mib} MiB")


def _bytes(bench: Bench, how: dict[str, Any]) -> int:
    """How much is written: a share of what is free now, up to a limit."""
    most = how["most_mib"] * MIB
    if bench.kind != "cuda":
        return int(most)
    bench.torch.cuda.empty_cache()
    free = bench.torch.cuda.mem_get_info(bench.device)[0]
    return int(min(most, free * how["share"]))


def _where(chunk: Any, wanted: Any, offset: int) -> str:
    at = int((chunk != wanted).nonzero()[0].item())
    got, right = (int(each[at].item()) % _WORD for each in (chunk, wanted))
    return f"word {offset + at} is 0x{got:08x}, must be 0x{right:08x}"
