"""Reads torch's flight recorder: which collectives one rank called, in which order.

Only the recorder numbers the calls, which distinguishes ranks in different iterations of one line.
Its file is a pickle of plain values, or JSON.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from preflight.core.text import whole
from preflight.facts.job import Dump, Frame
from preflight.hang.plain_pickle import (
    MOST_BYTES,
    Allowance,
    RefusedError,
    fits_64_bits,
    plain_values,
)

T = TypeVar("T")

MOST_CALLS = 4096
"""The newest calls; torch keeps 2,000 by default."""
_DIGITS = 21
"""Characters of a number that is written as a text."""
_TENSORS, _DIMENSIONS, _FRAMES = 64, 16, 64
_CHARS = 256
_DONE = "completed"
_BY_HOST = frozenset({"gloo", ""})
"""Backends without events of a GPU: they never report a state, and retire only finished calls."""
_COALESCED, _BATCH = "coalesced", "batch_isend_irecv"
_FULL = 100
_MEMBERS, _GROUPS = 4 << 20, 4096
"""Characters of all different lists of ranks; groups of a rank."""
_UNFINISHED = 512
"""The oldest unfinished calls that are always read."""


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
    shapeless: bool = False
    """Whether the shapes could not be read."""
    types: tuple[str, ...] = ()
    state: str = ""
    """`scheduled`, `started` or `completed`; gloo records only the first."""
    retired: bool | None = None
    """Whether torch has stopped watching it: it is done or abandoned."""
    begun_ns: int = 0
    """When it was called, Unix time in ns."""
    place: int = 0
    """How many calls the rank had made before it, in all groups; 0 if unknown."""
    frames: tuple[Frame, ...] = ()
    """Innermost first; none if the recorder is set to omit them."""
    backend: str = ""
    parts: tuple[str, ...] = ()
    """The calls that were coalesced into this one, as `op`; only the whole has a state."""

    @property
    def pending(self) -> bool:
        """Whether it was unfinished when the file was written.

        A call that NCCL's watchdog retired without an end has timed out.
        """
        return self.state != _DONE and not (self.retired is True and self.backend in _BY_HOST)


class Recording(Struct, frozen=True, kw_only=True):
    """The recording of one rank."""

    calls: tuple[Call, ...]
    """Oldest first, without invalid ones and those over the limit."""
    members: dict[str, tuple[int, ...]] = {}
    """The ranks of this rank's groups, by the name of the group."""
    enqueued: dict[str, int] = {}
    """The last collective of a group that this rank called, where torch counts them."""
    batched: tuple[str, ...] = ()
    """Groups, by what they are for, whose sends and receives are coalesced."""
    newest_ns: int = 0
    """When the last call of all was made."""
    wrapped: bool = False
    """The buffer begins with an unfinished call and had older ones, which may be unfinished too."""


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
    except (ValueError, zlib.error):
        return Unreadable("it was damaged on its way")
    allowed.bytes -= len(data)
    if unpacking.unconsumed_tail:
        return Unreadable(f"it is larger than {most >> 20} MiB")
    return read(data, allowed)


def read(
    data: bytes, allowed: Allowance | None = None, *, latest: int = MOST_CALLS
) -> Recording | Unreadable:
    """Read a recorder's file in either form, pickle or JSON; nothing in it is run.

    `latest`: how many ended calls of each group are needed.
    """
    try:
        document = _json(data) if data[:1] in b"{ \n" else plain_values(data, allowed)
    except RefusedError as error:
        return Unreadable(f"no recording: {error}")
    fields = document if isinstance(document, dict) else {}
    entry_list = fields.get("entries", [] if "pg_status" in fields else None)
    if not isinstance(entry_list, list):
        return Unreadable("no recording: it has no entries")
    entries = [entry for entry in entry_list[-MOST_CALLS:] if isinstance(entry, dict)]
    reader = _Reader()
    calls = reader.calls(entries, latest)
    last_ns = [_number(entry.get("time_created_ns")) or 0 for entry in entries[-8:]]
    return Recording(
        calls=tuple(calls),
        members=_members(fields.get("pg_config")),
        enqueued=_enqueued(fields.get("pg_status"), reader.names),
        batched=tuple(sorted(reader.batched)),
        newest_ns=max(last_ns, default=0),
        wrapped=reader.first_pending and _is_full(entries),
    )


class _Reader:
    """Joins coalesced calls, and corrects the states that torch does not update."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        """The group of each `pg_id`, which is another number on each rank."""
        self.batched: set[str] = set()
        self.first_pending = False
        self._counts: dict[tuple[str, bool], int] = {}
        self._ended: set[tuple[str, bool]] = set()
        self._parts: dict[tuple[str, bool, Any], list[str]] = {}

    def calls(self, entries: list[dict[Any, Any]], latest: int) -> list[Call]:
        """The calls, oldest first."""
        unfinished, shared = 0, _SharedValues()
        calls, numbers = [], set[int]()
        for entry, ended, parts in self._pick(entries, latest):
            unfinished += not ended
            if not ended and unfinished > max(latest, _UNFINISHED):
                continue
            call = shared(_call, entry)
            if call is None:
                continue
            if (pg := _number(entry.get("pg_id"))) is not None:
                self.names[str(pg)] = call.group
            if call.alone:
                in_batch = any(frame.function == _BATCH for frame in call.frames)
                if parts or in_batch or call.number in numbers:
                    self.batched.add(call.about)
                numbers.add(call.number)
            if parts or (ended and call.pending):
                state = _DONE if ended else call.state
                call = replace(call, state=state, parts=tuple(reversed(parts)))
            calls.append(call)
        return calls

    def _pick(
        self, entries: list[dict[Any, Any]], latest: int
    ) -> list[tuple[dict[Any, Any], bool, list[str]]]:
        """(entry, whether it ended, its parts); read backwards: a later end shows earlier ones."""
        picked: list[tuple[dict[Any, Any], bool, list[str]]] = []
        for entry in reversed(entries):
            alone = entry.get("is_p2p") is True
            stream = _group(entry)[0], alone
            number = entry.get("p2p_seq_id" if alone else "collective_seq_id")
            backend, _, op = _profiling_name(entry)
            parts: list[str] = []
            if op.endswith(_COALESCED) and isinstance(number, int):
                self._parts[*stream, number] = parts
            elif isinstance(number, int) and (*stream, number) in self._parts:
                self._parts[*stream, number].append(_text(op))
                continue
            by_host = backend in _BY_HOST
            ended = entry.get("state") == _DONE or (by_host and entry.get("retired") is True)
            if ended and not alone:
                self._ended.add(stream)
            # The calls of a group run in their order.
            ended = ended or (not by_host and stream in self._ended)
            self._counts[stream] = self._counts.get(stream, 0) + 1
            if not ended or self._counts[stream] <= latest:
                picked.append((entry, ended, parts))
            self.first_pending = not ended
        picked.reverse()
        return picked


def _is_full(entries: list[dict[Any, Any]]) -> bool:
    """Whether these are the newest of more calls, and not only the unfinished ones."""
    first, last = (_number(entries[place].get("record_id")) or 0 for place in (0, -1))
    return first > 0 and len(entries) >= _FULL and last - first == len(entries) - 1


def _members(config: Any) -> dict[str, tuple[int, ...]]:
    """`{"5": {"ranks": "[0, 4]"}}`; gloo's has no name and is of any group."""
    members: dict[str, tuple[int, ...]] = {}
    by_text, chars_left = dict[str, tuple[int, ...] | None](), _MEMBERS
    for name, group in config.items() if isinstance(config, dict) else ():
        rank_list = group.get("ranks") if isinstance(group, dict) else None
        if not isinstance(rank_list, str) or not _text(name) or len(members) == _GROUPS:
            continue
        if rank_list not in by_text and len(rank_list) <= chars_left:
            chars_left -= len(rank_list)
            by_text[rank_list] = _ranks(rank_list)
        ranks = by_text.get(rank_list)
        if ranks is not None:
            members[_text(name)] = ranks
    return members


@lru_cache(16)
def _ranks(text: str) -> tuple[int, ...] | None:
    """The first group of all dumps of a job is the same, and has thousands of members."""
    ranks = [whole(word.strip(), 2**31) for word in text.strip("[]").split(",")]
    numbers = tuple(sorted(rank for rank in ranks if rank is not None))
    return numbers if len(numbers) == len(ranks) else None


def _enqueued(status: Any, names: dict[str, str]) -> dict[str, int]:
    by_group = {}
    for pg, info in status.items() if isinstance(status, dict) else ():
        number = _number(info.get("last_enqueued_collective")) if isinstance(info, dict) else None
        if _text(pg) in names and number is not None and number > 0:
            by_group[names[_text(pg)]] = number
    return by_group


def _group(entry: dict[Any, Any]) -> tuple[str, str]:
    group = entry.get("process_group")
    if isinstance(group, (tuple, list)) and len(group) >= 2:  # noqa: PLR2004  name, description
        return _text(group[0]), _text(group[1])
    return _text(entry.get("pg_id")), ""


def _profiling_name(entry: dict[Any, Any]) -> tuple[str, str, str]:
    """`nccl:all_reduce` as (backend, colon, operation)."""
    name = entry.get("profiling_name")
    if not isinstance(name, str):
        return "", "", ""
    name = name[:_CHARS]
    return name.partition(":") if ":" in name else ("", "", name)


def _json(data: bytes) -> Any:
    if len(data) > MOST_BYTES // 2:
        raise RefusedError(f"it is larger than {MOST_BYTES >> 21} MiB")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise RefusedError("its JSON is cut off or damaged") from error


class _SharedValues:
    """Reads a shared value once: 400 bytes can refer to one value a million times."""

    def __init__(self) -> None:
        self._converted: dict[tuple[object, int], Any] = {}

    def __call__(self, convert: Callable[[Any, _SharedValues], T], value: Any) -> T:
        """The result of `convert` for this object, which lives as long as the recording."""
        key = convert, id(value)
        if key not in self._converted:
            self._converted[key] = convert(value, self)
        return cast("T", self._converted[key])


def _call(entry: dict[Any, Any], shared: _SharedValues) -> Call | None:
    group, about = _group(entry)
    alone = entry.get("is_p2p") is True
    number = _number(entry.get("p2p_seq_id" if alone else "collective_seq_id"))
    backend, _, op = map(_text, _profiling_name(entry))
    if number is None or not op:
        return None
    retired = entry.get("retired")
    return Call(
        group=group,
        about=about,
        number=number,
        alone=alone,
        op=op,
        sizes=shared(_sizes, entry.get("input_sizes")),
        shapeless=not shared(_has_shapes, entry.get("input_sizes")),
        types=shared(_types, entry.get("input_dtypes")),
        state=_text(entry.get("state")),
        retired=retired if isinstance(retired, bool) else None,
        begun_ns=_number(entry.get("time_created_ns")) or 0,
        place=_number(entry.get("record_id")) or 0,
        frames=shared(_frames, entry.get("frames")),
        backend=backend,
    )


def _has_shapes(value: Any, _: _SharedValues) -> bool:
    shapes = value[:_TENSORS] if isinstance(value, (list, tuple)) else [None]
    return all(isinstance(shape, (list, tuple)) for shape in shapes)


def _types(value: Any, _: _SharedValues) -> tuple[str, ...]:
    return tuple(_text(dtype) for dtype in _list(value, _TENSORS))


def _frames(value: Any, shared: _SharedValues) -> tuple[Frame, ...]:
    return tuple(shared(_frame, frame) for frame in _list(value, _FRAMES))


def _frame(frame: Any, _: _SharedValues) -> Frame:
    fields = frame if isinstance(frame, dict) else {}
    name, file = _text(fields.get("name")), _text(fields.get("filename"))
    return Frame(name, file, _number(fields.get("line")) or 0)


def _sizes(value: Any, _: _SharedValues) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(_number(size) or 0 for size in _list(shape, _DIMENSIONS))
        for shape in _list(value, _TENSORS)
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
    return value if isinstance(value, int) and fits_64_bits(value) else None


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return ""
    text = str(value)[:_CHARS]
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "?" for char in text)
