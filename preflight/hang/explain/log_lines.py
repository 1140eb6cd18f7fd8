"""Finds logs in folders and reads their lines: unpacked, whole, without colours and frames.

Frames are what Kubernetes and docker write around each line.

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
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, cast

import msgspec
from msgspec import Struct

from preflight.core.files import UNPACK_RATIO, open_stream, unpacked_limit
from preflight.core.text import cut_long_numbers
from preflight.errors import UsageError
from preflight.hang.watch.evidence import COPIES, LEFT, TEES, files_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


_OUTPUT = (*COPIES, *TEES)
"""Output of the launch, or of one rank under torchrun; read first."""
_RANK = ("error.json", "stdout.log", "stderr.log")
"""Files that torchrun writes for each rank in RUN/attempt_0/LOCAL_RANK."""
_WAYS_OUT = "give log files, or a folder from preflight watch or torchrun --log-dir"


def logs_of(paths: Sequence[Path], beside: Iterable[Path], empty: list[str]) -> Iterator[Path]:
    """The given files, and the logs in given folders (only non-empty ones, if there are any).

    `beside`: dumps, which are no logs. A folder with neither is added to `empty` if anything else
    is given, and otherwise a UsageError, as is one with the logs of several runs.
    """
    dumps = set(beside)
    for path in paths:
        if str(path) == "-" or not _is_folder(path):
            yield path
            continue
        runs = [path] if any(path.glob("attempt_*")) else _runs(path)
        try:
            logs = files_of(path, [*_OUTPUT, "error.json", *LEFT])
            for run in runs:
                latest = sorted(run.glob("attempt_*"), key=_number, reverse=True)
                every = [files_of(attempt, [f"*/{name}" for name in _RANK]) for attempt in latest]
                logs.update(next((files for files in every if any(files.values())), every[0]))
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}; {_WAYS_OUT}") from error
        logs = {log: size for log, size in logs.items() if log not in dumps}
        if not logs and not any(path in dump.parents for dump in dumps):
            if len(paths) + len(dumps) == 1:
                raise UsageError(
                    f"no log of a job in {path}: give log files, as in {shlex.quote(str(path))}/*, "
                    "or a folder from preflight watch or torchrun --log-dir, which holds "
                    f"{', '.join(_OUTPUT)} or attempt_0/"
                )
            empty.append(f"no log of a job in {path}")
        yield from [log for log, size in logs.items() if size] or logs


def _runs(path: Path) -> list[Path]:
    """Torchrun's only run in this folder."""
    runs = sorted({attempt.parent for attempt in path.glob("*/attempt_*")})
    if len(runs) > 1:
        raise UsageError(f"{len(runs)} runs of torchrun in {path}: give one of them")
    return runs


def _number(attempt: Path) -> tuple[int, str]:
    return len(attempt.name), attempt.name


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False  # opening it will report the error


if TYPE_CHECKING:
    _Peeked = io.BufferedReader[io.FileIO]

CHUNK = 1 << 20

_MEMBER = 4096
"""Bytes charged for each gzip member, however empty: 20 bytes can be one."""

_GZIP = b"\x1f\x8b"
_ANY_GZIP = 16 + zlib.MAX_WBITS
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
"""Encodings that PowerShell's `>` writes."""
_MOSTLY = 0.8
"""Share of the high bytes of UTF-16 that are 0 in a log."""
_SHORTEST, _SAMPLED = 64, 4096
"""Bytes of a text that show it."""


def blocks(path: Path, troubles: list[str]) -> Iterator[bytes]:
    """Yield a file's text as it comes, about CHUNK bytes at a time; `-` is standard input.

    UsageError if it cannot be opened. Later errors are added to `troubles`.
    """
    with _opened(path) as file:
        try:
            # `read` drops what it has read when the next part fails.
            raw = iter(partial(file.read1, CHUNK), b"")
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


def _unzipped(raw: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """Decompress member by member; zlib.error or EOFError after all readable text."""
    member = zlib.decompressobj(_ANY_GZIP)
    complete = False
    budget = unpacked_limit(0)
    for block in raw:
        rest = block
        budget += len(block) * UNPACK_RATIO
        while True:
            if member.eof:
                rest = rest.lstrip(b"\0")  # tapes and block devices pad
                if not rest:
                    break
                member, complete = zlib.decompressobj(_ANY_GZIP), True
                budget -= _MEMBER
            before = member.copy()
            try:
                text = member.decompress(rest, CHUNK)
            except zlib.error as error:
                yield _up_to_fault(before, rest)
                if complete and "header" in str(error):
                    raise EOFError("what follows the gzipped text is not gzipped") from error
                raise
            yield text
            budget -= len(text)
            if budget < 0:
                raise EOFError(
                    f"it unpacks to over {UNPACK_RATIO} times its size, or has thousands of parts; "
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
    text = bytearray()
    with suppress(zlib.error):
        for byte in rest:
            text += member.decompress(bytes((byte,)))
    return bytes(text)


def _as_utf8(texts: Iterator[bytes]) -> Iterator[bytes]:
    """Convert UTF-16 to UTF-8; anything else stays as it is."""
    first = b""
    for text in texts:
        first += text
        if len(first) >= _SHORTEST:
            break
    code = _UTF16.get(first[:2]) or _unmarked(first)
    if code is None:
        yield first
        yield from texts
        return
    decoder = codecs.getincrementaldecoder(code)("replace")
    yield decoder.decode(first).removeprefix("\ufeff").encode()
    for text in texts:
        yield decoder.decode(text).encode()


def _unmarked(first: bytes) -> str | None:
    """The encoding of UTF-16 without its mark: nearly every second byte of English text is 0."""
    for code, high, low in (("utf-16-le", 1, 0), ("utf-16-be", 0, 1)):
        zeros = [first[at:_SAMPLED:2].count(0) for at in (high, low)]
        if zeros[0] > _MOSTLY * len(first[high:_SAMPLED:2]) > zeros[1]:
            return code
    return None


_NO_TEXT = bytes({*range(1, 32)} - {*b"\a\b\t\n\v\f\r\x1b"})
"""Control characters that no encoding of text uses; a crash leaves zeros in a text."""
_BINARY = 0.05
"""Their share of the other bytes; packed or random bytes have 0.09."""
_COUNTED = 64 << 10
"""Bytes counted of each block."""

LONGEST = 16 << 10
"""Bytes searched of a line, half of them at its end; the middle is cut."""
_HUGE = 4 * LONGEST
"""Bytes stored of a line without an end so far."""

_ESCAPES = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)?|[@-Z\\-_])"
    rb"|(?:\^\[|#033|\\(?:u001[bB]|x1[bB]|033))\[[\d;]{0,40}[mK]"
)
"""Of a terminal; as `cat -v`, syslog, JSON and Python write them."""
_BEGIN_ESCAPES = b"\x1b^#\\"
_NO_BREAKS = bytes({*range(256)} - {*b"\r\n"})
"""All bytes that end no line."""
_FRAME = re.compile(rb"(?:19|20)\d\d-\S{12,40} (std(?:out|err)) ([FP])(?: |$)")
"""Kubernetes' container runtime interface (CRI); P: the line goes on in the stream's next one."""
_FIRST = 20
"""Lines that show whether a collector framed them all."""


class _DockerLine(Struct):
    log: str
    stream: str
    time: str


_DOCKER_LINE = msgspec.json.Decoder(_DockerLine)

_HEADS = (
    ("time", "timestamp", "@timestamp", "ts", "asctime"),
    ("level", "levelname", "severity"),
)
_MESSAGES = (
    *("message", "msg", "event", "error", "err", "exception", "exc", "exc_info", "exc_text"),
    *("stack", "stack_info", "stack_trace", "stacktrace", "traceback"),
)
"""Fields of structured logs: logging's JSON formatters, structlog, zap, Loguru."""
_LINES = re.compile(
    rf'\s{{1,80}}"(?:{"|".join(_MESSAGES)}|py_callstack)"\s?:\s("(?:[^"\\]|\\.)*+"),?'
)
"""Lines in a field of a printed object: of torchrun's report of an error, of a pod's state."""
_EXCEPTION = re.compile(r'"[A-Z]\w{1,60}Error: ')


def unstructured(line: str) -> list[str]:
    """The lines that a JSON object of a structured log holds; otherwise the line itself."""
    field = _LINES.fullmatch(line) if "\\n" in line or "Error: " in line else None
    if field and ("\\n" in line or _EXCEPTION.match(field[1])):
        with suppress(msgspec.DecodeError, RecursionError):
            lines = msgspec.json.decode(field[1], type=str).splitlines()
            return [text_of(part.encode("utf-8", "replace")) for part in lines] or [line]
    begin, end = line.find('{"'), line.rfind("}") + 1
    if begin < 0 or line[end:] not in ("", "]"):
        return [line]
    try:
        record = msgspec.json.decode(line[begin:end], type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        return [line]
    if "stream_name" in record and line[0] in "[,":  # a notebook's log, one list
        begin, record = 0, {"message": record.get("data")}
    elif line[end:]:
        return [line]
    texts = [text for name in _MESSAGES if isinstance(text := record.get(name), str)]
    time, level = (
        next((str(record[name]) for name in names if name in record), "") for names in _HEADS
    )
    is_setting = line[0] == " " and not (time or level)  # an object within others
    if not texts or is_setting:
        return [line]
    rank = record.get("rank")
    head = line[:begin] + f"{time} " * bool(time) + f"[rank{rank}]: " * isinstance(rank, int)
    lines = "\n".join(texts).splitlines() or [""]
    if level and not lines[0].startswith("Traceback "):
        lines[0] = f"{level.upper()} {lines[0]}"
    return [text_of(f"{head}{text}".encode("utf-8", "replace")) for text in lines]


def chunks(path: Path, troubles: list[str]) -> Iterator[tuple[list[bytes], bytes]]:
    """Yield a file's lines, some thousands at a time, and their ends; `-` is standard input.

    The ends are a byte for each line: a carriage return, or a line feed, which may be left out
    after the last carriage return.

    A huge line is one line, cut. UsageError if the file cannot be opened. Later errors (a gzip file
    cut short) are added to `troubles`, and the text before them counts. A file that is mostly no
    text is added, too.
    """
    tail, ends, counted, odd = b"", b"", 0, 0
    for block in blocks(path, troubles):
        sample = block[:_COUNTED].replace(b"\0", b"")
        counted += len(sample)
        odd += len(sample) - len(sample.translate(None, _NO_TEXT))
        text = tail + block
        # A line feed may follow a carriage return at the end.
        end = max(text.rfind(b"\n"), text.rfind(b"\r", 0, -1)) + 1
        every, breaks = _split(_plain(text[:end]))
        ends += breaks[len(ends) :]  # the first lines are those read again, joined by line feeds
        lines, again = _unframed(every[:-1])
        rest = text[end:]
        if len(rest) > _HUGE:
            rest = rest[:LONGEST] + rest[-LONGEST:]
        tail = b"".join(line + b"\n" for line in again) + rest
        if len(lines) * LONGEST < len(text):
            lines = [_cut(line) for line in lines]
        yield _whole(lines), ends[: len(lines)]
        ends = ends[len(lines) :]
    if tail:
        lines, again = _unframed(_split(_plain(tail.removesuffix(b"\r")))[0])
        yield [_cut(line) for line in (*lines, *again)], ends
    if odd > _BINARY * counted:
        troubles.append(f"{path}: could not be read as text")


def _plain(text: bytes) -> bytes:
    """Take out the escapes, which may split a word."""
    return _ESCAPES.sub(b"", text) if any(mark in text for mark in _BEGIN_ESCAPES) else text


def _unframed(lines: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Undo JSON, and join parts of lines; what was joined leaves an empty line.

    Returns the lines, and those from an unfinished one on, to be read again with what follows.
    """
    if any(line.startswith(b'{"') for line in lines[:_FIRST]):
        lines = [_undockered(line) if line.startswith(b'{"') else line for line in lines]
    parts: dict[bytes, list[tuple[int, int]]] = {}
    if any(map(_FRAME.match, lines[:_FIRST])) and any(b" P " in line for line in lines):
        for number, line in enumerate(lines):
            if (match := _FRAME.match(line)) is None:
                continue
            stream, kind = match.groups()
            parts.setdefault(stream, []).append((number, match.end()))
            if kind == b"F":
                (first, _), *rest = parts.pop(stream)
                lines[first] += b"".join(lines[at][begin:] for at, begin in rest)
                for at, _ in rest:
                    lines[at] = b""
    unfinished = min((part[0][0] for part in parts.values()), default=len(lines))
    if sum(map(len, lines[unfinished:])) > _HUGE:
        return lines, []
    return lines[:unfinished], lines[unfinished:]


def _undockered(line: bytes) -> bytes:
    """The line in CRI's form."""
    try:
        record = _DOCKER_LINE.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return line
    kind = "F" if record.log.endswith("\n") else "P"
    log = record.log.strip("\r\n").replace("\n", " ")
    return f"{record.time} {record.stream} {kind} {log}".encode("utf-8", "replace")


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
    if all(line[:1] in b"#" for line in lines[:_SAMPLE]):  # a person's notes of a failure
        lines = [line.lstrip(b"# ") for line in lines]
    lengths = list(map(len, lines))
    longest = max(lengths, default=0)
    if not _NARROW <= longest <= _WIDE or lengths.count(longest) < _SOME:
        return lines
    after = set(compress(range(1, len(lines)), map(longest.__eq__, lengths)))
    rests = _unknown_beginnings(lines, after)
    if len(after) < _SOME or not rests:
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


def _unknown_beginnings(lines: list[bytes], numbers: set[int]) -> list[int]:
    """Those of these lines that begin as no known message; none if half of them do."""
    rests = list[int]()
    for checked, number in enumerate(numbers, 1):
        if not _BEGINS.match(lines[number]):
            rests.append(number)
        if 2 * (checked - len(rests)) >= len(numbers):
            return []
    return rests


_DIGITS = bytes.maketrans(b"123456789", b"000000000")


def _head(line: bytes) -> bytes:
    return line[:_HEAD].translate(_DIGITS)


def text_of(line: bytes) -> str:
    """A line as text that a terminal and a report can show: no control characters."""
    text = _cut(line).decode("utf-8", "replace").rstrip()
    if not text.isprintable():
        text = "".join(char for char in text.replace("\t", " ") if char.isprintable())
    return cut_long_numbers(text)


def _cut(line: bytes) -> bytes:
    if len(line) <= LONGEST:
        return line
    half = LONGEST // 2
    return line[:half] + b" ... " + line[5 - half :]


def _split(block: bytes) -> tuple[list[bytes], bytes]:
    """The lines, and their ends if there is any carriage return: progress bars use it."""
    if b"\r" not in block:
        return block.split(b"\n"), b""
    block = block.replace(b"\r\n", b"\n")
    return block.replace(b"\r", b"\n").split(b"\n"), block.translate(None, _NO_BREAKS)
