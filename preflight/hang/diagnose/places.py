"""Reads a rank's place from its stack: which collective, which line of the user's code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Literal

import msgspec
from msgspec import Struct

from preflight.core.files import shipped_table
from preflight.facts.job import Frame, Stacks

Waits = Literal["yes", "no", "idle"]

CODE = "code"
"""The kind of a place that fits no row: a line of the user, or a library's arithmetic."""

_CACHED = 8192
"""Thousands of ranks are in few places: each is classified once."""

LOCKED = "waits for a lock or a thread"
"""Words of a wait channel that a wait in C++ also has."""

OTHERS = frozenset({"collective", "p2p", "rendezvous"})
"""Kinds in which a rank waits for other ranks."""


class Native(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The meaning of functions in C and C++."""

    kind: str
    functions: tuple[str, ...]
    words: str
    waits: Waits


class Row(Native, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of place."""

    files: tuple[str, ...]
    around: bool = False
    label: str = ""


class Channel(Struct, frozen=True, forbid_unknown_fields=True):
    """The meaning of a wait channel of the kernel."""

    names: str
    words: str
    advice: str = ""
    """What to do if one rank sleeps there while the others wait for it."""


class Knowledge(Struct, frozen=True, forbid_unknown_fields=True):
    """All of places.toml."""

    library: tuple[str, ...]
    advice: dict[str, str]
    """By kind of place; `exit` of a rank that has left its script, `otherwise` of other kinds."""
    place: tuple[Row, ...]
    native: tuple[Native, ...]
    channel: tuple[Channel, ...]


class Place(Struct, frozen=True, kw_only=True):
    """Where a main thread is."""

    kind: str
    op: str = ""
    """The function of the row: `all_reduce`."""
    words: str = ""
    waits: Waits = "no"
    user: Frame | None = None
    """The innermost line of the user's own code."""
    spot: tuple[tuple[str, str, int], ...] = ()
    """File, function and line from the outermost call up to the one that leads into `op`."""
    calls: tuple[str, ...] = ()
    """The user's own lines, innermost first: `train.py:41 in step`."""

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str, int], ...]]:
        """Equal for two looks in the same place."""
        return self.op, self.spot

    @property
    def at(self) -> str:
        """`train.py:41`; empty if the stack has no line of the user."""
        return short(self.user) if self.user else ""

    @property
    def where(self) -> str:
        """`all_reduce (train.py:41)`, `evaluate (train.py:88)`."""
        name = self.op or (self.user.function if self.user else "")
        return " ".join(filter(None, (name, f"({self.at})" if self.at else "")))


@cache
def knowledge() -> Knowledge:
    """Read places.toml, once."""
    return msgspec.convert(shipped_table(__file__, "places.toml"), Knowledge)


def place_of(stacks: Stacks | None) -> Place | None:
    """Read a rank's place from its main thread; None without a stack."""
    frames = tuple(frame for frame in main_frames(stacks) if not _compiled(frame))
    return place_in(frames) if frames else None


def with_native(place: Place, native: Native | None) -> Place:
    """Complete a place that the Python stack leaves open with its C and C++ functions."""
    if native is None or place.waits != "idle":
        return place
    kind = place.kind if place.kind != CODE else native.kind
    words = native.words if place.kind == CODE else place.words
    return msgspec.structs.replace(place, kind=kind, words=words, waits=native.waits)


def native_of(stacks: Stacks | None) -> Native | None:
    """The meaning of the C and C++ functions of a main thread; None if unknown."""
    functions = [frame.function for frame in main_frames(stacks) if _compiled(frame)]
    for row in knowledge().native:
        if any(re.search(pattern, name) for pattern in row.functions for name in functions):
            return row
    return None


def main_frames(stacks: Stacks | None) -> tuple[Frame, ...]:
    """The calls of the main thread, innermost first."""
    if stacks is None or not stacks.threads:
        return ()
    mains = [thread for thread in stacks.threads if thread.main or thread.name == "MainThread"]
    return (mains or list(stacks.threads))[0].frames


@lru_cache(_CACHED)
def place_in(frames: tuple[Frame, ...]) -> Place:
    """Classify one stack, innermost call first."""
    user_calls = [number for number, frame in enumerate(frames) if not in_library(frame.file)]
    innermost = user_calls[0] if user_calls else len(frames)
    user_frames = [frames[number] for number in user_calls]
    others = (frame for frame in frames if not is_plumbing(frame.file))
    user = next(iter(user_frames or others), None)
    calls = tuple(f"{short(frame)} in {frame.function}" for frame in user_frames)
    rows = [_rows(frame.function, frame.file) for frame in frames]
    for row in knowledge().place:
        searched = len(frames) if row.around else innermost
        matching = [number for number in range(searched) if row in rows[number]]
        if matching:
            outermost = matching[-1]
            return Place(
                kind=row.kind,
                op=row.label or frames[outermost].function.rpartition(".")[2],
                words=row.words,
                waits=row.waits,
                user=user,
                spot=_spot(frames[outermost + 1 :]),
                calls=calls,
            )
    return Place(kind=CODE, waits="idle", user=user, spot=_spot(frames), calls=calls)


def channel_of(name: str) -> Channel:
    """The row of a wait channel; an empty one if it is unknown."""
    rows = (row for row in knowledge().channel if re.search(row.names, name))
    return next(rows, Channel("", ""))


def channel_words(name: str) -> str:
    """The meaning of a wait channel; empty if unknown."""
    return channel_of(name).words


def short(frame: Frame) -> str:
    """`train.py:41`."""
    return f"{frame.file.rpartition('/')[2]}:{frame.line}"


@lru_cache(_CACHED)
def in_library(file: str) -> bool:
    """Whether a frame's file is Python's own code or an installed library."""
    return not file or re.search("|".join(knowledge().library), file) is not None


def _compiled(frame: Frame) -> bool:
    return not frame.file.endswith((".py", ".pyx", ">")) and frame.line == 0


def is_plumbing(file: str) -> bool:
    """Whether a frame's file is Python's or torch's: the line of an installed trainer says more."""
    return not file or re.search(r"/torch/|^<|lib/python[\d.]+/\w+\.py$", file) is not None


def _spot(frames: Sequence[Frame]) -> tuple[tuple[str, str, int], ...]:
    return tuple(
        (frame.file.rpartition("/")[2], frame.function, frame.line) for frame in reversed(frames)
    )


@lru_cache(_CACHED)
def _rows(function: str, file: str) -> tuple[Row, ...]:
    """The rows that have this function."""
    name = function.rpartition(".")[2]
    return tuple(
        row
        for row in knowledge().place
        if re.fullmatch("|".join(row.functions), name) and re.search("|".join(row.files), file)
    )
