"""Estimates from a log's words alone which of its lines states why the job ended, if any does.

A linear model whose weights were learned from public logs that people labelled
(docs/internals/contest.md). It knows nothing of symptoms and rules, so it makes other mistakes:
an answer with which it disagrees is less sure.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections import Counter
from functools import cache
from itertools import accumulate, chain, pairwise
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from preflight.hang.explain.repeats import any_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LEAST_LINES = 15
"""A log with fewer lines gets no estimate: it may be an excerpt."""
END_BYTES = 2 << 20
"""How much is read, from the end of a log."""
_MOST_FIRST, _MOST_LAST = 100, 200
"""If there are more candidates, only so many of the first and of the last ones are scored."""
_NUMBER = re.compile(rb"\d+")
"""Replaced by 0, so that lines that differ only in numbers are equal."""
_WORDS = (
    "error|exception|traceback|fail|fatal|abort|kill|signal|oom|memory|cannot|can't|couldn't|unable|"
    "could not|no such|no module|missing|invalid|illegal|denied|refused|timed out|timedout|timeout|"
    "time out|limit|exceed|cancel|terminat|segfault|segmentation|core dump|panic|exit|died|dead|"
    "lost|crash|assert|bus error|nan|unexpected|unknown|unrecognized|not found|not supported|"
    "not available|not allowed|not defined|not exist|disconnect|reset by|broken pipe|closed|"
    "corrupt|mismatch|insufficient|exhaust|usage:|expected|required|quota|space left|interrupt|"
    "stop|hang|stuck|xid|nvrm|ecc|correct|errno|warn|unsupported"
)
_CANDIDATE = any_of(frozenset(word.encode() for word in _WORDS.split("|")))
"""Found in the lower case of every line that may state why a job ended."""
_NAMED_FIRST = re.compile(
    r"(?:\[?rank ?\d{1,6}\]?:\s{0,9}|\d{1,6}:\s{0,9}|\(\w[^)]{0,60}\)\s{0,9})?([\w.]{1,150})(?::|$)"
)
_ENDS_OF_EXCEPTIONS = (
    *("Error", "Exception", "Interrupt", "Exit", "Fault", "Warning", "Quit", "Timeout", "Failure"),
    *("NotFound", "Unavailable"),
)
_LEVEL = re.compile(r"\b(?:info|warn(?:ing)?|error|debug|fatal|critical)\b")
_WORD = re.compile(r"[A-Z]{2,}(?![a-z])|[A-Z]?[a-z]+|[^\sA-Za-z0-9_]")
"""`FileNotFoundError: 'x'` has the words file, not, found, error, `:`, `'`, x, `'`."""
_LINE_BYTES, _LINE_WORDS, _NEIGHBOUR_WORDS, _LAST_LINES = 400, 40, 20, 6
"""What counts: bytes and words of a line, words of a line near it, lines at the end of a log."""


class Estimate(NamedTuple):
    """For each line, the probability that it states why the job ended."""

    by_line: dict[int, float]
    """By number of the line, from 1; other lines have 0."""
    no_failure: float
    """How probable it is that the job did not fail."""

    @property
    def best(self) -> tuple[int, float]:
        """The most probable line and its probability; 0 and 0 if no line may state the cause."""
        return max(self.by_line.items(), key=itemgetter(1), default=(0, 0.0))


def estimate(end: bytes, line_count: int) -> Estimate:
    """Estimate from the last bytes of a log of so many lines.

    What precedes their first line feed does not count.
    """
    weights, (numbers, features) = _weights(), features_of(end)
    scores = [sum(weights.get(name, 0) for name in {*names}) / 100 for names in features]
    most = max(scores)
    powers = [math.exp(score - most) for score in scores]
    total = sum(powers)
    shares = [power / total for power in powers]
    before = line_count - end.count(b"\n")
    by_line = {before + number: share for number, share in zip(numbers, shares, strict=False)}
    return Estimate(by_line, shares[-2])


@cache
def _weights() -> dict[str, int]:
    """By feature, a hundred times its weight."""
    file = Path(__file__).with_name("likely_lines.json")
    found: dict[str, int] = json.loads(file.read_text(encoding="utf-8"))
    return found


def features_of(end: bytes) -> tuple[list[int], list[list[str]]]:
    """The candidates' line numbers, from 1 after the first line feed, and the features of each.

    Two more lists of features follow: that the job did not fail, and that its log stops without a
    line that states why it ended.
    """
    log = _Log(_NUMBER.sub(b"0", end).split(b"\n")[1:])
    shown = sorted({*log.first.values(), *log.last.values()})
    if len(shown) > _MOST_FIRST + _MOST_LAST:
        shown = shown[:_MOST_FIRST] + shown[-_MOST_LAST:]
    of_endings = [*log.features_of_ending()]
    endings = [[f"{what}: {name}" for name in of_endings] for what in ("no failure", "cut off")]
    return [at + 1 for at in shown], [*([*log.features(at)] for at in shown), *endings]


class _Log:
    """The lines of a log, which of them may state a cause, and what stands around those."""

    def __init__(self, shapes: list[bytes]) -> None:
        while shapes and not shapes[-1].strip():
            shapes.pop()
        may_be = {shape: bool(_CANDIDATE.search(shape.lower())) for shape in {*shapes}}
        self.shapes = shapes
        self.candidates = [at for at, shape in enumerate(shapes) if may_be[shape]]
        raised = {shape for shape in may_be if may_be[shape] and _is_exception(_text(shape))}
        self.exceptions = [at for at in self.candidates if shapes[at] in raised]
        self.first = {shapes[at]: at for at in reversed(self.candidates)}
        """By line, the first of those that differ in numbers alone."""
        self.last = {shapes[at]: at for at in self.candidates}
        self._alike = Counter(shapes[at] for at in self.candidates)
        plain = (_begins(shape) and not may_be[shape] for shape in shapes)
        self._plain_before = [*accumulate(plain, initial=0)]

    def features(self, at: int) -> Iterator[str]:
        """Of a candidate: sizes as powers of two, what it is, its words, and words near it."""
        shape, rank = self.shapes[at], bisect_left(self.candidates, at)
        text, earlier = _text(shape), bisect_left(self.exceptions, at)
        sizes = {
            "lines": len(self.shapes),
            "lines_after": len(self.shapes) - 1 - at,
            "candidates_before": rank,
            "candidates_after": len(self.candidates) - 1 - rank,
            "exceptions_before": earlier,
            "exceptions_after": len(self.exceptions) - earlier,
            "plain_before": self._plain_before[at],
            "plain_after": self._plain_before[-1] - self._plain_before[at + 1],
            "alike": self._alike[shape],
            "length": len(text),
        }
        yield from (f"{name}={size.bit_length()}" for name, size in sizes.items())
        is_exception = _is_exception(text)
        yield f"first={self.first[shape] == at}"
        yield f"last={self.last[shape] == at}"
        yield f"indented={not _begins(shape)}"
        yield f"exception={is_exception}"
        yield f"after_frame={is_exception and at > 0 and not _begins(self.shapes[at - 1])}"
        level = _LEVEL.search(text[:80].lower())
        yield f"level {level and level[0]}"
        yield from (f"is {words}" for words in _pairs(_words(text, _LINE_WORDS)))
        near = {
            "before": self.candidates[max(rank - 1, 0) : rank],
            "after": self.candidates[rank + 1 : rank + 2],
        }
        for where, places in near.items():
            for place in places:
                words = _words(_text(self.shapes[place]), _NEIGHBOUR_WORDS)
                yield from (f"{where} {word}" for word in words)

    def features_of_ending(self) -> Iterator[str]:
        """Of the end of the log."""
        last = max(self.candidates, default=-1)
        yield "any"
        yield f"lines={len(self.shapes).bit_length()}"
        yield f"candidates={len(self.candidates).bit_length()}"
        yield f"exceptions={len(self.exceptions).bit_length()}"
        yield f"after_last={(len(self.shapes) - last).bit_length()}"
        written = [shape for shape in self.shapes[-100:] if shape.strip()][-_LAST_LINES:]
        words = [_pairs(_words(_text(shape), _NEIGHBOUR_WORDS)) for shape in written]
        yield from (f"near {word}" for word in chain.from_iterable(words))
        yield from (f"last {word}" for word in (words[-1] if words else ()))


def _is_exception(text: str) -> bool:
    """Whether the line begins with the class of an exception."""
    named = _NAMED_FIRST.match(text)
    name = named[1].rpartition(".")[2] if named else ""
    return name[:1].isupper() and name.endswith(_ENDS_OF_EXCEPTIONS)


def _begins(shape: bytes) -> bool:
    """Whether it is a line that begins at the margin."""
    return bool(shape) and not shape.startswith((b" ", b"\t"))


def _text(shape: bytes) -> str:
    return shape[:_LINE_BYTES].decode("utf-8", "replace")


def _words(text: str, most: int) -> list[str]:
    """Its words in lower case, without the middle of many."""
    words = [word.lower() for word in _WORD.findall(text)]
    return words if len(words) <= most else words[: most - 12] + words[-12:]


def _pairs(words: Sequence[str]) -> list[str]:
    """The words, and the pairs of words."""
    return [*words, *(f"{one} {two}" for one, two in pairwise(words))]
