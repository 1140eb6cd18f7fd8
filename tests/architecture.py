"""The rooms and their arrows: the table of docs/internals/architecture.md, from the code.

    python -m tests.architecture        # write it anew

What a room is for is the first sentence of its docstring; whom it imports is read from its imports.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "internals" / "architecture.md"
_HEAD = "| room | what it is for | it imports |\n|---|---|---|\n"
_TABLE = re.compile(re.escape(_HEAD) + r"(?:\|.*\|\n)*")


@cache
def imports() -> dict[str, set[str]]:
    """Read which rooms each room imports."""
    graph = grimp.build_graph("preflight", include_external_packages=False)
    below: dict[str, set[str]] = {}
    for module in graph.modules:
        room = _room(module)
        imported = {_room(each) for each in graph.find_modules_directly_imported_by(module)}
        below.setdefault(room, set()).update(imported - {room, "preflight"})
    del below["preflight"]
    return below


@cache
def height(room: str) -> int:
    """Count the rooms of the longest way down from this one, which counts too."""
    return 1 + max(map(height, imports()[room]), default=0)


@cache
def table() -> str:
    """Write a row for each room, those first that import others."""
    below = imports()
    rows = sorted(below, key=lambda room: (-height(room), room))
    return _HEAD + "".join(
        f"| `{_place(room)}` | {_purpose(room)} | {' '.join(sorted(below[room])) or 'nothing'} |\n"
        for room in rows
    )


def page() -> str:
    """Give the page with the table as the code has it."""
    return _TABLE.sub(lambda _: table(), PAGE.read_text(encoding="utf-8"), count=1)


def _room(module: str) -> str:
    _, _, within = module.partition(".")
    return within.partition(".")[0] or "preflight"


def _place(room: str) -> str:
    if room == "checks":
        return "checks/"
    return f"preflight/{room}/" if (ROOT / "preflight" / room).is_dir() else f"preflight/{room}.py"


def _purpose(room: str) -> str:
    path = ROOT / _place(room)
    text = (path / "__init__.py" if path.is_dir() else path).read_text(encoding="utf-8")
    first = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
    return " ".join(first.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
