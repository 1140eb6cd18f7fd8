"""Every all-reduce is compared with what must come out, to the bit, outside of its time.

In place, each all-reduce multiplies the sum by the number of ends, and soon bits are gone: so the
data are written anew after each. On a GPU that would take longer than a small all-reduce itself:
there the data of small sizes are compared after the last one, with one more where bits were lost.
"""

from __future__ import annotations

from . import pattern
from .same import same

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EACH_FROM_BYTES = 64 << 10
"""From this size on, each operation is checked on a GPU too."""

FLOATS = {"nccl": ("float32", "bfloat16"), "gloo": ("float32",)}
"""What jobs sum in, and what has kernels of its own. Gloo adds bfloat16 in newer torch only
(pytorch/pytorch issue 111131)."""

_PAIR = 2
_SHORT = 2  # bytes of a bfloat16
_DOUBLINGS = 16  # after more of them in place too few bits of the data are left


class Wrong:
    """The first wrong result of one size, and how many there were."""

    def __init__(self, operation: int, difference: tuple[int, int, int]) -> None:
        self.operation = operation
        self.index, self.got, self.wanted = difference
        self.times = 1

    def words(self, data: Data) -> str:
        """Say it in one line."""
        digits = 2 * data.buffer.element_size()
        got, wanted = (f"0x{value % 16**digits:0{digits}x}" for value in (self.got, self.wanted))
        return (
            f"{data.size_bytes} B: element {self.index} of {data.buffer.numel()} {data.dtype} came "
            f"out as {got}, must be {wanted}, in operation {self.operation} of {data.operations}; "
            f"{self.times} of them were wrong here"
        )


class Data:
    """One size's buffer, what goes into it, and what must come out."""

    def __init__(
        self,
        torch: Any,
        device: Any,
        size_bytes: int,
        keys: list[int],
        rank: int,
        *,
        each: bool | None = None,
        dtype: str = "int32",
    ) -> None:
        self.size_bytes = size_bytes
        self.dtype = dtype
        words = torch.empty(max(1, size_bytes // 4), dtype=torch.int32, device=device)
        self.buffer = words.view(getattr(torch, dtype))
        self.operations = 0
        self.wrong: Wrong | None = None
        large = size_bytes >= EACH_FROM_BYTES or not self.buffer.is_cuda
        self.each = large if each is None else each
        pattern.fill(torch, self.buffer, keys[rank], len(keys))
        self._torch = torch
        self._mine = self.buffer.clone()
        self._wanted = pattern.expected(torch, self.buffer, keys)
        bits = torch.int16 if self.buffer.element_size() == _SHORT else torch.int32
        self._bits, self._wanted_bits = self.buffer.view(bits), self._wanted.view(bits)
        self._pair = len(keys) == _PAIR
        self._reports: list[Any] = []
        """Of a device, which is not waited for: (wrong or not, where, what), still to be read."""

    def check(self) -> None:
        """Compare what the last operation left, and write the data anew, where each is checked."""
        self.operations += 1
        if not self.each:
            return
        if self.buffer.is_cuda:
            self._reports.append(report(self._torch, self._bits, self._wanted_bits))
        elif not same(self.buffer, self._wanted):
            self._note(self.operations, self._difference(self._wanted_bits))
        self.buffer.copy_(self._mine)

    def settle(self, group: Any) -> None:
        """Say the last word on this size: read a device's reports, compare a small size."""
        for place, found in enumerate(self._reports):
            differs, index, got = (int(value) for value in found.tolist())
            if differs:
                operation = self.operations - len(self._reports) + place + 1
                self._note(operation, (index, got, int(self._wanted_bits[index].item())))
        self._reports = []
        if not self.each:
            self._compare_small(group)

    def words(self) -> str:
        """What was wrong, in one line."""
        assert self.wrong is not None
        return self.wrong.words(self)

    def right_alone(self, keys: list[int]) -> bool:
        """Whether the same sum comes out on this device again, without any network."""
        return bool(
            self._torch.equal(
                self._wanted, pattern.expected(self._torch, self.buffer, reversed(keys))
            )
        )

    def _compare_small(self, group: Any) -> None:
        doublings = self.operations - 1
        if not 0 <= doublings <= (_DOUBLINGS if self._pair else 0):
            self.buffer.copy_(self._mine)
            group.reduce(self.buffer)
            doublings = 0
            self.operations += 1
        wanted = self._wanted.clone().bitwise_left_shift_(doublings)
        if not self._torch.equal(self.buffer, wanted):
            self._note(self.operations, self._difference(wanted))

    def _difference(self, wanted: Any) -> tuple[int, int, int]:
        index = int((self._bits != wanted).nonzero()[0].item())
        return index, int(self._bits[index].item()), int(wanted[index].item())

    def _note(self, operation: int, difference: tuple[int, int, int]) -> None:
        if self.wrong is None:
            self.wrong = Wrong(operation, difference)
        else:
            self.wrong.times += 1


def report(torch: Any, buffer: Any, wanted: Any) -> Any:
    """Whether they differ, where first, and what is there: computed without waiting for it."""
    differs = buffer != wanted
    index = differs.to(torch.uint8).argmax().reshape(1)
    return torch.cat((differs.any().reshape(1).long(), index, buffer.index_select(0, index).long()))
