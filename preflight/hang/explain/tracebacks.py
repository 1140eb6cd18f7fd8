"""Python tracebacks in a log: the exception that ended a rank, and the line that raised it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from preflight.hang.explain.model import Hit, Place, Speaker

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


_RANK = re.compile(r"\[rank ?(\d{1,6})\]:")
_PREFIXED = re.compile(
    r"^(?:\[\d+,(\d{1,6})\]<std|\(\w{1,40} rank=(\d{1,6}) pid=|\[RANK (\d{1,6})\] )"
)
"""mpirun --tag-output, vLLM's workers, and what scripts print."""
_OWN_RANK = re.compile(r"\[(?:[^\]\[]{0,80}\b)?Rank (\d{1,6})\]")
_NCCL = re.compile(r"(?:^|[\s>])([A-Za-z0-9][\w.-]{0,252}):(\d{1,8}):\d{1,8} \[\d+\] ")
_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)


def speaker_of(text: str) -> Speaker:
    """Read a line's own prefixes. `[rank9]:` is global; `[Rank 1]` may count within a group only.

    Torch writes the second beside the first; alone it is taken as it is.
    """
    rank = _RANK.search(text)
    if rank is None and "what():" not in text:  # who dies by it has said so with its prefix
        rank = _OWN_RANK.search(text) or _PREFIXED.match(text)
    nccl = _NCCL.search(text)
    return Speaker(
        rank=int(rank[rank.lastindex or 1]) if rank else None,
        node=nccl[1] if nccl else "",
        pid=int(nccl[2]) if nccl else None,
    )


def speaker_of_file(path: Path) -> Speaker:
    """A file that is named after a rank speaks for it: `rank3.log`, `logs/rank_12/stderr`."""
    for part in (path.name, path.parent.name):
        named = _IN_NAME.search(part)
        if named:
            return Speaker(rank=int(named[1]))
    return Speaker()


_GLOG = re.compile(r"\b[IWEFC](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d(?:\.\d+)?)")
_SHORT = re.compile(r"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d(?:[.,]\d+)?) \[?[\w/.]+\.py:\d")
_ISO = re.compile(r"\b(?:19|20)\d\d[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d(?:[.,]\d+)?)")


def time_of(text: str) -> tuple[float, ...] | None:
    """(month, day, seconds of the day), the greatest common form; None where none is told.

    No year: torch's own prefix has none.
    """
    found = _GLOG.search(text) or _ISO.search(text) or _SHORT.search(text)
    if found is None:
        return None
    month, day, hour, minute, second = (float(each.replace(",", ".")) for each in found.groups())
    return (month, day, hour * 3600 + minute * 60 + second)


_MOST = 200
"""Tracebacks that are kept."""
_LONGEST = 400
"""Lines of one traceback."""
_PREFIX = re.compile(
    r"^(?:"
    r"\(?[\w. =]{1,60}pid=\d[^)]*\)\s*"  # Ray, vLLM
    r"|\[rank ?\d+\]:\s?|\d{1,5}: ?|[>|] ?"  # torch, srun -l, quotes
    r"|\[\d+,\d+\]<std\w+>: ?"  # mpirun
    r"|\[(?:pod/|std(?:err|out))[^\]]{0,200}\]:? ?"  # kubectl logs --prefix
    r"|(?:ERROR|CRITICAL) [\d-]{5,10} [\d:.,]{8,15} \[?[\w/.]{1,60}\.py:\d+\] ?"  # vLLM
    r"|(?:19|20)\d\d[-/]\d\d[-/]\d\d[T _][\d:.,]{8,18}Z? "
    r")+"
)
_FRAME = re.compile(
    r'^\s*File "(?P<file>[^"]{1,400})", line (?P<line>\d+)(?:, in (?P<code>.{1,80}))?'
)
_ENDS = re.compile(
    r"^ {0,2}(?P<kind>[A-Za-z_][\w.]{0,120}(?:Error|Exception|Interrupt|Exit|Timeout|Warning)"
    r"|[a-z_][\w.]*\.[A-Z]\w{2,60})(?::\s*(?P<said>.*))?$"
)
_LIBRARY = re.compile(
    r"(?:site|dist)-packages|/lib/python3|<frozen|/torch/distributed/|/bin/(?:torchrun|accelerate|deepspeed)$"
)


class Raised(Struct, frozen=True, kw_only=True):
    """One exception that nobody caught."""

    kind: str
    said: str
    file: str
    """Of the innermost frame outside of libraries; "" if there was none."""
    line: int
    code: str
    script: str
    """That was started, where the outermost frame tells it; else ""."""
    speaker: Speaker
    place: Place
    began: int
    """The line in which its traceback begins."""
    time: tuple[float, ...] | None
    order: int


class _Running:
    def __init__(self, speaker: Speaker, text: str, number: int) -> None:
        self.speaker = speaker
        self.number = number
        self.time = time_of(text)
        self.own: tuple[str, int, str] = ("", 0, "")
        self.script = ""
        self.lines = 0


class Tracebacks:
    """Follows the tracebacks of one file, several ranks' at a time."""

    def __init__(self, source: str, whose: Speaker) -> None:
        self._source = source
        self._whose = whose
        self._running: dict[int | None, _Running] = {}
        self.raised: list[Raised] = []

    @property
    def open(self) -> bool:
        """Whether one has begun and not ended."""
        return bool(self._running)

    def begin(self, text: str, number: int) -> None:
        """A line says that a traceback follows."""
        speaker = speaker_of(text).joined(self._whose)
        self._running[speaker.rank] = _Running(speaker, text, number)

    def feed(self, text: str, number: int, order: int) -> None:
        """Take the next line of the file."""
        speaker = speaker_of(text).joined(self._whose)
        running = self._running.get(speaker.rank)
        if running is None:
            return
        bare = _PREFIX.sub("", text)
        running.lines += 1
        frame = _FRAME.match(bare)
        if frame is not None:
            if not _LIBRARY.search(frame["file"]):
                outermost = not running.own[0] and frame["code"] == "<module>"
                if outermost and frame["file"].endswith(".py"):
                    running.script = frame["file"]
                running.own = (frame["file"], int(frame["line"]), frame["code"] or "")
        elif ends := _ENDS.match(bare):
            self._end(running, ends["kind"], ends["said"] or "", (number, order, text))
            del self._running[speaker.rank]
        elif running.lines > _LONGEST:
            del self._running[speaker.rank]

    def _end(self, running: _Running, kind: str, said: str, at: tuple[int, int, str]) -> None:
        number, order, text = at
        if len(self.raised) >= _MOST:
            return
        file, line, code = running.own
        self.raised.append(
            Raised(
                kind=kind.rpartition(".")[2],
                said=said[:300],
                file=file,
                line=line,
                code=code,
                script=running.script,
                speaker=running.speaker,
                place=Place(self._source, number, text[:400]),
                began=running.number,
                time=running.time or time_of(text),
                order=order,
            )
        )


_T = TypeVar("_T", Hit, Raised)


def in_time(some: Iterable[_T]) -> list[_T]:
    """By their own clocks where all have one, else as they were read."""
    every = sorted(some, key=lambda one: one.order)
    if all(one.time is not None for one in every):
        every.sort(key=lambda one: one.time or ())
    return every
