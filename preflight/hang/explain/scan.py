"""Finds every symptom in streamed logs: 50 MB/s of NCCL's output, in bounded memory.

The cause is at the end of a log, which is often damaged: every readable part of it counts.
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
from itertools import compress, count, groupby
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from preflight.core.files import SWELLS, open_stream, unpacks_to
from preflight.core.text import countable, whole
from preflight.errors import UsageError
from preflight.hang.explain.exceptions import ENDS, Summaries, Tracebacks
from preflight.hang.explain.origin import Origins, speaker_of_file, time_of
from preflight.hang.explain.symptom import QUOTES, Hit, Place, Speaker
from preflight.hang.watch.evidence import LEFT, files_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from preflight.hang.explain.exceptions import LoggedException
    from preflight.hang.explain.symptom import Symptom


_OUTPUT = ("output.log", "errors.log", "stdout.log", "stderr.log")
"""Output of the launch, or of one rank under torchrun; read first."""
_RANK = ("error.json", "stdout.log", "stderr.log")
"""Files that torchrun writes for each rank in RUN/attempt_0/LOCAL_RANK."""
_WAYS_OUT = "give log files, or a folder from preflight watch or torchrun --log-dir"


def logs_of(
    given: Sequence[Path], beside: Iterable[Path] = (), empty: list[str] | None = None
) -> Iterator[Path]:
    """The given files, and the logs in given folders (only non-empty ones, if there are any).

    `beside`: dumps, which are no logs. A folder with neither is added to `empty` if anything else
    is given, and otherwise a UsageError, as is one with the logs of several runs.
    """
    dumps = set(beside)
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
        found = {one: size for one, size in found.items() if one not in dumps}
        if not found and not any(path in one.parents for one in dumps):
            if empty is None or len(given) + len(dumps) == 1:
                raise UsageError(f"no log of a job in {path}: {_WAYS_OUT}")
            empty.append(f"no log of a job in {path}")
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
        return False  # opening it will report the error


def any_of(words: Iterable[bytes]) -> re.Pattern[bytes]:
    """Match any of these words, ten times faster than plain alternatives: shares prefixes."""
    return re.compile(_branches(sorted(set(words))))


def _branches(words: list[bytes]) -> bytes:
    if not words or not words[0]:
        return b""  # a word ends here: longer ones need no match
    parts = [
        re.escape(first) + _branches([word[1:] for word in those])
        for first, those in groupby(words, key=lambda word: word[:1])
    ]
    return parts[0] if len(parts) == 1 else b"(?:" + b"|".join(parts) + b")"


if TYPE_CHECKING:
    _Peeked = io.BufferedReader[io.FileIO]

CHUNK = 1 << 20

_MEMBER = 4096
"""Bytes charged for each gzip member, however empty: 20 bytes can be one."""

_GZIP = b"\x1f\x8b"
_ANY_GZIP = 16 + zlib.MAX_WBITS
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
"""Encodings that PowerShell's `>` writes."""


def blocks(path: Path, troubles: list[str]) -> Iterator[bytes]:
    """Yield a file's text as it comes, about CHUNK bytes at a time; `-` is standard input.

    UsageError if it cannot be opened. Later errors are added to `troubles`.
    """
    with _opened(path) as file:
        try:
            raw = _raw(file)
            packed = file.peek(len(_GZIP)).startswith(_GZIP)
            yield from _as_utf8(_unzipped(raw, path) if packed else raw)
        except (OSError, EOFError, zlib.error) as error:
            troubles.append(f"{path}: read up to an error ({error})")


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
    """Uses `read1`, because `read` drops what it has read when the next part fails."""
    while more := file.read1(CHUNK):
        yield more


def _unzipped(raw: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """Decompress member by member; zlib.error or EOFError after all readable text."""
    member = zlib.decompressobj(_ANY_GZIP)
    complete = False
    left = unpacks_to(0)
    for block in raw:
        rest = block
        left += len(block) * SWELLS
        while True:
            if member.eof:
                rest = rest.lstrip(b"\0")  # tapes and block devices pad
                if not rest:
                    break
                member, complete = zlib.decompressobj(_ANY_GZIP), True
                left -= _MEMBER
            before = member.copy()
            try:
                text = member.decompress(rest, CHUNK)
            except zlib.error as error:
                yield _up_to_fault(before, rest)
                if complete and "header" in str(error):
                    raise EOFError("what follows the gzipped text is not gzipped") from error
                raise
            yield text
            left -= len(text)
            if left < 0:
                raise EOFError(
                    f"it unpacks to over {SWELLS} times its size, or has thousands of parts; "
                    "if you trust it: "
                    f"zcat {shlex.quote(str(path))} | preflight explain -"
                )
            rest = member.unused_data if member.eof else member.unconsumed_tail
            if not rest and len(text) < CHUNK:
                break
    if not member.eof:
        raise EOFError("the gzipped text is cut short")


def _up_to_fault(member: zlib._Decompress, rest: bytes) -> bytes:
    """Decompress byte by byte: a call that fails returns nothing of what came before."""
    got = bytearray()
    with suppress(zlib.error):
        for byte in rest:
            got += member.decompress(bytes((byte,)))
    return bytes(got)


def _as_utf8(texts: Iterator[bytes]) -> Iterator[bytes]:
    """Convert UTF-16 to UTF-8; anything else stays as it is."""
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
"""Bytes searched of a line, half of them at its end; the middle is cut."""
_HUGE = 4 * LONGEST
"""Bytes stored of a line without an end so far."""

_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_BREAKS = re.compile(rb"\r\n|\n|\r")


def chunks(path: Path, troubles: list[str]) -> Iterator[list[bytes]]:
    """Yield a file's lines, some thousands at a time; `-` is standard input.

    A huge line is one line, cut. UsageError if the file cannot be opened. Later errors (a gzip file
    cut short) are added to `troubles`, and the text before them counts.
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
        yield _whole(lines)
    if left:
        yield [_cut(left.removesuffix(b"\r"))]


_NARROW, _WIDE = 60, 400
"""Columns of a terminal."""
_SOME = 3
"""Lines that fill it."""
_HEAD = 6
_SAMPLE = 2000
"""Lines whose beginnings are compared."""
_BEGINS = re.compile(
    rb"srun: |slurmstepd|Traceback |\[rank ?\d|\[default\d|\[\d{1,8},\d{1,6}\]<"
    rb"|[\w.-]{1,80}:\d+:\d+ \["
    rb"|\[?(?:19|20)\d\d[-/]\d\d[-/]\d\d[T _]|\[?\d\d:\d\d:\d\d|[A-Z][a-z]{2} [ \d]\d \d\d:"
    rb"|\[[IWEFC]?\d{3,4} \d\d:|[IWEFC]\d{4} \d\d:|<\d{1,2}>|\[ {0,8}\d{1,9}\.\d{6}\]|kernel: "
    rb"|NVRM: "
    rb"|(?:[A-Za-z_]\w{0,60}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception|Exit|Interrupt|Warning)(?::|$)"
    rb"|Segmentation fault|Killed|Aborted|Terminated|Bus error|Fatal |(?:FATAL|ERROR|CRITICAL)\b"
)
"""Beginnings of messages of their own, which no terminal has cut off a line."""


def _whole(lines: list[bytes]) -> list[bytes]:
    """Join the lines that a terminal wrapped; what was joined leaves an empty line.

    A line is wrapped if it is as long as several others, which are the longest, and the next one
    begins neither as the other lines do nor as a known message. Most of the longest lines must be
    wrapped: otherwise they are only of equal length.
    """
    if any(line[:1] == b">" for line in lines[:_SAMPLE]):
        lines = [line.lstrip(b"> ") if line[:1] == b">" else line for line in lines]
    lengths = list(map(len, lines))
    longest = max(lengths, default=0)
    if not _NARROW <= longest <= _WIDE:
        return lines
    after = set(compress(range(1, len(lines)), map(longest.__eq__, lengths)))
    rests = [number for number in after if not _BEGINS.match(lines[number])]
    if len(after) < _SOME or 2 * len(rests) <= len(after):
        return lines
    others = [line for number, line in enumerate(lines[:_SAMPLE]) if number not in after]
    heads = Counter(map(_head, others))
    often = max(1, len(others) // 50)
    rests = [number for number in rests if heads[_head(lines[number])] < often]
    if 2 * len(rests) <= len(after):
        return lines
    for number in sorted(rests, reverse=True):
        lines[number - 1] += lines[number]
        lines[number] = b""
    return lines


_DIGITS = bytes.maketrans(b"123456789", b"000000000")


def _head(line: bytes) -> bytes:
    return line[:_HEAD].translate(_DIGITS)


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
"""Hits stored of one symptom and speaker: the first ones."""
_KEPT = 20_000
"""Hits stored in all."""
_SHOWN = 400
"""Characters stored of a line as proof."""

_FAILURE = re.compile(
    rb"(?i:traceback \(most|\bfatal\b|\bpanic\b|core dumped|segmentation fault|segfault"
    rb"|aborted\b|terminate called|exit(?:ed)?(?: with)?(?: exit| return)?[ _](?:code|status)"
    rb"[ :=]{0,3}-?[1-9]|return code[ :=]{0,3}-?[1-9]|\bkilled\b|out of memory|timed[ -]?out"
    rb"|deadlock|\bhung\b|\bstuck\b|unreachable|connection (?:refused|reset|closed)|\bxid\b"
    rb"|no space left|\b(?:signal|sig(?:kill|segv|abrt|bus|term))\b|unable to|can(?:no|')t "
    rb"|assert(?:ion)? .{0,200}fail|\bcrash|\bdied\b|\bfail(?:ed|ure)\b|\bcorrupt|denied"
    rb"|\bpg_status\b"  # a flight recorder's dump, which is written after a failure
    rb"|(?<![\w0] )errors?(?: code| number)?[ :]|mismatch|invalid|not found|no such)"
    rb"|[a-z](?:Error|Exception)\b|\bERROR\b|\bCRITICAL\b|NCCL WARN|\[E\d{0,6} |EXCEPTION"
)
"""A log without any of these shows no failure."""
_NOTICE = re.compile(
    rb"(?i:\bwarn(?:ing)?\b|warning:|\binfo\b|\bdebug\b|\bnotice\b|\bretry|continuing"
    rb"|ignor(?:ed|ing)|skipp(?:ed|ing)|falling back|deprecat|on[_ -]?error|\bpassed\b"
    rb"|\b(?:no|0|zero|without|any) (?:error|fail)|error[_ -](?:bars?|rate|func|margin|norm)"
    rb"|(?:error|fail(?:ed|ures?)?|killed)[_ ]?(?:rate|s)?[ =:]{1,3}0(?:\.0{0,9})?\b"
    rb"|\bwatching for\b|\bhandles? xid\b|\b(?:will|would|may|might) (?:stop|fail) with no space\b"
    rb"|[a-z] error[ =:]{1,3}\d{0,9}\.\d)"
)
"""What is no failure, whatever words are in it, unless NCCL or an exception says it."""
_CERTAIN = re.compile(rb"NCCL WARN|Traceback \(most|\bERROR\b|\bFATAL\b|^\w*Error: |core dumped")

_INFO = b"NCCL INFO "
_STEMS = (
    *("raceback", "rror", "xception", "ail", "atal", "panic", "ore dumped", "egmentation fault"),
    *("egfault", "bort", "erminat", "xit", "eturn code", "ill", "ut of memory", "imed", "ime out"),
    *("eadlock", "hung", "stuck", "nreachable", "refused", "onnection", "xid", "o space left"),
    *("ignal", "nable to", "annot ", "an't ", "ssert", "rash", "ied", "orrupt", "ismatch"),
    *("nvalid", "ot found", "o such", "critical", "warn", "sig", "[E", "pg_status"),
)
"""Each line of failure has one of these, in lower or upper case; a first letter may lack."""
_ALIKE = bytes.maketrans(b"0123456789abcdef", b"0" * 16)
"""Numbers, and addresses in hexadecimal, of lines that are otherwise the same."""
_RAISED = any_of(word.translate(_ALIKE) for word in (*ENDS, b"Traceback"))
_SHAPES = 200_000
"""Shapes of lines that are remembered."""


@dataclass
class ScanResult:
    """Everything found in a set of logs."""

    hits: list[Hit] = field(default_factory=list)
    raised: list[LoggedException] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """How often each symptom was found, including hits that are not stored."""
    ranks: set[int] = field(default_factory=set)
    """Global ranks that wrote any line."""
    roots: set[int] = field(default_factory=set)
    """Global ranks that torchrun calls the first to fail."""
    ended: int = 0
    """The number of the last line that reports the normal end of the job; 0 if none."""
    settled: dict[str, int] = field(default_factory=dict)
    """By file, the last line in which torchrun restarts its ranks or reports that all succeeded."""
    world: int = 0
    """The largest number of ranks in any line; 0 if none."""
    failure: Place | None = None
    """The first line with a word of failure; None where no line has one."""
    lines: int = 0
    troubles: list[str] = field(default_factory=list)


@dataclass
class _Open:
    """A symptom to which the following lines belong."""

    symptom: Symptom
    texts: list[str]
    number: int
    order: int


class Scanner:
    """Looks for symptoms, file by file; learns the ranks of processes on the way."""

    def __init__(self, symptoms: Sequence[Symptom]) -> None:
        words = [word.encode() for each in symptoms for word in each.anchors]
        words += [*ENDS, *(word.encode() for stem in _STEMS for word in (stem, stem.upper()))]
        self._anchor = any_of(word.translate(_ALIKE) for word in words)
        self._shapes: dict[bytes, list[tuple[bytes, Symptom]] | None] = {}
        """By shape of lines: anchors that may be there; None where there is nothing to read."""
        self._anchors = [
            (word.encode().translate(_ALIKE), word.encode(), each)
            for each in symptoms
            for word in each.anchors
        ]
        self._quiet: set[bytes] = set()
        """Those in which there is nothing to read, for speed."""
        self._kept: Counter[tuple[str, object]] = Counter()
        self._origins = Origins()
        self._summaries = Summaries()
        self._found = ScanResult()

    def read(self, paths: Iterable[Path]) -> ScanResult:
        """Scan them one after the other."""
        for path in paths:
            self._file(path)
        found = self._found
        found.raised = self._summaries.named([self._of_rank(one) for one in found.raised])
        by_place = {
            (one.place.source, one.place.line): one.speaker
            for one in found.raised
            if one.speaker.rank is not None
        }
        found.hits = [self._with_rank(hit, by_place) for hit in found.hits]
        return found

    def _file(self, path: Path) -> None:
        source, whose = str(path), speaker_of_file(path)
        tracebacks = Tracebacks(source, whose, self._origins)
        open_symptoms: list[_Open] = []
        read = 0
        found = self._found
        known, quiet, idle = self._shapes, self._quiet, True
        for lines in chunks(path, found.troubles):
            shapes = b"\n".join(lines).translate(_ALIKE).split(b"\n")
            if len(known) > _SHAPES:
                known.clear()
                quiet.clear()
            numbered = zip(count(read + 1), lines, shapes)
            read += len(lines)
            for number, line, shape in compress(
                numbered, (shape not in quiet or not idle for shape in shapes)
            ):
                anchors = known[shape] if shape in known else self._learn_shape(shape)
                if anchors is None and idle:
                    continue
                text, order = text_of(line), found.lines + number
                open_symptoms = self._feed(open_symptoms, text, source, whose)
                tracebacks.feed(text, number, order)
                if b"Traceback (most" in line:
                    tracebacks.begin(text, number)
                self._look_for_failure(line, text, source, number)
                began = {one.id: one for word, one in anchors or () if word in line}
                open_symptoms += self._closed(
                    [_Open(one, [text], number, order) for one in began.values()], source, whose
                )
                idle = not open_symptoms and not tracebacks.open
        for each in open_symptoms:
            self._close(each, source, whose)
        found.lines += read
        found.raised += tracebacks.raised

    def _closed(self, began: list[_Open], source: str, whose: Speaker) -> list[_Open]:
        """Close those of one line; return those that need the following lines as well."""
        for each in began:
            if not each.symptom.span:
                self._close(each, source, whose)
        return [each for each in began if each.symptom.span]

    def _look_for_failure(self, line: bytes, text: str, source: str, number: int) -> None:
        """Remember the first line that reports a failure; NCCL's INFO lines are skipped."""
        if (
            self._found.failure is None
            and _INFO not in line
            and _FAILURE.search(line, 0, LONGEST)
            and not QUOTES.match(text)
            and (_CERTAIN.search(line, 0, LONGEST) or not _NOTICE.search(line, 0, LONGEST))
        ):
            self._found.failure = Place(source, number, text[:_SHOWN])

    def _learn_shape(self, shape: bytes) -> list[tuple[bytes, Symptom]] | None:
        """Which anchors may be in lines of this shape."""
        found = None
        if self._anchor.search(shape) is not None:
            found = [(word, one) for alike, word, one in self._anchors if alike in shape]
            if not found and _INFO in shape and _RAISED.search(shape) is None:
                found = None
        self._shapes[shape] = found
        if found is None:
            self._quiet.add(shape)
        return found

    def _feed(
        self, open_symptoms: list[_Open], text: str, source: str, whose: Speaker
    ) -> list[_Open]:
        left: list[_Open] = []
        for each in open_symptoms:
            each.texts.append(text)
            if len(each.texts) > each.symptom.span:
                self._close(each, source, whose)
            else:
                left.append(each)
        return left

    def _close(self, began: _Open, source: str, whose: Speaker) -> None:
        symptom, text = began.symptom, "\n".join(began.texts)
        fields = symptom.fields(text)
        if fields is None:
            return
        found = self._found
        speaker = self._origins.read(began.texts[0]).speaker.joined(whose)
        if "world" in fields:
            self._learn(fields, speaker)
        if symptom.reads == "end" and "rank" not in fields:
            rank = self._origins.rank_of_gpu(fields.get("node", ""), fields.get("local_rank", ""))
            if rank is None:
                return
            fields["rank"] = str(rank)
        if "end" in fields:
            found.ended = began.order
        if "settled" in fields:
            found.settled[source] = began.order
        if speaker.rank is not None:
            found.ranks.add(speaker.rank)
        found.counts[symptom.id] += 1
        key = (symptom.id, (source, speaker, tuple(sorted(fields.items()))[:6]))
        self._kept[key] += 1
        if self._kept[key] > _KEPT_EACH or len(found.hits) >= _KEPT:
            return
        place = Place(source, began.number, began.texts[0][:_SHOWN])
        hit = Hit(
            symptom=symptom,
            place=place,
            speaker=speaker,
            fields=fields,
            time=time_of(text),
            order=began.order,
        )
        found.hits.append(hit)
        root = self._summaries.take(hit)
        if root is not None:
            found.roots.add(root)

    def _learn(self, fields: dict[str, str], speaker: Speaker) -> None:
        """A communicator's line maps processes to ranks; the largest has the global ranks."""
        world, rank = int(fields["world"]), int(fields.get("rank", 0))
        if world > self._found.world:
            self._found.world = world
            self._origins.forget()
        if world == self._found.world and speaker.node and speaker.pid is not None:
            self._origins.learn(speaker.node, speaker.pid, rank)
            gpu = whole(fields.get("gpu", ""), 1 << 16)
            if gpu is not None:
                self._origins.learn_gpu(speaker.node, rank - gpu)

    def _of_rank(self, one: LoggedException) -> LoggedException:
        rank = self._origins.rank_of(one.speaker)
        return one if rank is None else replace(one, speaker=replace(one.speaker, rank=rank))

    def _with_rank(self, hit: Hit, raised: dict[tuple[str, int], Speaker]) -> Hit:
        """Add the rank to a hit that has only a process id, or is in torchrun's summary.

        `raised`: the speakers of exceptions, by place.
        """
        speaker = hit.speaker
        if speaker.rank is not None:
            return hit
        rank = self._origins.rank_of(speaker)
        if rank is not None:
            self._found.ranks.add(rank)
            return replace(hit, speaker=replace(speaker, rank=rank))
        named = self._summaries.within(hit.place)
        named = named or raised.get((hit.place.source, hit.place.line))
        return hit if named is None else replace(hit, speaker=named)
