"""Wrong data is worse than slow data: every sum is compared with the one that must come out.

int32 with wrap-around addition is exact and independent of order, so the comparison is equality. So
is a sum of whole numbers in float32 and bfloat16, as long as it needs no more bits than those have.
"""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# Odd multipliers from Knuth's golden ratio and from xxHash; any odd constant that mixes would do.
_INDEX = -1640531535
_KEY = 2246822519
WORD = 2**32
_HALF = 2**31

_EXACT_BITS = {"float32": 24, "bfloat16": 8}
"""All whole numbers up to that power of two are exact (IEEE 754 binary32; Intel's bfloat16)."""


class Ends(NamedTuple):
    """Whose data are summed: the key of each end, and which of them we are."""

    keys: list  # type: ignore[type-arg]  # of int; Python 3.8
    rank: int


def key(seed: int, round_index: int, rank: int) -> int:
    """Mix (seed, round, rank) into one int32, so that no two ends send the same data."""
    mixed = 0
    for value in (seed, round_index, rank):
        mixed = ((mixed + value + 1) * _KEY) % WORD
        mixed ^= mixed >> 15
    return (mixed + _HALF) % WORD - _HALF


def fill(torch: Any, buffer: Any, of_key: int, ends: int = 2) -> None:
    """Write the pattern of one end into `buffer` (on any device), in place.

    Of float32 and bfloat16: whole numbers, of which the sum over so many ends is exact.
    """
    exact_bits = _EXACT_BITS.get(name(buffer))
    words = torch.empty(0, dtype=torch.int32, device=buffer.device) if exact_bits else buffer
    torch.arange(buffer.numel(), dtype=torch.int32, device=buffer.device, out=words)
    words.mul_(_INDEX).add_(of_key)
    words.bitwise_xor_(words >> 15)
    if exact_bits:
        bits = exact_bits + 1 - (ends - 1).bit_length()  # one of them is the sign
        buffer.copy_(words.bitwise_and_(2**bits - 1).sub_(2 ** (bits - 1)))


def name(buffer: Any) -> str:
    """The type of its elements: int32, float32, bfloat16."""
    return str(buffer.dtype).rpartition(".")[2]


def expected(torch: Any, like: Any, keys: Iterable[int]) -> Any:
    """The sum over all ends' patterns, in a tensor like `like`."""
    total = torch.zeros_like(like)
    part = torch.empty_like(like)
    every = list(keys)
    for of_key in every:
        fill(torch, part, of_key, len(every))
        total.add_(part)
    return total
