"""What torch's flight recorder wrote of one rank: which collectives it called, in which order.

Only with it a call has a number, so that ranks at different turns of one line can be told apart.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from msgspec import Struct

from preflight.triage.plain_values import MOST_BYTES, RefusedError, plain_values

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.facts.look_model import Dump

T = TypeVar("T")

MOST_CALLS = 4096
"""The newest so many; torch keeps 2,000 unless told otherwise."""
_TENSORS, _DIMENSIONS, _FRAMES, _GROUPS = 64, 16, 64, 1024
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
    """Of the collectives of this group, from 1; of sends and receives if `alone`."""
    alone: bool = False
    """A send or receive: numbered by itself."""
    op: str
    """`all_reduce`, `_all_gather_base`, `send 0->1`."""
    sizes: tuple[tuple[int, ...], ...] = ()
    """Shapes of what goes in."""
    gives: tuple[tuple[int, ...], ...] = ()
    """Shapes of what comes out."""
    types: tuple[str, ...] = ()
    state: str = ""
    """`scheduled`, `started` or `completed`; gloo tells the first only."""
    retired: bool | None = None
    """Whether torch has stopped to watch it: it is done, or was given up."""
    begun_ns: int = 0
    """When it was called, Unix time in ns."""
    frames: tuple[Line, ...] = ()
    """Innermost first; none where the recorder was told to leave them out."""

    @property
    def pending(self) -> bool:
        """Whether it had not ended when this was written."""
        return self.state != _DONE and self.retired is not True


class Group(Struct, frozen=True, kw_only=True):
    """A process group, and how far this rank is in it."""

    name: str
    about: str = ""
    ranks: tuple[int, ...] = ()
    enqueued: int | None = None
    started: int | None = None
    completed: int | None = None


class Recording(Struct, frozen=True, kw_only=True):
    """All of one rank."""

    version: str
    calls: tuple[Call, ...]
    """The oldest first."""
    groups: tuple[Group, ...] = ()
    dropped: int = 0
    """Calls that made no sense or were too many."""


class Unreadable(Struct, frozen=True):
    """Why there is none."""

    why: str


def opened(dump: Dump) -> Recording | Unreadable:
    """Open what travelled; never more than 64 MiB, whatever it claims to be."""
    if not dump.content:
        return Unreadable(dump.why or "it is empty")
    try:
        packed = base64.b64decode(dump.content, validate=True)
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(packed, MOST_BYTES)
    except (binascii.Error, ValueError, zlib.error):
        return Unreadable("it was damaged on its way")
    if unpacking.unconsumed_tail:
        return Unreadable(f"it is larger than {MOST_BYTES >> 20} MiB")
    return read(data)


def read(data: bytes) -> Recording | Unreadable:
    """Read a recorder's file in either form, pickle or JSON; nothing in it is run."""
    try:
        told = _json(data) if data[:1] in b"{ \n" else plain_values(data)
    except RefusedError as error:
        return Unreadable(f"no recording: {error}")
    if not isinstance(told, dict) or not isinstance(told.get("entries", []), list):
        return Unreadable("no recording: it has no entries")
    if "entries" not in told and "pg_status" not in told:
        return Unreadable("no recording: it has no entries")
    entries = told.get("entries", [])
    once = _Once()
    calls = [once(_call, one) for one in entries[-MOST_CALLS:] if isinstance(one, dict)]
    kept = tuple(one for one in calls if one is not None)
    return Recording(
        version=_text(told.get("version")),
        calls=kept,
        groups=_groups(told.get("pg_config"), told.get("pg_status"), once),
        dropped=len(entries) - len(kept),
    )


def _json(data: bytes) -> Any:
    if len(data) > MOST_BYTES // 2:
        raise RefusedError(f"it is larger than {MOST_BYTES >> 21} MiB")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise RefusedError("its JSON is torn or damaged") from error


class _Once:
    """Reads a value once that many entries refer to: 400 bytes can name one a million times."""

    def __init__(self) -> None:
        self._read: dict[tuple[object, int], Any] = {}

    def __call__(self, read: Callable[[Any, _Once], T], value: Any) -> T:
        """Return what `read` makes of that very object, which lives as long as the recording."""
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
        gives=once(_sizes, entry.get("output_sizes")),
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
    told = frame if isinstance(frame, dict) else {}
    return Line(
        _text(told.get("name")), _text(told.get("filename")), _number(told.get("line")) or 0
    )


def _groups(config: Any, status: Any, once: _Once) -> tuple[Group, ...]:
    config = config if isinstance(config, dict) else {}
    status = status if isinstance(status, dict) else {}
    names = [*config, *(one for one in status if one not in config)][:_GROUPS]
    found = []
    for name in names:
        told, state = config.get(name), status.get(name)
        told = told if isinstance(told, dict) else {}
        state = state if isinstance(state, dict) else {}
        found.append(
            Group(
                name=_text(told.get("name")) or _text(name),
                about=_text(told.get("desc")),
                ranks=once(_members, told.get("ranks")),
                enqueued=_number(state.get("last_enqueued_collective")),
                started=_number(state.get("last_started_collective")),
                completed=_number(state.get("last_completed_collective")),
            )
        )
    return tuple(found)


def _members(ranks: Any, _: _Once) -> tuple[int, ...]:
    """Torch writes them as the text "[0, 1, 2]"."""
    if isinstance(ranks, str):
        ranks = [_number(one.strip()) for one in ranks.strip("[] ")[: 1 << 20].split(",")]
    return tuple(one for one in _list(ranks, 1 << 17) if isinstance(one, int) and one >= 0)


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
    if isinstance(value, str) and len(value) <= 20 and value.lstrip("-").isdecimal():  # noqa: PLR2004  64 bits
        value = int(value)
    return value if isinstance(value, int) and abs(value) < 1 << 63 else None


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return ""
    text = str(value)[:_CHARS]
    return "".join(char if char.isprintable() else "?" for char in text)
