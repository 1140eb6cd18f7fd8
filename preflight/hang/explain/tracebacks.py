"""Follows Python's tracebacks in the lines of a log: what was raised, where, and by which rank.

Those of several ranks may be woven into each other, cut, or quoted by another text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.hang.explain.explanation import Place, Speaker
from preflight.hang.explain.failure_words import TRIED_AGAIN
from preflight.hang.explain.origin import time_of

if TYPE_CHECKING:
    from preflight.hang.explain.origin import Line


_MOST_EXCEPTIONS = 200
"""Limit of stored tracebacks."""
_LONGEST_MESSAGE, _LONGEST_SOURCE = 300, 120
"""Characters of a message, and of a line of code."""
WOVEN_LINES = 2000
"""Lines, of all ranks, over which a traceback or a symptom of several lines may be woven."""
_QUOTES = re.compile(r"(.*\S)\s{0,20}Traceback \(most recent call last\):$")
"""A line whose end begins the traceback that it quotes."""
_ANNOUNCES_IGNORED = re.compile(
    r"^(?:Exception ignored (?:in|while)\b|Error in atexit\._run_exitfuncs)|--- Logging error ---$"
)
"""Python prints such an exception and goes on: in `__del__`, when it ends."""
_ANNOUNCES_TASK = re.compile(
    r"Task exception was never retrieved|Exception in (?:ASGI application|thread )"
    r"|\bUncaught exception (?:GET|HEAD|POST|PUT|PATCH|DELETE) "  # tornado's, as of Jupyter
)
"""Announces the exception of one task, of one request, or of a thread beside the main one."""
_SPAWNED_PROCESS = re.compile(r"-- Process (\d{1,6}) terminated with the following error:")
"""Stands before the traceback of a process that torch.multiprocessing started."""
ANNOUNCEMENTS = (
    *(b"--- Logging error", b"Exception ignored", b"Error in atexit", b"never retrieved"),
    b"alling back",
    *(b"Exception in ", b"During handling", b"The above exception"),
)
"""In lines that say what the next traceback is."""
_OF_OTHER_RANK = re.compile(r"\(most recent call last\): \(RANK (\d{1,6})\)")
"""Begins the traceback of another rank, which torch.distributed.checkpoint gathers."""
_OF_PYDANTIC = re.compile(r"\d+ validation errors? for \S+$")
"""A message of pydantic, whose next line names a field."""
_OF_YAML = re.compile(r"while (?:constructing|parsing|scanning) [^:]{1,80}(?: in \".{1,250})?$")
"""A message of a YAML parser, whose reason is in the next line."""
_OF_KERAS = re.compile(r"Exception encountered when calling \S{1,80}$")
"""A message of Keras, whose reason is in a later line."""
_HAS_DETAILS = re.compile(
    rf":$|error\(s\) found\.$|^{_OF_KERAS.pattern}|^{_OF_PYDANTIC.pattern}|^{_OF_YAML.pattern}"
)
"""A message that the next line continues."""
_CONTINUATION = re.compile(r"\s|\(\d|\w{0,60}(?:Error|Exception): ")
"""Begins a line that belongs to the message before it."""
_PYDANTIC_FIELD = re.compile(r"[a-z][\w.-]{1,80}(?:\[\w{1,60}\])?$")
"""The line after a message of pydantic."""
_FIRST_WORDS = re.compile(r"(?!srun|slurm|wandb|\[|[A-Z]\d{4} |Traceback|File )[A-Za-z]")
"""Begins the message of an exception that begins in the line after its kind."""
_YAML_REASON = re.compile(r"\s|found |expected |could not ")
"""Begins the line after a message of a YAML parser, which has its reason."""
_FALLS_BACK = re.compile(r"(?i)\bfalling back (?:to|on)\b")
"""In the line after an exception that its program may have caught."""
_NO_FALLBACK = re.compile(r"(?i)\b(?:cannot|not|no|nothing|suppress)\b")
"""In such a line if nothing was caught: advice, or a fallback that is impossible."""
_TOOL_FILE = re.compile(r"/site-packages/(?:pip|setuptools|pkg_resources|conda)/")
_OPTIONAL_LIBRARY = "bitsandbytes/cextension.py"
"""The outermost frame of an exception that is caught and printed there, if it is this file."""
_ERROR_LEVEL = re.compile(r"[EC](?<!\w.)(?:RROR|RITICAL)\b")
"""A logged error, whose traceback follows without the logger's prefix."""
_CHAINS = re.compile(r"During handling of the above exception|The above exception was the dir")
_AT_EXIT = re.compile(r"_run_exitfuncs|_exit_function|_run_finalizers|__del__")
"""Functions that Python calls when a process ends: their exceptions end nothing."""
_FRAME = re.compile(
    r'^[\s`]*File "(?P<file>[^"]{1,400})", line (?P<line>\d+)(?:, in (?P<code>.{1,80}))?'
)
_LAST_LINE = re.compile(
    r"^ {0,2}(?P<kind>(?:[A-Za-z_][\w.]{0,120}"
    r"(?:Error|Exception|Interrupt|Iteration|Exit|Timeout|Warning)|Exception)"
    r"|[a-z_](?:\w|\.|<locals>)*\.[A-Z]\w{2,60}|[a-z]\w{0,30}\.error)(?::\s*(?P<message>.*))?$"
)
ENDINGS = (b"Error", b"Exception", b"StopIteration", b"Interrupt")
"""Names of exceptions end with these."""
_NEAR_LINES = 4
"""Lines of code and marks between two frames, and between the last one and the exception."""
_BLANK = 2
"""Lines, one of them empty, from a message that ends in a colon to the traceback that it quotes."""
_SYNTAX_ERRORS = frozenset(("SyntaxError", "IndentationError", "TabError"))
"""Python prints these without the first line of a traceback, and without the frame's function."""
_LAST_LINE_ALONE = re.compile(
    r"^(?P<kind>(?:[a-zA-Z_]\w{0,40}\.){0,6}(?:[A-Z]\w{0,60}(?:Error|Exception|Interrupt)"
    r"|StopIteration))(?:: (?P<message>.*))?$"
)
_LIBRARY_FILE = re.compile(
    r"(?:site|dist)-packages|/lib/python3|<frozen|/torch/distributed/|/bin/(?:torchrun|accelerate|deepspeed)$"
    r"|\.p(?:xi|yx)$"
)


class LoggedException(Struct, frozen=True, kw_only=True):
    """One uncaught exception."""

    kind: str
    message: str
    file: str
    """The file of the innermost frame outside libraries; "" if there is none."""
    line: int
    code: str
    source: str
    """That line of code, as the traceback shows it."""
    script: str
    """The started script, if the outermost frame shows it; otherwise ""."""
    speaker: Speaker
    place: Place
    began: int
    """The line in which its traceback begins."""
    time: float | None
    order: int
    cut: bool = False
    """Only its last line is there."""
    chained: bool = False
    """It was raised while another was handled."""
    handled: bool = False
    """It is no consequence of that, as far as Python knows."""
    headless: bool = False
    """The beginning of its traceback is cut off, which may say that the process goes on."""
    loose: bool = False
    """It ended one task, request or thread, or may have been caught: the process goes on."""
    is_of_tool: bool = False
    """It was raised by pip or the like."""


_Key = tuple[int | None, str]
"""The rank that writes a traceback, and its launcher's label."""


class _Traceback:
    """A traceback that has begun and not ended."""

    def __init__(self, speaker: Speaker, line: Line, number: int, *, ignored: bool = False) -> None:
        self.speaker = speaker
        self.number = number
        self.time = time_of(line.text, line.when)
        self.own_frame: tuple[str, int, str] = ("", 0, "")
        """The last frame outside libraries: file, line, function."""
        self.source = ""
        self.awaits_source = False
        self.is_of_tool = False
        self.script = ""
        self.cut = self.has_frames = False
        self.chained = self.handled = False
        self.ignored = ignored
        self.loose = False
        self.indent = line.bare[: len(line.bare) - len(line.bare.lstrip())]
        """What stands before each line of a traceback that a text quotes."""
        self.latest = 0
        """The line of its last frame, if its beginning is cut off; otherwise 0."""
        self.is_of_syntax = False
        """Whether only a SyntaxError has such a frame: it names no function."""

    def take(self, frame: re.Match[str]) -> None:
        """Take a frame."""
        self.ignored |= _AT_EXIT.fullmatch(frame["code"] or "") is not None
        is_first, self.has_frames = not self.has_frames, True
        self.ignored |= is_first and frame["file"].endswith(_OPTIONAL_LIBRARY)
        self.is_of_tool |= _TOOL_FILE.search(frame["file"]) is not None
        self.awaits_source = not _LIBRARY_FILE.search(frame["file"])
        if self.awaits_source:
            outermost = not self.own_frame[0] and (frame["code"] == "<module>" or self.is_of_syntax)
            if outermost and frame["file"].endswith(".py"):
                self.script = frame["file"]
            self.own_frame = (frame["file"], int(frame["line"]), frame["code"] or "")
            self.source = ""

    def take_source(self, line: Line) -> None:
        """Take the line of code below a frame."""
        if self.awaits_source:
            self.source, self.awaits_source = line.bare.strip()[:_LONGEST_SOURCE], False

    def ends_before(self, line: Line, number: int) -> bool:
        """Whether lines whose beginning is cut off are no traceback: other lines follow a frame."""
        return 0 < self.latest < number - _NEAR_LINES or (
            self.latest > 0 and line.bare[:1] not in " `" and not _LAST_LINE.match(line.bare)
        )


class Tracebacks:
    """Follows the tracebacks of one file, of several ranks at a time."""

    def __init__(self, whose: Speaker) -> None:
        self._file_speaker = whose
        self._open_ones: dict[_Key, _Traceback] = {}
        self._next_ignored: set[_Key] = set()
        """Whose next traceback is of an exception that Python ignored."""
        self._next_chained: dict[_Key, bool] = {}
        """Whose next traceback is of an exception that was raised while another was handled."""
        self._announced_speaker: tuple[int, Speaker] = (0, Speaker())
        """The line before a traceback without a rank, and the speaker that it shows."""
        self._task_exceptions: set[tuple[str, str, int]] = set()
        """The kind, file and line of exceptions of a task or a request."""
        self._task_line = -_NEAR_LINES
        """The last line that announces the exception of one task, or one request."""
        self.exceptions: list[LoggedException] = []
        self._line_after: tuple[int, Speaker] = (0, Speaker())
        """The line after the last exception, and its speaker; 0 once that line is read."""
        self._message_may_continue = False
        """Whether that line may continue the message."""

    @property
    def is_open(self) -> bool:
        """Whether a traceback, or its message, has begun and not ended."""
        return bool(self._open_ones or self._message_may_continue)

    @property
    def awaited(self) -> bool:
        """Whether a line has announced the next traceback."""
        return bool(self._next_ignored or self._next_chained)

    def end(self) -> None:
        """Forget what has begun: the file ends."""
        self._open_ones.clear()
        self._line_after, self._message_may_continue = (0, Speaker()), False

    def rejects(self, order: int) -> None:
        """Note that a server rejected a request: the exception right before ended only that."""
        if self.exceptions and order - self.exceptions[-1].order <= _BLANK:
            self.exceptions[-1] = replace(self.exceptions[-1], loose=True)

    def feed(self, line: Line, place: Place, order: int) -> bool:
        """Take the next line of the file; whether it is of an exception that Python ignored."""
        first = next(iter(self._open_ones), None)
        if first is not None and place.line - self._open_ones[first].number > WOVEN_LINES:
            del self._open_ones[first]
        self._task_line = place.line if _ANNOUNCES_TASK.search(line.bare) else self._task_line
        speaker = line.speaker.joined(self._file_speaker)
        key = speaker.rank, speaker.label
        self._read_after(line, speaker, place)
        if "Traceback (most" in line.text and self._begin(key, speaker, line, place, order):
            return self._open_ones[key].ignored
        traceback = self._open_ones.get(key)
        if traceback is not None and traceback.ends_before(line, place.line):
            traceback = None
            del self._open_ones[key]
        frame = _FRAME.match(line.bare)
        if traceback is None and frame is not None:
            traceback = self._open_ones[key] = _Traceback(speaker, line, place.line)
            traceback.latest, traceback.is_of_syntax = place.line, not frame["code"]
        if traceback is None:
            return self._outside(key, line, place, order)
        if frame is not None:
            traceback.take(frame)
            traceback.latest = traceback.latest and place.line
        elif ends := _LAST_LINE.match(line.bare.removeprefix(traceback.indent)):
            del self._open_ones[key]
            is_script = traceback.own_frame[0].endswith(".py") and ends["kind"] in _SYNTAX_ERRORS
            if traceback.is_of_syntax and not is_script:
                return self._outside(key, line, place, order)
            self._end(traceback, ends, place, order)
        else:
            traceback.take_source(line)
        return traceback.ignored

    def _begin(self, key: _Key, speaker: Speaker, line: Line, place: Place, order: int) -> bool:
        """Begin a traceback, of which the lines before it may say what it is.

        Whether the message of the exception that ends in this line quotes it.
        """
        last, ignored = self._open_ones.get(key), key in self._next_ignored
        quote = _QUOTES.match(line.bare) if last else None
        ends = _LAST_LINE.match(quote[1]) if quote else None
        if last is not None and ends:
            self._end(last, ends, place, order)
            ignored = last.ignored
        self._open_ones.pop(key, None)
        whose = speaker
        if speaker.rank is None and place.line == self._announced_speaker[0] + 1:
            whose = self._announced_speaker[1].joined(speaker)
        elif gathered := _OF_OTHER_RANK.search(line.text):
            whose = Speaker(rank=int(gathered[1]))
        traceback = _Traceback(whose, line, place.line, ignored=ignored)
        traceback.chained = key in self._next_chained
        traceback.handled = self._next_chained.pop(key, False)
        traceback.loose = place.line - self._task_line <= _BLANK
        if (ends and not ignored) or self._quotes_the_next(line, speaker, place):
            outer = self.exceptions.pop()  # of a worker or a thread; what follows has its cause
            self._line_after = 0, Speaker()
            traceback.script, traceback.number = outer.script, outer.began
        self._open_ones[key] = traceback
        self._next_ignored.discard(key)
        return ends is not None

    def _read_after(self, line: Line, speaker: Speaker, place: Place) -> None:
        """Read the line after an exception: it may continue the message, or report a catch."""
        may_continue, self._message_may_continue = self._message_may_continue, False
        if (place.line, speaker) != self._line_after:
            return
        self._line_after = 0, Speaker()
        last = self.exceptions[-1]
        if may_continue and not line.bare.strip() and place.line - last.place.line <= _BLANK:
            self._line_after, self._message_may_continue = (place.line + 1, speaker), True
        elif _FALLS_BACK.search(line.bare) and not _NO_FALLBACK.search(line.bare):
            self.exceptions[-1] = replace(last, loose=True)
        elif may_continue and _details_of(last.message).match(line.bare):
            message = f"{last.message} {line.bare.strip()}".lstrip()[:_LONGEST_MESSAGE]
            self._end_at(place.line, replace(last, message=message))

    def _end_at(self, line: int, exception: LoggedException) -> None:
        """Store the last exception, which ends in this line as far as it is read."""
        self.exceptions[-1] = exception
        self._line_after = line + 1, exception.speaker
        self._message_may_continue = _HAS_DETAILS.search(exception.message) is not None

    def _quotes_the_next(self, line: Line, speaker: Speaker, place: Place) -> bool:
        """Whether the traceback that begins here is in the message of the last exception."""
        if not self.exceptions or (last := self.exceptions[-1]).speaker != speaker:
            return False
        after, quoted = place.line - last.place.line, "Original Traceback" in line.text
        most = _NEAR_LINES if last.message.endswith("in a subprocess:") else _BLANK
        return (quoted and after == 1) or (last.message.endswith(":") and after <= most)

    def _outside(self, key: _Key, line: Line, place: Place, order: int) -> bool:
        """Take a line of no traceback: an end whose beginning is cut off (`KeyError: 'x'`)."""
        if spawned := _SPAWNED_PROCESS.match(line.bare):
            self._announced_speaker = place.line, Speaker(rank=int(spawned[1]))
        elif _ERROR_LEVEL.search(line.text):
            self._announced_speaker = place.line, line.speaker.joined(self._file_speaker)
        if ignored := bool(_ANNOUNCES_IGNORED.search(line.bare)):
            self._next_ignored.add(key)
        elif _CHAINS.match(line.bare):
            self._next_chained[key] = line.bare.startswith("During")
        elif (ends := _LAST_LINE_ALONE.match(line.bare)) and not TRIED_AGAIN.search(line.bare):
            traceback = _Traceback(line.speaker.joined(self._file_speaker), line, place.line)
            traceback.cut = True
            traceback.loose = place.line - self._task_line <= _BLANK
            self._end(traceback, ends, place, order)
        return ignored

    def _end(self, traceback: _Traceback, ends: re.Match[str], place: Place, order: int) -> None:
        if traceback.ignored:
            return
        if len(self.exceptions) >= _MOST_EXCEPTIONS:
            del self.exceptions[_MOST_EXCEPTIONS // 2]
        (file, line, code), kind = traceback.own_frame, ends["kind"].rpartition(".")[2]
        if traceback.loose:  # the next ones may not be announced: repeated lines are not read
            self._task_exceptions.add((kind, file, line))
        self.exceptions.append(
            LoggedException(
                kind=kind,
                message=(ends["message"] or "")[:_LONGEST_MESSAGE],
                file=file,
                line=line,
                code=code,
                source=traceback.source,
                script=traceback.script,
                speaker=traceback.speaker,
                place=place,
                began=traceback.number,
                time=traceback.time or time_of(place.text),
                order=order,
                cut=traceback.cut,
                chained=traceback.chained,
                handled=traceback.handled,
                headless=traceback.latest > 0 and not traceback.is_of_syntax,
                loose=(kind, file, line) in self._task_exceptions,
                is_of_tool=traceback.is_of_tool,
            )
        )
        self._end_at(place.line, self.exceptions[-1])
        self._message_may_continue |= ends["message"] == ""


def _details_of(message: str) -> re.Pattern[str]:
    """Match the line that continues this message."""
    if not message or _OF_KERAS.match(message):
        return _FIRST_WORDS
    if _OF_PYDANTIC.match(message):
        return _PYDANTIC_FIELD
    return _YAML_REASON if _OF_YAML.match(message) else _CONTINUATION
