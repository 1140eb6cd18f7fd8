"""Long measurements go on where they stopped: one line per result, with the code that made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Coded(Protocol):
    """A line that says which code it is of."""

    @property
    def code(self) -> str:
        """The code's fingerprint."""


L = TypeVar("L", bound=Coded)


def lines(results: Path, code: str, kind: type[L]) -> Iterator[L]:
    """What the same code has found before; a line cut off by a crash is made again."""
    if not results.exists():
        return
    for text in results.read_bytes().splitlines():
        try:
            line = msgspec.json.decode(text, type=kind)
        except msgspec.DecodeError:
            continue
        if line.code == code:
            yield line


def append(results: Path, line: Coded) -> None:
    """One more line, whole."""
    with results.open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")
