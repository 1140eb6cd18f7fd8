"""Reads a pickle of plain values: numbers, strings, lists, tuples and dictionaries.

Other users may be able to write the file. So no unpickler reads it: this module refuses everything
that needs a class or a function, and bounds bytes, steps and slow keys.
"""

from __future__ import annotations

import re
import struct
from typing import Any, NamedTuple

from msgspec import Struct

MOST_BYTES = 64 << 20
MOST_STEPS = 6_000_000
"""A buffer of 2,000 calls with 20 frames each takes some 700,000."""
_WIDEST = 16
"""Bytes of a number."""
_KEY = 1024
"""Characters of a key; the id of a communicator of NCCL, in hex, has 256."""
_NUMBERED = 4096
"""Keys that are numbers."""


class Allowance(Struct):
    """Limit for all dumps of one node: two of the largest size, or those of 16 ranks."""

    bytes: int = 2 * MOST_BYTES
    steps: int = 2 * MOST_STEPS


_FLOAT = struct.Struct(">d")


class RefusedError(Exception):
    """The data holds more than plain values; the message names the byte and the reason."""


def plain_values(data: bytes, allowed: Allowance | None = None) -> Any:
    """Read one pickled value of numbers, strings, lists, tuples and dictionaries.

    RefusedError for anything else: classes, too much data, or a file that ends early.
    """
    allowed = allowed or Allowance()
    if len(data) > MOST_BYTES:
        raise RefusedError(f"it is larger than {MOST_BYTES >> 20} MiB")
    machine = _Machine(data)
    try:
        return machine.run(min(MOST_STEPS, allowed.steps))
    except (IndexError, KeyError) as error:
        raise RefusedError(f"it is cut off or damaged at byte {machine.at}") from error
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RefusedError(f"it makes no sense at byte {machine.at}") from error
    finally:
        allowed.steps -= machine.steps


class _Machine:
    """The part of pickle's virtual machine that makes only plain values."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = self.steps = 0
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []
        """The stacks below each mark."""
        self.memo: dict[int, Any] = {}
        self.last_keys: list[Any] = []
        """The keys of the last dictionary: those of all entries are the same."""
        self.shapes: dict[int, list[_Shape]] = {}
        """Of the entries so far, by their length."""
        self.end = 0
        """The next place where an entry may end."""
        self.numbers = 0
        """Keys that are numbers: many can be drawn so that a dictionary searches long for each."""

    def run(self, most: int) -> Any:  # noqa: C901, PLR0912, PLR0915  calls take twice as long
        """Take the most frequent steps here: thousands of dumps have 150,000 steps each.

        Of entries that differ only in their numbers, only the first one is read step by step.
        """
        data, end, memo, at, stack = self.data, len(self.data), self.memo, 0, self.stack
        begun = 0, 0
        while self.steps < most:
            self.steps += 1
            if at >= end:
                self.at = at
                raise RefusedError("it ends in the middle")
            code = data[at]
            at += 1
            if code == _GET:
                stack.append(memo[data[at]])
                at += 1
            elif code == _BYTE:
                stack.append(data[at])
                at += 1
            elif code == _OPEN:
                self.marked.append(stack)
                stack = []
            elif code == _LIST:
                stack.append([])
            elif code == _EXTEND:
                batch, stack = stack, self.marked.pop()
                if type(stack[-1]) is not list:
                    raise RefusedError(f"byte {at - 1} puts something into what holds nothing")
                stack[-1].extend(batch)
            elif code == _SHORT:
                if at + 2 > end:
                    raise IndexError(at)
                stack.append(data[at] | data[at + 1] << 8)
                at += 2
            elif code == _PUT:
                self.stack = stack
                self.memoize(data[at])
                at += 1
            elif code == _NONE:
                stack.append(None)
            elif code == _TRUE:
                stack.append(True)
            elif code == _FALSE:
                stack.append(False)
            elif code == _DICT:
                shape, numbers = self.known_shape(at)
                begun = at, self.steps
                if shape and self.steps + shape.steps <= most:
                    stack.append(shape.read(numbers))
                    at += shape.fields.size
                    self.steps += shape.steps
                else:
                    stack.append({})
                self.at = at
            elif code == _STOP:
                if len(stack) != 1 or self.marked:
                    raise RefusedError("it holds no single value")
                return stack[0]
            else:
                step = _STEPS.get(code)
                if step is None:
                    fault = f"asks for more than plain values (code {bytes((code,))!r})"
                    raise RefusedError(f"byte {at - 1} {fault}")
                self.at, self.stack = at, stack
                step(self)
                at, stack = self.at, self.stack
                if code == _ITEMS and begun[0]:
                    self.learn_shape(data[begun[0] : at], stack[-1], self.steps - begun[1])
                    begun = 0, 0
        self.at = at
        raise RefusedError(f"it takes more than {most:,} steps")

    # -- bytes

    def take(self, number: int) -> bytes:
        """The next bytes; IndexError if there are fewer."""
        begin, self.at = self.at, self.at + number
        if number < 0 or self.at > len(self.data):
            raise IndexError(number)
        return self.data[begin : self.at]

    def count(self, size: int) -> int:
        """The next bytes as an unsigned number."""
        return int.from_bytes(self.take(size), "little")

    def word(self, size: int) -> None:
        self.stack.append(self.take(size).decode("utf-8", "replace"))

    # -- the stack

    def pop_to_mark(self) -> list[Any]:
        """Pop everything after the last mark."""
        batch, self.stack = self.stack, self.marked.pop()
        return batch

    def top(self, kind: type) -> Any:
        value = self.stack[-1]
        if type(value) is not kind:
            raise RefusedError(f"byte {self.at - 1} puts something into what holds nothing")
        return value

    def items(self) -> None:
        items = self.pop_to_mark()
        keys = items[::2]
        if keys != self.last_keys or self.numbers:
            self.check_keys(keys)
            self.last_keys = keys
        self.top(dict).update(zip(keys, items[1::2], strict=True))

    def append(self) -> None:
        item = self.stack.pop()
        self.top(list).append(item)

    def item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.check_keys([key])
        self.top(dict)[key] = value

    def check_keys(self, keys: list[Any]) -> None:
        """Refuse keys that are slow to hash (nested tuples), or easy to collide (long numbers).

        Also texts that are so long that comparing two equal ones again and again is slow.
        """
        for key in keys:
            if type(key) is str and len(key) <= _KEY:
                continue
            self.numbers += 1
            if type(key) is not int or not fits_64_bits(key):
                fault = "names something by neither a short word nor a number"
                raise RefusedError(f"byte {self.at - 1} {fault}")
            if self.numbers > _NUMBERED:
                raise RefusedError(f"it names over {_NUMBERED} things by numbers")

    def tuple_of(self, number: int) -> None:
        if len(self.stack) < number:
            raise IndexError(number)
        self.stack[-number:] = [tuple(self.stack[-number:])]

    def number(self, size: int) -> None:
        if size > _WIDEST:
            raise RefusedError(f"byte {self.at - 1}: a number of {size} bytes")
        self.stack.append(int.from_bytes(self.take(size), "little", signed=True))

    def memoize(self, place: int) -> None:
        if place in self.memo:
            self.shapes.clear()
        self.memo[place] = self.stack[-1]

    def known_shape(self, at: int) -> tuple[_Shape | None, tuple[Any, ...]]:
        """The shape of the entry that begins here, and the numbers in it."""
        if at > self.end:  # of the entry, if none of its numbers has these bytes
            place = self.data.find(b"u}(", at)
            self.end = place if place >= 0 else 2 * len(self.data)
        for shape in self.shapes.get(self.end - at, ()):
            if self.data.startswith(shape.constants[0], at):
                fields = shape.fields.unpack_from(self.data, at)
                if fields[::2] == shape.constants:
                    return shape, fields[1::2]
                self.steps += 1
        return None, ()

    def learn_shape(self, data: bytes, entry: dict[Any, Any], steps: int) -> None:
        """Keep the bytes of an entry but for its numbers: the next one may have the same."""
        shapes = self.shapes.setdefault(len(data) - 1, [])
        if len(data) > _LONGEST or len(shapes) == _MOST_SHAPES or not _ENTRY(data):
            return
        items, names = _ITEM.findall(data), [*entry]
        if 2 * len(names) != len(items) or not all(type(name) is str for name in names):
            return
        format_text, constant_bytes, keys = "<", 1, []
        for place, item in enumerate(items):
            constant_bytes += len(item)
            if item[0] in _FORMATS:
                kind, size = _FORMATS[item[0]]
                format_text += f"{constant_bytes - size}s{kind}"
                constant_bytes = 0
                keys.append(names[place // 2])
        fields = struct.Struct(f"{format_text}{constant_bytes + 1}s")
        reals = tuple(key for key in keys if type(entry[key]) is float)
        shapes.append(
            _Shape(dict(entry), tuple(keys), reals, fields.unpack(data)[::2], fields, steps)
        )


class _Shape(NamedTuple):
    """What entries have in common that differ only in the numbers that stand directly in them."""

    entry: dict[str, Any]
    keys: tuple[str, ...]
    """Of the numbers; `reals`: of those with a point."""
    reals: tuple[str, ...]
    constants: tuple[bytes, ...]
    """The bytes before, between and after the numbers."""
    fields: struct.Struct
    """Constants and numbers in turn."""
    steps: int

    def read(self, numbers: tuple[Any, ...]) -> dict[str, Any]:
        """The entry with these numbers."""
        entry = self.entry.copy()
        entry.update(zip(self.keys, numbers, strict=True))
        for key in self.reals:
            entry[key] = _FLOAT.unpack(entry[key])[0]
        return entry


def fits_64_bits(number: int) -> bool:
    """Whether it fits 64 bits: any number of larger ones can share one hash."""
    return abs(number) < 1 << 63


_GET, _BYTE, _OPEN, _LIST, _EXTEND, _SHORT, _PUT, _NONE, _STOP = b"hK(]eMqN."
_TRUE, _FALSE, _DICT, _ITEMS, _REAL = b"\x88\x89}uG"
_FORMATS = {
    _BYTE: ("B", 1), _SHORT: ("H", 2), ord("J"): ("i", 4), 0x8A: ("q", 8), _REAL: ("8s", 8),
}  # fmt: skip
_MOST_SHAPES, _LONGEST = 16, 4096
"""Shapes of one length; bytes of a shape."""
_MEMO_REFERENCE = rb"h.|j.{4}"
_NUMBER = rb"K.|M..|J.{4}|\x8a\x08.{8}|G.{8}"
_FLAT = rb"\](?:\((?:%b|%b)*+e)?" % (_MEMO_REFERENCE, _NUMBER)
_ITEM = re.compile(
    rb"(?:%b){2}\x86|%b|%b|[N\x88\x89]|\](?:\((?:%b|%b|%b)*+e)?"
    % (_MEMO_REFERENCE, _MEMO_REFERENCE, _NUMBER, _MEMO_REFERENCE, _NUMBER, _FLAT),
    re.DOTALL,
)
_ENTRY = re.compile(rb"\((?:%b)*+u" % _ITEM.pattern, re.DOTALL).fullmatch
"""The items of a dictionary: texts that are known, numbers, and lists of these."""
_STEPS: dict[int, Any] = {
    0x80: lambda m: m.take(1),  # which version it is
    0x95: lambda m: m.take(8),  # a frame, which holds only its length
    ord("J"): lambda m: m.number(4),
    0x8A: lambda m: m.number(m.count(1)),
    0x8B: lambda m: m.number(int.from_bytes(m.take(4), "little", signed=True)),
    ord("G"): lambda m: m.stack.append(_FLOAT.unpack(m.take(8))[0]),
    ord("X"): lambda m: m.word(m.count(4)),
    0x8C: lambda m: m.word(m.count(1)),
    0x8D: lambda m: m.word(m.count(8)),
    ord(")"): lambda m: m.stack.append(()),
    ord("a"): _Machine.append,
    ord("s"): _Machine.item,
    ord("u"): _Machine.items,
    ord("t"): lambda m: m.stack.append(tuple(m.pop_to_mark())),
    0x85: lambda m: m.tuple_of(1),
    0x86: lambda m: m.tuple_of(2),
    0x87: lambda m: m.tuple_of(3),
    ord("l"): lambda m: m.stack.append(m.pop_to_mark()),
    ord("r"): lambda m: m.memoize(m.count(4)),
    0x94: lambda m: m.memoize(len(m.memo)),
    ord("j"): lambda m: m.stack.append(m.memo[m.count(4)]),
    ord("0"): lambda m: m.stack.pop(),  # IndexError for a mark
}
