"""How much work a text makes, counted in lines of the product that are executed.

Unlike time it is the same on a busy machine. What Python does in C within one line is not counted.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from preflight.hang.explain.symptom import shipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_ROOT: Final = Path(__file__).parents[2]
_OURS: Final = tuple(f"{_ROOT / folder}/" for folder in ("preflight", "checks"))
_DIGITS: Final = re.compile(r"[0-9]{1,15}")


def work(run: Callable[[], object]) -> int:
    """The lines of the product that `run` executes, each time that it does."""
    count = 0

    def within(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return within

    def called(frame: FrameType, _event: str, _argument: object) -> Any:
        return within if frame.f_code.co_filename.startswith(_OURS) else None

    before = sys.gettrace()
    sys.settrace(called)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def steepness(counts: list[int]) -> float:
    """Of the work for a text, twice and four times as much: 1 where it is linear, 2 the square."""
    once, twice, four = counts
    noise = once // 100
    return (four - twice) / max(noise, 2 * (twice - once), 1)


def _other(text: str, turn: int) -> str:
    """The same with other numbers."""

    def number(found: re.Match[str]) -> str:
        width = len(found[0])
        return str((int(found[0]) + 7 * turn) % 10**width).zfill(width)

    return _DIGITS.sub(number, text) if turn else text


def _same(text: str, times: int) -> str:
    return text * times


def _renumbered(text: str, times: int) -> str:
    return "".join(_other(text, turn) for turn in range(times))


def _by_line(text: str, times: int) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(_other(line, turn) for line in lines for turn in range(times))


def _wide(text: str, times: int) -> str:
    return "".join(line * times + "\n" for line in text.splitlines())


WAYS: Final = (_same, _renumbered, _by_line, _wide)
"""Ways to make a long text of a known one."""


_WORD: Final = re.compile(r"[A-Za-z_][\w-]*")


def words(text: str) -> list[tuple[int, int]]:
    """Where names may stand in it: each line's first and last word."""
    found: list[tuple[int, int]] = []
    start = 0
    for line in text.splitlines(keepends=True):
        spans = [(start + one.start(), start + one.end()) for one in _WORD.finditer(line)]
        found += dict.fromkeys((*spans[:1], *spans[-1:]))
        start += len(line)
    return found


def stretched(text: str, word: tuple[int, int], length: int) -> str:
    """Half of it is that word, and the other half what follows its line, again and again."""
    begin, end = word
    line_end = text.find("\n", end) + 1 or len(text)
    rest = text[line_end:] or f"{text[begin:line_end][:60]}\n"
    half = length // 2
    name = (text[begin:end] * half)[:half]
    return text[:begin] + name + text[end:line_end] + rest * (half // len(rest) + 1)


def logs() -> Iterator[tuple[str, str]]:
    """Each symptom's own examples, of a rank each where they name none."""
    for symptom in shipped():
        for at, example in enumerate(symptom.examples):
            rank = "" if "[rank" in example.text else "[rank1000]: "
            yield f"{symptom.id} {at}", f"{rank}{example.text}\n"


def pasted() -> Iterator[tuple[str, str]]:
    """The texts of other tools that the tests of their readers hold."""
    for path in sorted((_ROOT / "tests" / "unit" / "captured").glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and text.count("\n") > 1:
                yield f"{path.name}:{node.lineno}", text  # type: ignore[attr-defined]
