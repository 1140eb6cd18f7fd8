"""Finds Python exceptions in a log: which of them ended a rank, which rank, and where.

Tracebacks are followed line by line; torchrun's summary names the rank of one without a prefix.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.files import parse_toml
from preflight.hang.explain.explanation import (
    Explanation,
    Hit,
    Place,
    Speaker,
    names,
    proofs,
    rank_words,
)
from preflight.hang.explain.failure_words import TRIED_AGAIN
from preflight.hang.explain.origin import time_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from preflight.hang.explain.origin import Line


_MOST = 200
"""Limit of stored tracebacks."""
_LONGEST_MESSAGE, _LONGEST_SOURCE = 300, 120
"""Characters of a message, and of a line of code."""
FAR = 2000
"""Lines, of all ranks, over which a traceback or a symptom of several lines may be woven."""
_IGNORED = re.compile(
    r"^(?:Exception ignored (?:in|while)\b|Error in atexit\._run_exitfuncs)|--- Logging error ---$"
)
"""Python prints such an exception and goes on: in `__del__`, when it ends."""
_LOOSE = re.compile(
    r"Task exception was never retrieved|Exception in (?:ASGI application|thread )"
    r"|\bUncaught exception (?:GET|HEAD|POST|PUT|PATCH|DELETE) "  # tornado's, as of Jupyter
)
"""Announces the exception of one task, of one request, or of a thread beside the main one."""
_OF_SPAWNED = re.compile(r"-- Process (\d{1,6}) terminated with the following error:")
"""Stands before the traceback of a process that torch.multiprocessing started."""
ANNOUNCES = (
    *(b"--- Logging error", b"Exception ignored", b"Error in atexit", b"never retrieved"),
    b"alling back",
    *(b"Exception in ", b"During handling", b"The above exception"),
)
"""In lines that say what the next traceback is."""
_GATHERED = re.compile(r"\(most recent call last\): \(RANK (\d{1,6})\)")
"""Begins the traceback of another rank, which torch.distributed.checkpoint gathers."""
_OF_FIELDS = re.compile(r"\d+ validation errors? for \S+$")
"""A message of pydantic, whose next line names a field."""
_OF_YAML = re.compile(r"while (?:constructing|parsing|scanning) [^:]{1,80}(?: in \".{1,250})?$")
_WRAPPER = re.compile(r"Exception encountered when calling \S{1,80}$")
"""A message of Keras, whose reason is in a later line."""
_HAS_DETAILS = re.compile(
    rf":$|error\(s\) found\.$|^{_WRAPPER.pattern}|^{_OF_FIELDS.pattern}|^{_OF_YAML.pattern}"
)
"""A message that the next line continues."""
_GOES_ON = re.compile(r"\s|\(\d|\w{0,60}(?:Error|Exception): ")
"""Begins a line that belongs to the message before it."""
_FIELD = re.compile(r"[a-z][\w.-]{1,80}(?:\[\w{1,60}\])?$")
_FIRST_WORDS = re.compile(r"(?!srun|slurm|wandb|\[|[A-Z]\d{4} |Traceback|File )[A-Za-z]")
"""Begins the message of an exception that begins in the line after its kind."""
_WHY_NOT_YAML = re.compile(r"\s|found |expected |could not ")
"""What the next lines of these two messages begin with."""
_CAUGHT = re.compile(r"(?i)\bfalling back (?:to|on)\b")
"""In the line after an exception that its program may have caught."""
_NOT_CAUGHT = re.compile(r"(?i)\b(?:cannot|not|no|nothing|suppress)\b")
"""In such a line if nothing was caught: advice, or a fallback that is impossible."""
_TOOLS = re.compile(r"/site-packages/(?:pip|setuptools|pkg_resources|conda)/")
_CAN_DO_WITHOUT = "bitsandbytes/cextension.py"
"""The outermost frame of an exception that is caught and printed there, if it is this file."""
_LOGGED = re.compile(r"[EC](?<!\w.)(?:RROR|RITICAL)\b")
"""A logged error, whose traceback follows without the logger's prefix."""
_HANDLED = re.compile(r"During handling of the above exception|The above exception was the dir")
_AT_EXIT = re.compile(r"_run_exitfuncs|_exit_function|_run_finalizers|__del__")
"""Functions that Python calls when a process ends: their exceptions end nothing."""
_FRAME = re.compile(
    r'^[\s`]*File "(?P<file>[^"]{1,400})", line (?P<line>\d+)(?:, in (?P<code>.{1,80}))?'
)
_ENDS = re.compile(
    r"^ {0,2}(?P<kind>(?:[A-Za-z_][\w.]{0,120}"
    r"(?:Error|Exception|Interrupt|Iteration|Exit|Timeout|Warning)|Exception)"
    r"|[a-z_](?:\w|\.|<locals>)*\.[A-Z]\w{2,60}|[a-z]\w{0,30}\.error)(?::\s*(?P<message>.*))?$"
)
ENDS = (b"Error", b"Exception", b"StopIteration", b"Interrupt")
"""Names of exceptions end with these."""
_NEAR = 4
"""Lines of code and marks between two frames, and between the last one and the exception."""
_BLANK = 2
"""Lines, one of them empty, from a message that ends in a colon to the traceback that it quotes."""
_OF_SYNTAX = frozenset(("SyntaxError", "IndentationError", "TabError"))
"""Python prints these without the first line of a traceback, and without the frame's function."""
_ALONE = re.compile(
    r"^(?P<kind>(?:[a-zA-Z_]\w{0,40}\.){0,6}(?:[A-Z]\w{0,60}(?:Error|Exception|Interrupt)"
    r"|StopIteration))(?:: (?P<message>.*))?$"
)
_LIBRARY = re.compile(
    r"(?:site|dist)-packages|/lib/python3|<frozen|/torch/distributed/|/bin/(?:torchrun|accelerate|deepspeed)$"
    r"|\.p(?:xi|yx)$"
)


_NUMBER = re.compile(r"\d+")


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


class _Running:
    def __init__(self, speaker: Speaker, line: Line, number: int, *, ignored: bool = False) -> None:
        self.speaker = speaker
        self.number = number
        self.time = time_of(line.text, line.when)
        self.own: tuple[str, int, str] = ("", 0, "")
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
        self.ignored |= is_first and frame["file"].endswith(_CAN_DO_WITHOUT)
        self.is_of_tool |= _TOOLS.search(frame["file"]) is not None
        self.awaits_source = not _LIBRARY.search(frame["file"])
        if self.awaits_source:
            outermost = not self.own[0] and (frame["code"] == "<module>" or self.is_of_syntax)
            if outermost and frame["file"].endswith(".py"):
                self.script = frame["file"]
            self.own = (frame["file"], int(frame["line"]), frame["code"] or "")
            self.source = ""

    def take_source(self, line: Line) -> None:
        """Take the line of code below a frame."""
        if self.awaits_source:
            self.source, self.awaits_source = line.bare.strip()[:_LONGEST_SOURCE], False

    def ends_before(self, line: Line, number: int) -> bool:
        """Whether lines whose beginning is cut off are no traceback: other lines follow a frame."""
        return 0 < self.latest < number - _NEAR or (
            self.latest > 0 and line.bare[:1] not in " `" and not _ENDS.match(line.bare)
        )


class Tracebacks:
    """Follows the tracebacks of one file, of several ranks at a time."""

    def __init__(self, whose: Speaker) -> None:
        self._whose = whose
        self._running: dict[tuple[int | None, str], _Running] = {}
        self._ignored: set[tuple[int | None, str]] = set()
        """Whose next traceback is of an exception that Python ignored."""
        self._handled: dict[tuple[int | None, str], bool] = {}
        """Whose next traceback is of an exception that was raised while another was handled."""
        self._announced: tuple[int, Speaker] = (0, Speaker())
        """The line before a traceback without a rank, and the speaker that it shows."""
        self._of_tasks: set[tuple[str, str, int]] = set()
        """The kind and the place of exceptions of a task or a request."""
        self._loose = -_NEAR
        """The last line that announces the exception of one task, or one request."""
        self.exceptions: list[LoggedException] = []
        self._ended: tuple[int, Speaker] = (0, Speaker())
        """The line after the last exception, and its speaker; 0 once that line is read."""
        self._continues = False
        """Whether that line may continue the message."""

    @property
    def open(self) -> bool:
        """Whether a traceback, or its message, has begun and not ended."""
        return bool(self._running or self._continues)

    @property
    def awaited(self) -> bool:
        """Whether a line has announced the next traceback."""
        return bool(self._ignored or self._handled)

    def end(self) -> None:
        """Forget what has begun: the file ends."""
        self._running.clear()
        self._ended, self._continues = (0, Speaker()), False

    def rejects(self, order: int) -> None:
        """Note that a server rejected a request: the exception right before ended only that."""
        if self.exceptions and order - self.exceptions[-1].order <= _BLANK:
            self.exceptions[-1] = replace(self.exceptions[-1], loose=True)

    def feed(self, line: Line, place: Place, order: int) -> bool:
        """Take the next line of the file; whether it is of an exception that Python ignored."""
        first = next(iter(self._running), None)
        if first is not None and place.line - self._running[first].number > FAR:
            del self._running[first]
        self._loose = place.line if _LOOSE.search(line.bare) else self._loose
        speaker = line.speaker.joined(self._whose)
        key = speaker.rank, speaker.label
        self._read_after(line, speaker, place)
        if "Traceback (most" in line.text:
            self._begin(key, speaker, line, place)
        running = self._running.get(key)
        if running is not None and running.ends_before(line, place.line):
            running = None
            del self._running[key]
        frame = _FRAME.match(line.bare)
        if running is None and frame is not None:
            running = self._running[key] = _Running(speaker, line, place.line)
            running.latest, running.is_of_syntax = place.line, not frame["code"]
        if running is None:
            return self._outside(key, line, place, order)
        if frame is not None:
            running.take(frame)
            running.latest = running.latest and place.line
        elif ends := _ENDS.match(line.bare.removeprefix(running.indent)):
            del self._running[key]
            is_script = running.own[0].endswith(".py") and ends["kind"] in _OF_SYNTAX
            if running.is_of_syntax and not is_script:
                return self._outside(key, line, place, order)
            self._end(running, ends, place, order)
        else:
            running.take_source(line)
        return running.ignored

    def _begin(
        self, key: tuple[int | None, str], speaker: Speaker, line: Line, place: Place
    ) -> None:
        """Begin a traceback, of which the lines before it may say what it is."""
        self._running.pop(key, None)
        whose = speaker
        if speaker.rank is None and place.line == self._announced[0] + 1:
            whose = self._announced[1].joined(speaker)
        elif gathered := _GATHERED.search(line.text):
            whose = Speaker(rank=int(gathered[1]))
        self._running[key] = _Running(whose, line, place.line, ignored=key in self._ignored)
        self._running[key].chained = key in self._handled
        self._running[key].handled = self._handled.pop(key, False)
        self._running[key].loose = place.line - self._loose <= _BLANK
        if self._quotes_the_next(line, speaker, place):
            outer = self.exceptions.pop()  # of a worker or a thread; what follows has its cause
            self._ended = 0, Speaker()
            self._running[key].script, self._running[key].number = outer.script, outer.began
        self._ignored.discard(key)

    def _read_after(self, line: Line, speaker: Speaker, place: Place) -> None:
        """Read the line after an exception: it may continue the message, or report a catch."""
        may_continue, self._continues = self._continues, False
        if (place.line, speaker) != self._ended:
            return
        self._ended = 0, Speaker()
        last = self.exceptions[-1]
        if may_continue and not line.bare.strip() and place.line - last.place.line <= _BLANK:
            self._ended, self._continues = (place.line + 1, speaker), True
        elif _CAUGHT.search(line.bare) and not _NOT_CAUGHT.search(line.bare):
            self.exceptions[-1] = replace(last, loose=True)
        elif may_continue and _details_of(last.message).match(line.bare):
            message = f"{last.message} {line.bare.strip()}".lstrip()[:_LONGEST_MESSAGE]
            self._end_at(place.line, replace(last, message=message))

    def _end_at(self, line: int, exception: LoggedException) -> None:
        """Store the last exception, which ends in this line as far as it is read."""
        self.exceptions[-1] = exception
        self._ended = line + 1, exception.speaker
        self._continues = _HAS_DETAILS.search(exception.message) is not None

    def _quotes_the_next(self, line: Line, speaker: Speaker, place: Place) -> bool:
        """Whether the traceback that begins here is in the message of the last exception."""
        if not self.exceptions or (last := self.exceptions[-1]).speaker != speaker:
            return False
        after, quoted = place.line - last.place.line, "Original Traceback" in line.text
        most = _NEAR if last.message.endswith("in a subprocess:") else _BLANK
        return (quoted and after == 1) or (last.message.endswith(":") and after <= most)

    def _outside(self, key: tuple[int | None, str], line: Line, place: Place, order: int) -> bool:
        """Take a line of no traceback: an end whose beginning is cut off (`KeyError: 'x'`)."""
        if spawned := _OF_SPAWNED.match(line.bare):
            self._announced = place.line, Speaker(rank=int(spawned[1]))
        elif _LOGGED.search(line.text):
            self._announced = place.line, line.speaker.joined(self._whose)
        if ignored := bool(_IGNORED.search(line.bare)):
            self._ignored.add(key)
        elif _HANDLED.match(line.bare):
            self._handled[key] = line.bare.startswith("During")
        elif (ends := _ALONE.match(line.bare)) and not TRIED_AGAIN.search(line.bare):
            running = _Running(line.speaker.joined(self._whose), line, place.line)
            running.cut = True
            running.loose = place.line - self._loose <= _BLANK
            self._end(running, ends, place, order)
        return ignored

    def _end(self, running: _Running, ends: re.Match[str], place: Place, order: int) -> None:
        if running.ignored:
            return
        if len(self.exceptions) >= _MOST:
            del self.exceptions[_MOST // 2]
        (file, line, code), kind = running.own, ends["kind"].rpartition(".")[2]
        if running.loose:  # the next ones may not be announced: repeated lines are not read
            self._of_tasks.add((kind, file, line))
        self.exceptions.append(
            LoggedException(
                kind=kind,
                message=(ends["message"] or "")[:_LONGEST_MESSAGE],
                file=file,
                line=line,
                code=code,
                source=running.source,
                script=running.script,
                speaker=running.speaker,
                place=place,
                began=running.number,
                time=running.time or time_of(place.text),
                order=order,
                cut=running.cut,
                chained=running.chained,
                handled=running.handled,
                headless=running.latest > 0 and not running.is_of_syntax,
                loose=(kind, file, line) in self._of_tasks,
                is_of_tool=running.is_of_tool,
            )
        )
        self._end_at(place.line, self.exceptions[-1])
        self._continues |= ends["message"] == ""


def _details_of(message: str) -> re.Pattern[str]:
    """Match the line that continues this message."""
    if not message or _WRAPPER.match(message):
        return _FIRST_WORDS
    if _OF_FIELDS.match(message):
        return _FIELD
    return _WHY_NOT_YAML if _OF_YAML.match(message) else _GOES_ON


_T = TypeVar("_T", Hit, LoggedException)


def in_order_of_time(some: Iterable[_T]) -> list[_T]:
    """In order of their own times if all have one, otherwise in order of reading."""
    every = sorted(some, key=lambda failure: failure.order)
    if all(failure.time is not None for failure in every):
        every.sort(key=lambda failure: failure.time or 0)
    return every


ECHOES = frozenset((
    "ChildFailedError", "DistBackendError", "DistStoreError", "DistNetworkError",
    "RendezvousTimeoutError", "RendezvousConnectionError", "RendezvousClosedError",
    "ProcessRaisedException", "ProcessExitedException", "SignalException", "CalledProcessError",
    "SystemExit", "KeyboardInterrupt", "BrokenPipeError", "ConnectionResetError", "EOFError",
    "RayActorError", "ActorDiedError", "ActorUnavailableError", "WorkerCrashedError",
    "NodeDiedError", "ObjectLostError", "OwnerDiedError", "RayGetError", "HorovodInternalError",
    "GetTimeoutError", "WorkerGroupError", "SockClientClosedError", "MessageRouterClosedError",
    "CancelledError", "CondaError", "CommandNotFoundError", "KilledWorker", "Py4JJavaError",
    "MetadataFetchFailedException", "FetchFailedException", "CommandException",
    "BucketNotFoundException", "SIGTERMException", "CellExecutionError",
))  # fmt: skip
"""Exceptions that report the end of another process, or that have their own symptoms."""
LAUNCHERS = frozenset(("ChildFailedError", "SignalException", "CalledProcessError"))
_WRAPS = re.compile(
    r"NCCL (?:[Ee]rror|communicator was aborted)|nccl\w{0,60}Error|unhandled (?:system|cuda) error"
    r"|Timed out waiting \d+ms for (?:recv|send)|[Cc]onnection (?:closed|reset)\b|[Bb]roken pipe"
    r"|received errors while waiting for send/recv"  # of gloo's monitored_barrier
    r"|Socket Timeout|Application timeout caused pair closure|worker process.{0,40}(?:died|exited)"
    r"|\bconnect \[[^\]\s]{1,60}\]:\d{1,5}: Connection refused"
    r"|^cancelled$|Horovod has been shut down|[Ss]ee (?:root cause|stack trace)\b"
    r"|^`Termination signal` is detected|failed to get register_center"  # of Paddle, of verl
    r"|failed to start \d{1,4} times in a row"  # of Ray Serve
    r"|ACL stream synchronize failed"  # of HCCL
    r"|^ExecuteUserScriptError:|^CheckpointException ranks:"  # of SageMaker, of torch
    r"|exited is killed by signal: Terminated"  # of Paddle's loader
    r"|^'MessageFactory' object has no attribute 'GetPrototype'"  # TensorFlow goes on
)
"""Messages of exceptions that only pass on a library's error: the cause is elsewhere."""
_OF_SPAWN = "<string>"
"""Where a process that multiprocessing spawned cannot read what its parent, which ended, sends."""
_EMPTY = "Ran out of input"
"""Of pickle: a file is empty, or the parent of a spawned process ended."""
_OTHER_NUMPY = "module compiled against API version"
"""Begins a message that NumPy prints without a traceback: it goes on, or an import fails then."""
_NO_INPUT = "EOF when reading a line"
"""Python's EOFError where a script asks its terminal; others report the end of a process."""


def own_faults(
    exceptions: Sequence[LoggedException], survived: dict[int, int]
) -> list[LoggedException]:
    """Exceptions that ended their rank and are no echo of another rank's end."""
    return [
        error
        for error in exceptions
        if (error.kind not in ECHOES or error.message in (_NO_INPUT, _EMPTY))
        and not _WRAPS.search(error.message)
        and not (
            (error.kind == "UnpicklingError" or error.message == _EMPTY)
            and (error.cut or error.file == _OF_SPAWN)
        )
        and not (error.cut and error.message.startswith(_OTHER_NUMPY))
        and not _is_handled_import(error, exceptions)
        and error.order >= survived.get(-1 if error.speaker.rank is None else error.speaker.rank, 0)
    ]


def _is_handled_import(error: LoggedException, exceptions: Sequence[LoggedException]) -> bool:
    """Whether a script did without a library, and something else was raised in another file."""
    if error.kind not in IMPORTS:
        return False
    last = _end_of_chain(error, exceptions)
    elsewhere = last.handled and last.file != error.file
    return elsewhere and last.kind not in IMPORTS and "import" not in last.message.lower()


IMPORTS = ("ImportError", "ModuleNotFoundError")
"""What a script may catch where it can do without a library."""
_ADVICE = Path(__file__).resolve().with_name("exception_advice.toml")


@cache
def _advice_by_pattern() -> list[tuple[re.Pattern[str], str]]:
    rows = parse_toml(_ADVICE.read_text())["row"]
    return [(re.compile(row["matches"]), row["advice"]) for row in rows]


def _advice_for(error: LoggedException) -> str:
    words = f"{error.kind}: {error.message}"
    return next((advice for kinds, advice in _advice_by_pattern() if kinds.match(words)), "")


_CORRECT = "correct the code, or the setting, that leads to that line"
_ALL_ALIKE = "; these ranks fail alike, so that it is not one node's fault"
_UNDECIDED = "; but torchrun's summaries do not show which node's exception came first"


def without_caught_imports(exceptions: Sequence[LoggedException]) -> list[LoggedException]:
    """Leave out imports that failed before another exception of the same process ended it.

    And those of a tool beside the ranks, if a rank raised another exception later. One that led to
    another exception was not caught.
    """
    later = [error for error in exceptions if error.kind not in IMPORTS and not error.chained]
    causes = {
        error.order
        for error, other in pairwise(exceptions)
        if other.kind not in IMPORTS and _is_raised_while_handling(other, error)
    }
    return [
        error
        for error in exceptions
        if error.kind not in IMPORTS
        or error.order in causes
        or not any(
            other.order > error.order
            and (
                other.speaker == error.speaker
                or (error.speaker.rank is None and other.speaker.rank is not None)
            )
            for other in later
        )
    ]


def errors_of_last_start(errors: Sequence[LoggedException]) -> list[LoggedException]:
    """Those of the last start, if one script without ranks ended by one exception after another."""
    if {error.speaker for error in errors} != {Speaker()}:
        return [*errors]
    every, seen, scripts, start = in_order_of_time(errors), set(), {""}, 0
    for at, error in enumerate(every):
        is_new = _alike(error) not in seen and not error.chained and not error.cut
        if is_new and len(scripts) > 1 and error.script in scripts:
            start = at
        seen.add(_alike(error))
        scripts.add(error.script)
    return every[start:]


def explain_exceptions(
    exceptions: Sequence[LoggedException], roots: Collection[int | None], ended: Collection[int]
) -> Explanation:
    """The explanation for exceptions: the first rank that raised one ended the others.

    `roots`: ranks that torchrun names as the first to fail on their nodes; `ended`: those that a
    launcher saw end as by an exception.
    """
    of_roots = [error for error in exceptions if error.speaker.rank in roots]
    candidates = in_order_of_time(of_roots or exceptions)
    first = candidates[0]
    same = [error for error in exceptions if _alike(error) == _alike(first)]
    undecided = len(roots) > 1 and any(error not in same for error in candidates)
    ranks = sorted({error.speaker.rank for error in same if error.speaker.rank is not None})
    if not ranks and len(ended) > 1 and 1 < len(same) == len(exceptions):
        ranks = sorted(ended)
    place = f" at {first.file}:{first.line}" if first.file else ""
    code = f" ({first.code})" if first.code else ""
    subject = first.speaker.words or "a rank"
    waited = len(ranks) == 1 and all(error.speaker.rank in (None, *ranks) for error in exceptions)
    who = names(first.speaker)
    if len(ranks) > 1:
        subject = rank_words(ranks)
        who = tuple(f"rank {rank}" for rank in ranks[:16])
    message = f": {first.message or first.source}" if first.message or first.source else ""
    last = _end_of_chain(first, exceptions)
    leads = (last.kind, last.message) != (first.kind, first.message)
    led_to = f"; that led to {last.kind}: {last.message}" if leads else ""
    if first.cut and not ranks:
        return Explanation(
            category="other" if message else "unknown",
            sentence=f"{first.kind}{message} is the first error; its traceback is not there",
            cause="what its message reports, unless lines before it, which are missing, show more",
            advice=_advice_for(first)
            or "correct what it reports; if that is not enough, give the lines before it",
            next="preflight lint SCRIPT",
            evidence=proofs(error.place for error in [first, *same, *exceptions]),
            confidence=0.5 if message else 0.4,
        )
    return Explanation(
        category="other",
        culprits=who,
        sentence=f"{subject} raised {first.kind}{message}{place}{code}{led_to}"
        + _UNDECIDED * undecided,
        cause="an exception in the script or in a library; later errors of other ranks are echoes",
        advice=(_advice_for(last) or _advice_for(first) or _CORRECT)
        + "; the other ranks only waited for this one" * waited
        + _ALL_ALIKE * (len(ranks) > 1),
        next=with_script("preflight lint SCRIPT", [first]),
        evidence=proofs(error.place for error in [first, *same, *exceptions]),
        confidence=0.45 if undecided else 0.6 if first.headless or first.loose else 0.8,
    )


_BETWEEN = 4
"""Lines at most between two exceptions of a chain: Python's words, and empty ones."""


def _end_of_chain(first: LoggedException, exceptions: Sequence[LoggedException]) -> LoggedException:
    """The last of the exceptions that were raised while this one was handled, or itself."""
    last = first
    for error in exceptions:
        if _is_raised_while_handling(error, last):
            last = error
    return last


def _is_raised_while_handling(error: LoggedException, first: LoggedException) -> bool:
    between = error.began - first.place.line
    return error.chained and error.speaker == first.speaker and 0 < between <= _BETWEEN


def _alike(error: LoggedException) -> tuple[str, str]:
    """What exceptions of several ranks share: their messages may hold the rank, or its file."""
    where = f"{error.file}:{error.line}" if error.file else _NUMBER.sub("0", error.message)
    return error.kind, where


def with_script(words: str, exceptions: Sequence[LoggedException]) -> str:
    """Put the script that all these exceptions name into a preflight command."""
    scripts = {error.script for error in exceptions if error.kind not in ECHOES and error.script}
    if len(scripts) != 1 or not words.endswith(" SCRIPT"):
        return words
    (script,) = scripts
    return f"{words.removesuffix('SCRIPT')}{shlex.quote(script)}"


_LONG = 8
"""Lines of the summary of one failed rank, up to where its traceback begins."""
_ABOVE = 6
"""Lines before that, in which the summary says whether another rank failed."""
_RAISED = "1"
"""Python's exit code after an exception."""


class Summaries:
    """All of torchrun's summaries in the logs; one may come after the lines whose rank it names."""

    def __init__(self) -> None:
        self._failed: list[tuple[Hit, Speaker]] = []
        self._at: dict[tuple[str, int], Speaker] = {}
        self._alone: list[Place] = []
        self._ended: set[tuple[str, str]] = set()
        self._without_peer: set[tuple[str, str]] = set()
        """By file, ranks that report the loss of a peer in other words than an exception."""

    def take(self, hit: Hit) -> None:
        """Store what belongs to a summary."""
        if "warning" in hit.fields:
            self._without_peer.add((hit.place.source, str(hit.speaker.rank)))
        if hit.symptom.reads == "alone":
            self._alone.append(hit.place)
        if hit.symptom.reads == "end" and hit.fields.get("code") == _RAISED:
            self._ended.add((hit.place.source, hit.fields["rank"]))
        if hit.symptom.reads == "summary":
            speaker = Speaker(rank=int(hit.fields["rank"]), node=hit.fields.get("node", ""))
            self._failed.append((hit, speaker))
            self._at.setdefault((hit.place.source, hit.place.line), speaker)

    def within(self, place: Place) -> Speaker | None:
        """The rank and node of the summary that contains a line."""
        above = range(place.line - _LONG + 1, place.line)
        return next(filter(None, (self._at.get((place.source, number)) for number in above)), None)

    def named(self, exceptions: Sequence[LoggedException]) -> list[LoggedException]:
        """Add the ranks known from the summaries to exceptions."""
        alone = self._of_the_only_one(exceptions) or self._of_the_only_rest(exceptions)
        return [self._with_speaker(error, alone) for error in exceptions]

    def _with_speaker(
        self, error: LoggedException, alone: tuple[LoggedException, Speaker] | None
    ) -> LoggedException:
        if error.speaker.rank is not None:
            return error
        if alone is not None and error is alone[0]:
            return replace(error, speaker=alone[1])
        speaker = self.within(replace(error.place, line=error.began))
        return error if speaker is None else replace(error, speaker=speaker)

    def _of_the_only_one(
        self, exceptions: Sequence[LoggedException]
    ) -> tuple[LoggedException, Speaker] | None:
        """The only exception of its own before the summary of the rank that failed first.

        If other ranks failed as well, each of them must report the loss of a peer, or have raised
        one that only passes it on: with fewer, the exception may be of another, which caught it.
        """
        if len({speaker.rank for _, speaker in self._failed}) != 1:
            return None
        hit, speaker = self._failed[0]
        place = hit.place
        before = [
            error
            for error in exceptions
            if error.kind not in LAUNCHERS
            and not (error.place.source == place.source and error.place.line > place.line)
        ]
        own = own_faults(before, {})
        others = self._others(place)
        if others is None or hit.fields.get("exitcode") != _RAISED or len(own) != 1:
            return None
        (fault,) = own
        raised_by = {str(error.speaker.rank) for error in before}
        without_peer = {
            rank for rank in others - raised_by if (place.source, rank) in self._without_peer
        }
        if fault.place.source != place.source or len(before) <= len(others - without_peer):
            return None
        return fault, speaker

    def _of_the_only_rest(
        self, exceptions: Sequence[LoggedException]
    ) -> tuple[LoggedException, Speaker] | None:
        """The only exception without a rank, of the only rank that ended by one and shows none."""
        raised_by = {str(error.speaker.rank) for error in exceptions}
        rest = {rank for _, rank in self._ended} - raised_by
        own = [
            error
            for error in exceptions
            if error.speaker.rank is None and error.kind not in LAUNCHERS
        ]
        if len(rest) != 1 or len(own) != 1:
            return None
        return own[0], Speaker(rank=int(rest.pop()))

    def _others(self, place: Place) -> set[str] | None:
        """The other ranks that ended by an exception; None if the summary is cut."""
        if any(
            other.source == place.source and 0 < place.line - other.line <= _ABOVE
            for other in self._alone
        ):
            return set()
        ranks = {rank for source, rank in self._ended if source == place.source}
        first = str(self._failed[0][1].rank)
        return ranks - {first} if first in ranks else None
