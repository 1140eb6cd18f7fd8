"""Lines of a log that repeat others: only the first few, and the last, are read.

First lines of a log that come again show where its program starts once more.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from preflight.hang.explain.failure_words import mentions_failure, reports_failure
from preflight.hang.explain.log_lines import text_of
from preflight.hang.explain.tracebacks import ANNOUNCEMENTS, ENDINGS

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.hang.explain.symptom import Symptom


@cache
def any_of(words: frozenset[bytes]) -> re.Pattern[bytes]:
    """Match any of these words, ten times faster than plain alternatives: shares prefixes."""
    return re.compile(_branches(sorted(words)))


def _branches(words: list[bytes]) -> bytes:
    if not words or not words[0]:
        return b""  # a word ends here: longer ones need no match
    parts = [
        re.escape(first) + _branches([word[1:] for word in group])
        for first, group in groupby(words, key=lambda word: word[:1])
    ]
    return parts[0] if len(parts) == 1 else b"(?:" + b"|".join(parts) + b")"


MOST_EACH = 3
"""Hits stored of one symptom and speaker: the first ones."""
MOST_HITS = 20_000
"""Facts stored in all, and as many other hits."""
_KINDS = 200
"""Of tracebacks whose last one is stored."""
INFO = b"NCCL INFO "
_VOLATILE = re.compile(rb"0x0+|(?<![:0])00:00:00[.,0]*|(?<=:)0+(?= \[0+\] NCCL INFO )")
"""Addresses, times and threads in the shape of a line, which change where nothing new is seen."""
TO_ZEROS = bytes.maketrans(b"0123456789abcdef", b"0" * 16)
"""For `translate`: lines that differ only in numbers and hexadecimal addresses become the same."""
_OF_COMMUNICATOR = re.compile(
    _VOLATILE.pattern
    + rb"|(?<=NCCL INFO )(?:(?:\w{1,60} )?(?=0omm 0x)|Init timings.{1,80} nr0nks 0+ tot0l .*)"
    rb"|(?: nvmlD0v 0+)? 0usI0 0+ .{0,200}- \w{1,20} (?:START|COMPLETE)$"
)
"""In lines that show only a communicator: how it was made or ended, and how long that took."""
_COMMUNICATOR = re.compile(rb"(?<=comm )0x0+(?= rank 0)".translate(TO_ZEROS))
_BEGINS = b"Traceback (most".translate(TO_ZEROS)
HAS_EXCEPTION = any_of(frozenset(word.translate(TO_ZEROS) for word in (*ENDINGS, b"Traceback")))
_ANNOUNCING = any_of(frozenset(word.translate(TO_ZEROS) for word in ANNOUNCEMENTS))
_OF_ONE_LINE = ("", "xid", "memory", "call")
"""What is read of a failure of which only the first lines are stored."""


class Shape:
    """What to look for in lines that differ only in their numbers."""

    def __init__(self, shape: bytes, anchors: list[tuple[bytes, Symptom]]) -> None:
        self.anchors = anchors
        """Words that may be there."""
        is_fact = all(symptom.role == "fact" and not symptom.reads for _, symptom in anchors)
        self.most = 2 if is_fact else MOST_EACH
        """How often a line with this content is read; a second one may be of another group."""
        volatile = _OF_COMMUNICATOR if is_fact and len(anchors) == 1 else _VOLATILE
        cuts = [0, *(at for match in volatile.finditer(shape) for at in match.span()), None]
        self.content: Callable[[bytes], object] = itemgetter(*map(slice, cuts[::2], cuts[1::2]))
        """The parts of a line that show something: no addresses, times or threads."""
        match = _COMMUNICATOR.search(shape) if volatile is _OF_COMMUNICATOR else None
        self.communicator = slice(*match.span()) if match else slice(0)
        """Its address, which differs where two have the same ranks."""
        self.begins_traceback = _BEGINS in shape
        """Whether a traceback begins."""
        awaited = self.begins_traceback or _ANNOUNCING.search(shape) is not None
        self.is_failure = not awaited and all(
            symptom.role != "fact" and not symptom.span and symptom.reads in _OF_ONE_LINE
            for _, symptom in anchors
        )
        """Whether it may report a failure, and begins nothing that the next lines continue."""
        alone = not HAS_EXCEPTION.search(shape) and not any(symptom.span for _, symptom in anchors)
        self.is_counted = self.is_failure or (INFO in shape and alone)
        self.is_skippable = self.is_counted and not self.is_failure
        """Whether a line is of no use if enough of the same content were read."""

    def begins(self, line: bytes) -> list[Symptom]:
        """The symptoms that may begin in a line."""
        return [*{symptom.id: symptom for word, symptom in self.anchors if word in line}.values()]


QUIET = Shape(b"", [])
"""Of lines in which there is nothing to read."""
STEP = Shape(b"", [])
"""Of lines that only report the step of the training."""


class Repeats:
    """Lines that repeat others: the first few are read, and of failures the last."""

    def __init__(self) -> None:
        self.counts: dict[object, int] = {}
        """How often, in this attempt of the job."""
        self.last_ones: dict[object, tuple[Shape, bytes, int]] = {}
        """The last of many lines that report the same failure, and its number."""
        self.tracebacks: dict[int, tuple[int, list[bytes]]] = {}
        """The last of those that are not read, and the number of its first line."""
        self._last_content: object = None
        self._same_count = 0

    def has_read(self, shape: Shape, line: bytes) -> bool:
        """Whether enough lines of this content were read, or one of the same communicator."""
        if not shape.is_skippable:
            return False
        content = shape.content(line)
        times = self.counts.get(content, 0)
        is_known = times > 0 and (content, line[shape.communicator]) in self.counts
        return times >= shape.most or is_known

    def skips(self, shape: Shape, line: bytes, order: int, *, idle: bool) -> bool:
        """Whether a line shows nothing new; `idle`: it is no part of what has begun."""
        if idle and not shape.is_counted:
            return False
        content = shape.content(line)
        if not idle:
            self._same_count = self._same_count + 1 if (shape, content) == self._last_content else 0
            self._last_content = shape, content
            return self._same_count > MOST_EACH
        times = self.counts.get(content, 0)
        if times < shape.most:
            self.counts[content] = times + 1
            if shape.communicator.stop:
                self.counts[content, line[shape.communicator]] = 1
            return False
        if shape.is_failure and (content in self.last_ones or len(self.last_ones) < MOST_HITS):
            self.last_ones[content] = shape, line, order
        return True

    def of_traceback(self, lines: list[bytes], shapes: list[bytes], at: int, order: int) -> int:
        """How many lines follow in a traceback that repeats others but for numbers in its message.

        0 if it is to be read.
        """
        prefix, end = lines[at][: lines[at].find(b"Traceback")], at + 1
        while end < len(lines) and lines[end].startswith(prefix + b" "):
            end += 1
        if end == len(lines) or not lines[end].startswith(prefix):
            return 0
        content = hash((b"\n".join(lines[at:end]), shapes[end]))
        times = self.counts.get(content, 0)
        if times < MOST_EACH or (content not in self.tracebacks and len(self.tracebacks) >= _KINDS):
            self.counts[content] = times + 1
            return 0
        self.tracebacks[content] = order, lines[at : end + 1]
        return end - at


_HEADER_LINES, _SEARCHED_LINES, _START_LINES = 8, 60, 3
"""The first lines of a log that are remembered, among how many of the first they stand, and how
many of them show a start."""
_LETTER, _LEAST_LETTERS = re.compile(rb"[A-Za-z]"), 10
"""Such a line has so many letters at least: a rule of dashes is printed anywhere."""
_LINES_APART = 40
"""Lines at most between two of them in one start."""


class Starts:
    """Where a program starts again: it prints the first lines of its log once more, in order."""

    def __init__(self) -> None:
        self._header: dict[bytes, int] | None = None
        self._block: list[tuple[int, int]] = []
        """Of the start that is being read, the numbers of its lines and which first lines they
        repeat."""

    def find(self, lines: list[bytes], shapes: list[bytes], before: int) -> list[int]:
        """The first lines of the starts in a part of a log; `before`: how many lines precede it."""
        if self._header is None:
            self._header = _header_of(lines[:_SEARCHED_LINES], shapes)
        header, found = self._header, list[int]()
        if len(header) < _START_LINES or header.keys().isdisjoint(shapes):
            return found
        for number, shape in enumerate(shapes, before + 1):
            if (place := header.get(shape)) is None:
                continue
            last = self._block[-1] if self._block else (number, -1)
            if number - last[0] > _LINES_APART or place <= last[1]:
                self._block = []
            self._block.append((number, place))
            if len(self._block) == _START_LINES:
                found.append(self._block[0][0])
        return found


def _header_of(lines: list[bytes], shapes: list[bytes]) -> dict[bytes, int]:
    """The shapes of the first lines that tell something, up to a failure, in their order.

    Every rank prints NCCL's lines, so they show no start.
    """
    header: dict[bytes, int] = {}
    for line, shape in zip(lines, shapes, strict=False):
        if reports_failure(text_of(line)) or len(header) == _HEADER_LINES:
            break
        tells = len(_LETTER.findall(line)) >= _LEAST_LETTERS and INFO not in line
        if tells and not mentions_failure(line):
            header.setdefault(shape, len(header))
    return header
