"""Compares the result of every all-reduce with the expected one, bit by bit, outside of its time.

In place, each all-reduce multiplies the sum by the number of ends, until bits are lost: so the data
are rewritten after each. On a GPU that would take longer than a small all-reduce itself: there, the
data of small sizes are compared after the last one, with one more if bits were lost.

int32 with wrap-around addition is exact and independent of order, so results must be equal. So is a
sum of whole numbers in float32 and bfloat16 that fits their bits.

On the host, memcmp is used: torch.equal takes 0.7 ms for 4 MiB, libc 0.1 ms.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Iterable, NamedTuple

# Odd multipliers from Knuth's golden ratio and from xxHash; any odd constant that mixes works.
_INDEX = -1640531535
_KEY = 2246822519
WORD = 2**32
_HALF = 2**31

_EXACT_BITS = {"float32": 24, "bfloat16": 8}
"""Whole numbers up to this power of two are exact (IEEE 754 binary32; Intel's bfloat16)."""


class Ends(NamedTuple):
    """The ends whose data are summed: the key of each, and our index."""

    keys: list[int]
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

    For float32 and bfloat16: whole numbers whose sum over `ends` is exact.
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
    pattern = torch.empty_like(like)
    all_keys = list(keys)
    for of_key in all_keys:
        fill(torch, pattern, of_key, len(all_keys))
        total.add_(pattern)
    return total


_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memcmp.restype = ctypes.c_int


def equal_on_host(left: Any, right: Any) -> bool:
    """Compare two contiguous tensors of one shape and type, in the memory of the host."""
    size_bytes = left.numel() * left.element_size()
    return bool(_memcmp(left.data_ptr(), right.data_ptr(), size_bytes) == 0)


EACH_FROM_BYTES = 64 << 10
"""From this size on, each operation is checked on a GPU, too."""

FLOATS = {"nccl": ("float32", "bfloat16"), "gloo": ("float32",)}
"""The data types that jobs reduce, and that have kernels of their own. Gloo reduces bfloat16 only
in newer torch (pytorch/pytorch issue 111131)."""

_PAIR = 2
_SHORT = 2  # bytes of a bfloat16
_DOUBLINGS = 16  # after more of them in place, too few bits of the data are left


@dataclass
class WrongResult:
    """The first wrong result of one size, and how many there were."""

    operation: int
    index: int
    got: int
    wanted: int
    times: int = 1


class Data:
    """One size's buffer, its data, and the expected result."""

    def __init__(
        self, torch: Any, device: Any, size_bytes: int, ends: Ends, *,
        each: bool | None = None, dtype: str = "int32",
    ) -> None:  # fmt: skip
        self.size_bytes = size_bytes
        self.dtype = dtype
        words = torch.empty(max(1, size_bytes // 4), dtype=torch.int32, device=device)
        self.buffer = words.view(getattr(torch, dtype))
        self.operations = 0
        self.wrong: WrongResult | None = None
        large = size_bytes >= EACH_FROM_BYTES or not self.buffer.is_cuda
        self.checks_each = large if each is None else each
        fill(torch, self.buffer, ends.keys[ends.rank], len(ends.keys))
        self._torch = torch
        self._own_data = self.buffer.clone()
        self._keys = ends.keys
        self._expected = expected(torch, self.buffer, ends.keys)
        bits = torch.int16 if self.buffer.element_size() == _SHORT else torch.int32
        self._bits, self._wanted_bits = self.buffer.view(bits), self._expected.view(bits)
        self._pair = len(ends.keys) == _PAIR
        self._reports: list[Any] = []
        """Reports of a device, (wrong or not, where, what), which are read later."""

    def check(self) -> None:
        """Compare the last result, and rewrite the data, if each operation is checked."""
        self.operations += 1
        if not self.checks_each:
            return
        if self.buffer.is_cuda:
            self._reports.append(report(self._torch, self._bits, self._wanted_bits))
        elif not equal_on_host(self.buffer, self._expected):
            self._note(self.operations, self._difference(self._wanted_bits))
        self.buffer.copy_(self._own_data)

    def settle(self, group: Any) -> None:
        """Finish the checks of this size: read a device's reports, compare a small size."""
        for place, row in enumerate(self._reports):
            differs, index, got = (int(value) for value in row.tolist())
            if differs:
                operation = self.operations - len(self._reports) + place + 1
                self._note(operation, (index, got, int(self._wanted_bits[index].item())))
        self._reports = []
        if not self.checks_each:
            self._compare_small(group)

    def words(self) -> str:
        """Return what was wrong, in one line."""
        assert self.wrong is not None
        wrong, digits = self.wrong, 2 * self.buffer.element_size()
        got, wanted = (f"0x{value % 16**digits:0{digits}x}" for value in (wrong.got, wrong.wanted))
        return (
            f"{self.size_bytes} B: element {wrong.index} of {self.buffer.numel()} {self.dtype} "
            f"came out as {got}, must be {wanted}, in operation {wrong.operation} of "
            f"{self.operations}; {wrong.times} of them were wrong here"
        )

    def is_right_alone(self) -> bool:
        """Whether this device computes the expected sum again, without a network."""
        again = expected(self._torch, self.buffer, reversed(self._keys))
        return bool(self._torch.equal(self._expected, again))

    def _compare_small(self, group: Any) -> None:
        doublings = self.operations - 1
        if not 0 <= doublings <= (_DOUBLINGS if self._pair else 0):
            self.buffer.copy_(self._own_data)
            group.reduce(self.buffer)
            doublings = 0
            self.operations += 1
        sums = self._expected.clone().bitwise_left_shift_(doublings)
        if not self._torch.equal(self.buffer, sums):
            self._note(self.operations, self._difference(sums))

    def _difference(self, sums: Any) -> tuple[int, int, int]:
        index = int((self._bits != sums).nonzero()[0].item())
        return index, int(self._bits[index].item()), int(sums[index].item())

    def _note(self, operation: int, difference: tuple[int, int, int]) -> None:
        if self.wrong is None:
            self.wrong = WrongResult(operation, *difference)
        else:
            self.wrong.times += 1


def report(torch: Any, buffer: Any, sums: Any) -> Any:
    """Compute whether they differ, where first, and the value there, without waiting for it."""
    differs = buffer != sums
    index = differs.to(torch.uint8).argmax().reshape(1)
    return torch.cat((differs.any().reshape(1).long(), index, buffer.index_select(0, index).long()))
