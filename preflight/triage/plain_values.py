"""Plain values out of a pickle, and nothing else: nothing is imported, called or built by name.

A recorder's file lies where other users may write. So no unpickler reads it: this knows numbers,
words, lists and dictionaries, and everything that would ask for a class or a function is refused.
"""

from __future__ import annotations

import struct
from typing import Any

MOST_BYTES = 64 << 20
MOST_STEPS = 6_000_000
"""A buffer of 2,000 calls with 20 frames each takes some 700,000."""
_WIDEST = 16
"""Bytes of a number."""

_FOUR = struct.Struct("<i")
_COUNT = struct.Struct("<I")
_LONG_COUNT = struct.Struct("<Q")
_FLOAT = struct.Struct(">d")
_MARK = object()


class RefusedError(ValueError):
    """The text is not of plain values; says at which byte, and why."""


def plain_values(data: bytes) -> Any:
    """Read one pickled value of numbers, words, lists, tuples and dictionaries.

    RefusedError for anything else: classes, too much, or a file that ends early.
    """
    if len(data) > MOST_BYTES:
        raise RefusedError(f"it is larger than {MOST_BYTES >> 20} MiB")
    machine = _Machine(data)
    try:
        return machine.run()
    except (IndexError, KeyError, struct.error) as error:
        raise RefusedError(f"it is torn or damaged at byte {machine.at}") from error
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, RefusedError):
            raise
        raise RefusedError(f"it makes no sense at byte {machine.at}") from error


class _Machine:
    """The part of pickle's machine that only makes plain values."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        data, steps, end = self.data, _STEPS, len(self.data)
        for _ in range(MOST_STEPS):
            if self.at >= end:
                raise RefusedError("it ends in the middle")
            code = data[self.at]
            self.at += 1
            if code == _STOP:
                return self._only()
            step = steps.get(code)
            if step is None:
                raise RefusedError(
                    f"byte {self.at - 1} asks for more than plain values (code {bytes((code,))!r})"
                )
            step(self)
        raise RefusedError(f"it takes more than {MOST_STEPS:,} steps")

    def _only(self) -> Any:
        if len(self.stack) != 1 or self.stack[0] is _MARK:
            raise RefusedError("it holds no single value")
        return self.stack[0]

    # -- bytes

    def take(self, number: int) -> bytes:
        """The next bytes; IndexError where there are not so many."""
        begin, self.at = self.at, self.at + number
        if number < 0 or self.at > len(self.data):
            raise IndexError(number)
        return self.data[begin : self.at]

    def byte(self) -> int:
        """The next byte as a number."""
        self.at += 1
        return self.data[self.at - 1]

    def word(self, size: int) -> None:
        self.stack.append(self.take(size).decode("utf-8", "replace"))

    # -- the stack

    def since_mark(self) -> list[Any]:
        """Take everything that was laid down after the last mark."""
        for place in range(len(self.stack) - 1, -1, -1):
            if self.stack[place] is _MARK:
                taken = self.stack[place + 1 :]
                del self.stack[place:]
                return taken
        raise IndexError("no mark")

    def top(self, kind: type) -> Any:
        found = self.stack[-1]
        if type(found) is not kind:
            raise RefusedError(f"byte {self.at - 1} puts something into what holds nothing")
        return found

    def appends(self) -> None:
        items = self.since_mark()
        self.top(list).extend(items)

    def items(self) -> None:
        items = self.since_mark()
        self.named(items[::2])
        self.top(dict).update(zip(items[::2], items[1::2], strict=True))

    def append(self) -> None:
        item = self.stack.pop()
        self.top(list).append(item)

    def item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.named([key])
        self.top(dict)[key] = value

    def named(self, keys: list[Any]) -> None:
        """Refuse keys whose hash is work: tuples of tuples, each twice, take for ever."""
        if not all(type(key) in (str, int) for key in keys):
            raise RefusedError(f"byte {self.at - 1} names something by neither word nor number")

    def tuple_of(self, number: int) -> None:
        if len(self.stack) < number:
            raise IndexError(number)
        taken = tuple(self.stack[len(self.stack) - number :])
        if number:
            del self.stack[-number:]
        self.stack.append(taken)

    def number(self, size: int) -> None:
        if size > _WIDEST:
            raise RefusedError(f"byte {self.at - 1}: a number of {size} bytes")
        self.stack.append(int.from_bytes(self.take(size), "little", signed=True))

    def keep(self, place: int) -> None:
        self.memo[place] = self.stack[-1]

    def dropped(self) -> None:
        if self.stack.pop() is _MARK:
            raise RefusedError("it drops a mark")


_STOP = ord(".")
_STEPS: dict[int, Any] = {
    0x80: lambda m: m.take(1),  # which version it is
    0x95: lambda m: m.take(8),  # a frame, which only tells how long it is
    ord("("): lambda m: m.stack.append(_MARK),
    ord("N"): lambda m: m.stack.append(None),
    0x88: lambda m: m.stack.append(True),
    0x89: lambda m: m.stack.append(False),
    ord("K"): lambda m: m.stack.append(m.byte()),
    ord("M"): lambda m: m.stack.append(int.from_bytes(m.take(2), "little")),
    ord("J"): lambda m: m.stack.append(_FOUR.unpack(m.take(4))[0]),
    0x8A: lambda m: m.number(m.byte()),
    0x8B: lambda m: m.number(_FOUR.unpack(m.take(4))[0]),
    ord("G"): lambda m: m.stack.append(_FLOAT.unpack(m.take(8))[0]),
    ord("X"): lambda m: m.word(_COUNT.unpack(m.take(4))[0]),
    0x8C: lambda m: m.word(m.byte()),
    0x8D: lambda m: m.word(_LONG_COUNT.unpack(m.take(8))[0]),
    ord("]"): lambda m: m.stack.append([]),
    ord("}"): lambda m: m.stack.append({}),
    ord(")"): lambda m: m.stack.append(()),
    ord("a"): _Machine.append,
    ord("e"): _Machine.appends,
    ord("s"): _Machine.item,
    ord("u"): _Machine.items,
    ord("t"): lambda m: m.stack.append(tuple(m.since_mark())),
    0x85: lambda m: m.tuple_of(1),
    0x86: lambda m: m.tuple_of(2),
    0x87: lambda m: m.tuple_of(3),
    ord("l"): lambda m: m.stack.append(m.since_mark()),
    ord("q"): lambda m: m.keep(m.byte()),
    ord("r"): lambda m: m.keep(_COUNT.unpack(m.take(4))[0]),
    0x94: lambda m: m.keep(len(m.memo)),
    ord("h"): lambda m: m.stack.append(m.memo[m.byte()]),
    ord("j"): lambda m: m.stack.append(m.memo[_COUNT.unpack(m.take(4))[0]]),
    ord("0"): _Machine.dropped,
}
