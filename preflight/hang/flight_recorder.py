"""Reads torch's flight recorder: which collectives one rank called, in which order.

Only the recorder numbers the calls, which distinguishes ranks in different iterations of one line.

Other users may be able to write the recorder's file. So no unpickler reads it: this module knows
numbers, strings, lists and dictionaries, and refuses everything that needs a class or a function.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from msgspec import Struct

from preflight.core.text import whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.facts.job import Dump


MOST_BYTES = 64 << 20
MOST_STEPS = 6_000_000
"""A buffer of 2,000 calls with 20 frames each takes some 700,000."""
_WIDEST = 16
"""Bytes of a number."""
_KEY = 1024
"""Characters of a key; the id of a communicator of NCCL, in hex, has 256."""
_DIGITS = 21
"""Characters of a number that is written as a text."""


class Allowance(Struct):
    """Limit for all dumps of one node: two of the largest size, or those of 16 ranks."""

    bytes: int = 2 * MOST_BYTES
    steps: int = 2 * MOST_STEPS


_FLOAT = struct.Struct(">d")
_MARK = object()


class RefusedError(ValueError):
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
        raise RefusedError(f"it is torn or damaged at byte {machine.at}") from error
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, RefusedError):
            raise
        raise RefusedError(f"it makes no sense at byte {machine.at}") from error
    finally:
        allowed.steps -= machine.steps


class _Machine:
    """The part of pickle's virtual machine that makes only plain values."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = self.steps = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, most: int) -> Any:
        data, steps, end = self.data, _STEPS, len(self.data)
        for self.steps in range(1, most + 1):
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
        raise RefusedError(f"it takes more than {most:,} steps")

    def _only(self) -> Any:
        if len(self.stack) != 1 or self.stack[0] is _MARK:
            raise RefusedError("it holds no single value")
        return self.stack[0]

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

    def since_mark(self) -> list[Any]:
        """Pop everything after the last mark."""
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
        """Refuse keys that are slow to hash (nested tuples), or easy to collide (long numbers).

        Also texts that are so long that comparing two equal ones again and again is slow.
        """
        for key in keys:
            if not (_fits(key) if type(key) is int else type(key) is str and len(key) <= _KEY):
                fault = "names something by neither a short word nor a number"
                raise RefusedError(f"byte {self.at - 1} {fault}")

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


def _fits(number: int) -> bool:
    """Whether it fits 64 bits: any number of larger ones can share one hash."""
    return abs(number) < 1 << 63


_STOP = ord(".")
_STEPS: dict[int, Any] = {
    0x80: lambda m: m.take(1),  # which version it is
    0x95: lambda m: m.take(8),  # a frame, which holds only its length
    ord("("): lambda m: m.stack.append(_MARK),
    ord("N"): lambda m: m.stack.append(None),
    0x88: lambda m: m.stack.append(True),
    0x89: lambda m: m.stack.append(False),
    ord("K"): lambda m: m.stack.append(m.count(1)),
    ord("M"): lambda m: m.stack.append(m.count(2)),
    ord("J"): lambda m: m.number(4),
    0x8A: lambda m: m.number(m.count(1)),
    0x8B: lambda m: m.number(int.from_bytes(m.take(4), "little", signed=True)),
    ord("G"): lambda m: m.stack.append(_FLOAT.unpack(m.take(8))[0]),
    ord("X"): lambda m: m.word(m.count(4)),
    0x8C: lambda m: m.word(m.count(1)),
    0x8D: lambda m: m.word(m.count(8)),
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
    ord("q"): lambda m: m.keep(m.count(1)),
    ord("r"): lambda m: m.keep(m.count(4)),
    0x94: lambda m: m.keep(len(m.memo)),
    ord("h"): lambda m: m.stack.append(m.memo[m.count(1)]),
    ord("j"): lambda m: m.stack.append(m.memo[m.count(4)]),
    ord("0"): _Machine.dropped,
}


T = TypeVar("T")

MOST_CALLS = 4096
"""The newest calls; torch keeps 2,000 by default."""
_TENSORS, _DIMENSIONS, _FRAMES = 64, 16, 64
_CHARS = 256
_DONE = "completed"


class Line(Struct, frozen=True):
    """One call of the stack that led into a collective."""

    function: str
    file: str
    line: int


class Call(Struct, frozen=True, kw_only=True):
    """One collective, as this rank called it."""

    group: str
    """Name of its process group, the same on all ranks."""
    about: str
    """What the group is for: `default_pg`, or as the user described it."""
    number: int
    """Counts the collectives of this group from 1; sends and receives if `alone`."""
    alone: bool = False
    """A send or receive: it has its own numbering."""
    op: str
    """`all_reduce`, `_all_gather_base`, `send 0->1`."""
    sizes: tuple[tuple[int, ...], ...] = ()
    """Shapes of the input."""
    types: tuple[str, ...] = ()
    state: str = ""
    """`scheduled`, `started` or `completed`; gloo records only the first."""
    retired: bool | None = None
    """Whether torch has stopped watching it: it is done or abandoned."""
    begun_ns: int = 0
    """When it was called, Unix time in ns."""
    frames: tuple[Line, ...] = ()
    """Innermost first; none if the recorder is set to omit them."""

    @property
    def pending(self) -> bool:
        """Whether it was unfinished when the file was written."""
        return self.state != _DONE and self.retired is not True


class Recording(Struct, frozen=True, kw_only=True):
    """The recording of one rank."""

    calls: tuple[Call, ...]
    """Oldest first, without invalid ones and those over the limit."""


class Unreadable(Struct, frozen=True):
    """Why there is no recording."""

    why: str


def open_dump(dump: Dump, allowed: Allowance) -> Recording | Unreadable:
    """Unpack a dump from a node; at most 64 MiB, or what its node's limit leaves."""
    if not dump.content:
        return Unreadable(dump.why or "it is empty")
    most = min(MOST_BYTES, allowed.bytes)
    if most <= 0 or allowed.steps <= 0:
        return Unreadable("the dumps of its node are too many or too large")
    try:
        packed = base64.b64decode(dump.content, validate=True)
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(packed, most)
    except (binascii.Error, ValueError, zlib.error):
        return Unreadable("it was damaged on its way")
    allowed.bytes -= len(data)
    if unpacking.unconsumed_tail:
        return Unreadable(f"it is larger than {most >> 20} MiB")
    return read(data, allowed)


def read(data: bytes, allowed: Allowance | None = None) -> Recording | Unreadable:
    """Read a recorder's file in either form, pickle or JSON; nothing in it is run."""
    try:
        document = _json(data) if data[:1] in b"{ \n" else plain_values(data, allowed)
    except RefusedError as error:
        return Unreadable(f"no recording: {error}")
    if not isinstance(document, dict) or not isinstance(document.get("entries", []), list):
        return Unreadable("no recording: it has no entries")
    if "entries" not in document and "pg_status" not in document:
        return Unreadable("no recording: it has no entries")
    entries = document.get("entries", [])
    once = _Once()
    calls = [once(_call, one) for one in entries[-MOST_CALLS:] if isinstance(one, dict)]
    return Recording(calls=tuple(one for one in calls if one is not None))


def _json(data: bytes) -> Any:
    if len(data) > MOST_BYTES // 2:
        raise RefusedError(f"it is larger than {MOST_BYTES >> 21} MiB")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise RefusedError("its JSON is torn or damaged") from error


class _Once:
    """Reads a shared value once: 400 bytes can refer to one value a million times."""

    def __init__(self) -> None:
        self._read: dict[tuple[object, int], Any] = {}

    def __call__(self, read: Callable[[Any, _Once], T], value: Any) -> T:
        """The result of `read` for this object, which lives as long as the recording."""
        key = read, id(value)
        if key not in self._read:
            self._read[key] = read(value, self)
        return cast("T", self._read[key])


def _call(entry: dict[Any, Any], once: _Once) -> Call | None:
    group = entry.get("process_group")
    name, about = (
        (_text(group[0]), _text(group[1]))
        if isinstance(group, (tuple, list)) and len(group) >= 2  # noqa: PLR2004  name, description
        else (_text(entry.get("pg_id")), "")
    )
    alone = entry.get("is_p2p") is True
    number = _number(entry.get("p2p_seq_id" if alone else "collective_seq_id"))
    op = _text(entry.get("profiling_name")).rpartition(":")[2]
    if number is None or not op:
        return None
    retired = entry.get("retired")
    return Call(
        group=name,
        about=about,
        number=number,
        alone=alone,
        op=op,
        sizes=once(_sizes, entry.get("input_sizes")),
        types=once(_types, entry.get("input_dtypes")),
        state=_text(entry.get("state")),
        retired=retired if isinstance(retired, bool) else None,
        begun_ns=_number(entry.get("time_created_ns")) or 0,
        frames=once(_lines, entry.get("frames")),
    )


def _types(value: Any, _: _Once) -> tuple[str, ...]:
    return tuple(_text(one) for one in _list(value, _TENSORS))


def _lines(value: Any, once: _Once) -> tuple[Line, ...]:
    return tuple(once(_line, one) for one in _list(value, _FRAMES))


def _line(frame: Any, _: _Once) -> Line:
    fields = frame if isinstance(frame, dict) else {}
    return Line(
        _text(fields.get("name")), _text(fields.get("filename")), _number(fields.get("line")) or 0
    )


def _sizes(value: Any, _: _Once) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(_number(each) or 0 for each in _list(one, _DIMENSIONS))
        for one in _list(value, _TENSORS)
    )


def _list(value: Any, most: int) -> list[Any]:
    return list(value[:most]) if isinstance(value, (list, tuple)) else []


def _number(value: Any) -> int | None:
    """A number, or a short text of one: torch's JSON has both."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and len(value) <= _DIGITS:
        size = whole(value.removeprefix("-"), 2**64)
        value = -size if size is not None and value.startswith("-") else size
    return value if isinstance(value, int) and _fits(value) else None


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return ""
    text = str(value)[:_CHARS]
    return "".join(char if char.isprintable() else "?" for char in text)
