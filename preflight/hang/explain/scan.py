"""Finds every symptom in logs as they stream by: 50 MB/s of NCCL's chatter, in bounded memory.

The cause stands at the end, and the end is what is torn: all that can be had of it counts.
"""

from __future__ import annotations

import codecs
import io
import re
import shlex
import sys
import zlib
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from preflight.core.files import SWELLS, open_stream, unpacks_to
from preflight.core.text import countable
from preflight.errors import UsageError
from preflight.hang.explain.exceptions import (
    Summaries,
    Tracebacks,
    speaker_of,
    speaker_of_file,
    time_of,
)
from preflight.hang.explain.symptom import Hit, Place, Speaker
from preflight.hang.watch.evidence import LEFT, files_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from preflight.hang.explain.exceptions import Raised
    from preflight.hang.explain.symptom import Symptom


_OUTPUT = ("output.log", "errors.log", "stdout.log", "stderr.log")
"""Of that launch, or of one rank beneath torchrun; it says first what ended it."""
_RANK = ("error.json", "stdout.log", "stderr.log")
"""What torchrun keeps of each rank in RUN/attempt_0/LOCAL_RANK."""
_WAYS_OUT = "give log files, or a folder that preflight watch or a run of torchrun --log-dir left"


def logs_of(given: Iterable[Path]) -> Iterator[Path]:
    """Files as they are given, and folders as the logs in them that are not empty, if any is not.

    UsageError for a folder without any, or with those of several runs.
    """
    for path in given:
        if str(path) == "-" or not _is_folder(path):
            yield path
            continue
        runs = [path] if any(path.glob("attempt_*")) else _runs(path)
        try:
            found = files_of(path, [*_OUTPUT, "error.json", *LEFT])
            for run in runs:
                found.update(files_of(run, [f"attempt_*/*/{name}" for name in _RANK]))
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}; {_WAYS_OUT}") from error
        if not found:
            raise UsageError(f"no log of a job in {path}: {_WAYS_OUT}")
        yield from [one for one, size in found.items() if size] or found


def _runs(path: Path) -> list[Path]:
    """Torchrun's only run in this folder."""
    runs = sorted({attempt.parent for attempt in path.glob("*/attempt_*")})
    if len(runs) > 1:
        raise UsageError(f"{len(runs)} runs of torchrun in {path}: give one of them")
    return runs


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False  # what is wrong is told when it is opened


def any_of(words: Iterable[bytes]) -> re.Pattern[bytes]:
    """Find any of them, ten times faster than by plain alternatives: common beginnings are one."""
    return re.compile(_branches(sorted(set(words))))


def _branches(words: list[bytes]) -> bytes:
    if not words or not words[0]:
        return b""  # one ends here, and what only adds to it needs no look
    parts = [
        re.escape(first) + _branches([word[1:] for word in those])
        for first, those in groupby(words, key=lambda word: word[:1])
    ]
    return parts[0] if len(parts) == 1 else b"(?:" + b"|".join(parts) + b")"


if TYPE_CHECKING:
    _Peeked = io.BufferedReader[io.FileIO]

CHUNK = 1 << 20

_MEMBER = 4096
"""What one more gzipped part costs, however empty: 20 bytes can be one."""

_GZIP = b"\x1f\x8b"
_ANY_GZIP = 16 + zlib.MAX_WBITS
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
"""What PowerShell's `>` writes."""


def blocks(path: Path, troubles: list[str]) -> Iterator[bytes]:
    """Yield a file's text as it comes, about CHUNK bytes at a time; `-` is standard input.

    UsageError where it cannot be opened. What breaks later is told in `troubles`.
    """
    with _opened(path) as file:
        try:
            raw = _raw(file)
            packed = file.peek(len(_GZIP)).startswith(_GZIP)
            yield from _as_utf8(_unzipped(raw, path) if packed else raw)
        except (OSError, EOFError, zlib.error) as error:
            troubles.append(f"{path}: read up to a fault ({error})")


@contextmanager
def _opened(path: Path) -> Iterator[_Peeked]:
    if str(path) == "-":
        yield cast("_Peeked", sys.stdin.buffer)
        return
    try:
        stream = open_stream(path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; give log files") from error
    with io.BufferedReader(stream, CHUNK) as file:
        yield file


def _raw(file: _Peeked) -> Iterator[bytes]:
    """`read1`, because `read` forgets what it has gathered when the next piece is a fault."""
    while more := file.read1(CHUNK):
        yield more


def _unzipped(raw: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """Decompress one member after the other; zlib.error or EOFError after all that could be had."""
    member = zlib.decompressobj(_ANY_GZIP)
    whole = False
    left = unpacks_to(0)
    for block in raw:
        rest = block
        left += len(block) * SWELLS
        while True:
            if member.eof:
                rest = rest.lstrip(b"\0")  # tapes and block devices pad
                if not rest:
                    break
                member, whole = zlib.decompressobj(_ANY_GZIP), True
                left -= _MEMBER
            before = member.copy()
            try:
                text = member.decompress(rest, CHUNK)
            except zlib.error as error:
                yield _up_to_fault(before, rest)
                if whole and "header" in str(error):
                    raise EOFError("what follows the gzipped text is not gzipped") from error
                raise
            yield text
            left -= len(text)
            if left < 0:
                raise EOFError(
                    f"it unpacks to over {SWELLS} times its size, or has thousands of parts; "
                    "where that is no trap: "
                    f"zcat {shlex.quote(str(path))} | preflight explain -"
                )
            rest = member.unused_data if member.eof else member.unconsumed_tail
            if not rest and len(text) < CHUNK:
                break
    if not member.eof:
        raise EOFError("the gzipped text is cut short")


def _up_to_fault(member: zlib._Decompress, rest: bytes) -> bytes:
    """Byte by byte: a call that meets the fault gives nothing of what came before it."""
    got = bytearray()
    with suppress(zlib.error):
        for byte in rest:
            got += member.decompress(bytes((byte,)))
    return bytes(got)


def _as_utf8(texts: Iterator[bytes]) -> Iterator[bytes]:
    """Text of two bytes a character as the rest of us reads it; anything else as it is."""
    first = b""
    for text in texts:
        first += text
        if len(first) >= len(codecs.BOM_UTF16_LE):
            break
    code = _UTF16.get(first[:2])
    if code is None:
        yield first
        yield from texts
        return
    decoder = codecs.getincrementaldecoder(code)("replace")
    yield decoder.decode(first[2:]).encode()
    for text in texts:
        yield decoder.decode(text).encode()


LONGEST = 16 << 10
"""Bytes of a line that are looked at, half of them at its end; what is between is cut out."""
_HUGE = 4 * LONGEST
"""Bytes of a line without an end (yet) that are kept."""

_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_BREAKS = re.compile(rb"\r\n|\n|\r")


def chunks(path: Path, troubles: list[str]) -> Iterator[list[bytes]]:
    """Yield a file's lines, some thousands at a time; `-` is standard input.

    A huge line is one line, cut. UsageError where the file cannot be opened. What breaks later (a
    gzip cut short) is told in `troubles`, and what came before it counts.
    """
    left = b""
    for block in blocks(path, troubles):
        text = left + block
        lines = _split(text)
        left = lines.pop()
        if text.endswith(b"\r"):
            left = lines.pop() + b"\r"  # the line feed may come
        if len(left) > _HUGE:
            left = left[:LONGEST] + left[-LONGEST:]
        if len(lines) * LONGEST < len(text):
            lines = [_cut(line) for line in lines]
        yield lines
    if left:
        yield [_cut(left.removesuffix(b"\r"))]


def text_of(line: bytes) -> str:
    """A line as text that a terminal and a report can show: no escapes, no control characters."""
    cut = _ESCAPES.sub(b"", _cut(line))
    text = cut.decode("utf-8", "replace").rstrip()
    if not text.isprintable():
        text = "".join(char for char in text.replace("\t", " ") if char.isprintable())
    return countable(text)


def _cut(line: bytes) -> bytes:
    if len(line) <= LONGEST:
        return line
    half = LONGEST // 2
    return line[:half] + b" ... " + line[5 - half :]


def _split(block: bytes) -> list[bytes]:
    if b"\r" in block:
        return _BREAKS.split(block)  # progress bars write over themselves
    return block.split(b"\n")


_KEPT_EACH = 3
"""Hits of one symptom by one speaker that are kept: the first ones."""
_KEPT = 20_000
"""Hits in all."""
_SHOWN = 400
"""Characters of a line that are kept as proof."""

_INFO = b"NCCL INFO "
_CHATTER = frozenset(
    {
        *(b"Channe", b"Trees ", b"Ring 0", b"Ring 1", b"Connec", b"thread", b"Settin", b"AllRed"),
        *(b"AllGat", b"Reduce", b"Broadc", b"Send: ", b"Recv: ", b"P2P Ch", b"Tree 0", b"Tree 1"),
        *(b"=== Sy", b"NVLS t", b"CPU/0-", b"CPU/1-", b"+ PCI[", b"+ NVL[", b"+ NET[", b"=====\n"),
    }
)
"""What a line of NCCL begins with that never tells of a failure; without them nothing changes but
the speed."""


@dataclass
class Found:
    """All that a set of logs gave."""

    hits: list[Hit] = field(default_factory=list)
    raised: list[Raised] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """How often each symptom was met, those not kept included."""
    ranks: set[int] = field(default_factory=set)
    """Global ranks that any line was written by."""
    roots: set[int] = field(default_factory=set)
    """Global ranks that torchrun calls the first to fail."""
    ended: int = 0
    """The last line, in the order of reading, that says the job came to its end; 0 if none."""
    world: int = 0
    """The greatest number of ranks that anybody told of; 0 if nobody did."""
    lines: int = 0
    troubles: list[str] = field(default_factory=list)


@dataclass
class _Open:
    """A symptom whose following lines belong to it."""

    symptom: Symptom
    texts: list[str]
    number: int
    order: int


class Scanner:
    """Looks for symptoms, file by file; who is who is learned on the way."""

    def __init__(self, symptoms: Sequence[Symptom]) -> None:
        self._anchor = any_of(word.encode() for each in symptoms for word in each.anchors)
        self._by_anchor: dict[bytes, list[Symptom]] = {}
        for each in symptoms:
            for word in each.anchors:
                self._by_anchor.setdefault(word.encode(), []).append(each)
        self._kept: Counter[tuple[str, object]] = Counter()
        self._processes: dict[tuple[str, int], int] = {}
        self._summaries = Summaries()
        self._found = Found()

    def read(self, paths: Iterable[Path]) -> Found:
        """Scan them one after the other."""
        for path in paths:
            self._file(path)
        found = self._found
        found.raised = self._summaries.named(found.raised)
        by_place = {
            (one.place.source, one.place.line): one.speaker
            for one in found.raised
            if one.speaker.rank is not None
        }
        found.hits = [self._who(hit, by_place) for hit in found.hits]
        return found

    def _file(self, path: Path) -> None:
        source, whose = str(path), speaker_of_file(path)
        tracebacks = Tracebacks(source, whose)
        still: list[_Open] = []
        number = 0
        found = self._found
        anchored = self._anchor.search
        for lines in chunks(path, found.troubles):
            for line in lines:
                number += 1
                at = line.find(_INFO)
                if at >= 0 and not still and line[at + 10 : at + 16] in _CHATTER:
                    continue
                if still or tracebacks.open:
                    text = text_of(line)
                    still = self._feed(still, text, source, whose)
                    tracebacks.feed(text, number, found.lines + number)
                if b"Traceback (most" in line:
                    tracebacks.begin(text_of(line), number)
                if anchored(line) is not None:
                    text = text_of(line)
                    for began in self._begun(line, text, number, found.lines + number):
                        if began.symptom.span:
                            still.append(began)
                        else:
                            self._close(began, source, whose)
        for each in still:
            self._close(each, source, whose)
        found.lines += number
        found.raised += tracebacks.raised

    def _begun(self, line: bytes, text: str, number: int, order: int) -> list[_Open]:
        """Begin with every symptom of which an anchor is in this line."""
        symptoms = {
            each.id: each
            for word, those in self._by_anchor.items()
            if word in line  # the expression finds one of those that overlap only
            for each in those
        }
        return [_Open(symptom, [text], number, order) for symptom in symptoms.values()]

    def _feed(self, still: list[_Open], text: str, source: str, whose: Speaker) -> list[_Open]:
        left: list[_Open] = []
        for each in still:
            each.texts.append(text)
            if len(each.texts) > each.symptom.span:
                self._close(each, source, whose)
            else:
                left.append(each)
        return left

    def _close(self, began: _Open, source: str, whose: Speaker) -> None:
        symptom, text = began.symptom, "\n".join(began.texts)
        told = symptom.fields(text)
        if told is None:
            return
        found = self._found
        speaker = speaker_of(began.texts[0]).joined(whose)
        if "world" in told:
            self._learn(told, speaker)
        if "end" in told:
            found.ended = began.order
        if speaker.rank is not None:
            found.ranks.add(speaker.rank)
        found.counts[symptom.id] += 1
        key = (symptom.id, (source, speaker, tuple(sorted(told.items()))[:6]))
        self._kept[key] += 1
        if self._kept[key] > _KEPT_EACH or len(found.hits) >= _KEPT:
            return
        place = Place(source, began.number, began.texts[0][:_SHOWN])
        hit = Hit(
            symptom=symptom,
            place=place,
            speaker=speaker,
            fields=told,
            time=time_of(text),
            order=began.order,
        )
        found.hits.append(hit)
        root = self._summaries.take(hit)
        if root is not None:
            found.roots.add(root)

    def _learn(self, told: dict[str, str], speaker: Speaker) -> None:
        """A communicator's line joins rank and process; the largest one has the global ranks."""
        world, rank = int(told["world"]), int(told.get("rank", 0))
        if world > self._found.world:
            self._found.world = world
            self._processes.clear()
        if world == self._found.world and speaker.node and speaker.pid is not None:
            self._processes[speaker.node, speaker.pid] = rank

    def _who(self, hit: Hit, raised: dict[tuple[str, int], Speaker]) -> Hit:
        """Name the rank of a process that said its number only, or that torchrun sums up.

        `raised`: who raised the exception in which the words stand.
        """
        speaker = hit.speaker
        if speaker.rank is not None:
            return hit
        rank = self._processes.get((speaker.node, speaker.pid or -1))
        if rank is not None:
            self._found.ranks.add(rank)
            return replace(hit, speaker=replace(speaker, rank=rank))
        named = self._summaries.within(hit.place)
        named = named or raised.get((hit.place.source, hit.place.line))
        return hit if named is None else replace(hit, speaker=named)
