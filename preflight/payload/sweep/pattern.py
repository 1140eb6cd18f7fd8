"""Wrong data is worse than slow data: every sum is compared with the one that must come out.

int32 with wrap-around addition is exact and independent of order, so the comparison is equality.
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


def fill(torch: Any, buffer: Any, of_key: int) -> None:
    """Write the pattern of one end into `buffer` (int32, on any device), in place."""
    torch.arange(buffer.numel(), dtype=torch.int32, device=buffer.device, out=buffer)
    buffer.mul_(_INDEX).add_(of_key)
    buffer.bitwise_xor_(buffer >> 15)


def expected(torch: Any, like: Any, keys: Iterable[int]) -> Any:
    """The sum over both ends' patterns, in a tensor like `like`."""
    total = torch.zeros_like(like)
    part = torch.empty_like(like)
    for of_key in keys:
        fill(torch, part, of_key)
        total.add_(part)
    return total
