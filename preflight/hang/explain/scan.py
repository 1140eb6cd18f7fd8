"""Finds every symptom in streamed logs: 50 MB/s of NCCL's output, in bounded memory.

The cause is at the end of a log, which is often damaged: every readable part of it counts.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count, islice
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from preflight.core.text import whole
from preflight.hang.explain.exceptions import Summaries
from preflight.hang.explain.explanation import Hit, Place, Speaker
from preflight.hang.explain.failure_words import (
    AT_END,
    STEMS,
    TRIED_AGAIN,
    among_settings,
    reports_failure,
)
from preflight.hang.explain.likely_lines import END_BYTES, LEAST_LINES, Estimate, estimate
from preflight.hang.explain.log_lines import LONGEST, chunks, text_of, unstructured
from preflight.hang.explain.origin import Line, Origins, speaker_of_file, time_of
from preflight.hang.explain.repeats import (
    HAS_EXCEPTION,
    INFO,
    MOST_EACH,
    MOST_HITS,
    QUIET,
    STEP,
    TO_ZEROS,
    Repeats,
    Shape,
    Starts,
    any_of,
)
from preflight.hang.explain.tracebacks import ANNOUNCEMENTS, ENDINGS, WOVEN_LINES, Tracebacks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from preflight.hang.explain.symptom import Symptom
    from preflight.hang.explain.tracebacks import LoggedException


_SHOWN = 400
"""Characters stored of a line as proof."""

_SHAPES = 200_000
"""Shapes of lines that are remembered."""
_STEP = re.compile(
    rb"(?:(?:step|iter|iteration|epoch(?:\(train\))?|batch|%\|[^|]{0,99}\|)s?[\"' :=#\[]{1,8}"
    rb"|(?<=\d)\]\[ {0,6}(?=\d{1,9}/\d))(\d{1,12}(?:\.\d{1,9})?)"
)
_SERVED = b'HTTP/1.1" 200 OK'
"""Ends the line of a request that a server has answered: as good as a step, if it is a POST."""
_REJECTED = b'HTTP/1.1" 400 Bad Request'
"""Ends the line of a request that a server has rejected, after the exception that it caught."""
_NUMBERS = re.compile(rb"[\d.]+")
_OF_BAR, _TAIL = re.compile(rb"\|[^|]{0,30}/(\d{1,12}) \["), 200
"""How far the last progress bar of a line goes: `84%|####  | 9493/11368 [00:00<00:01`."""
_OF_GROUP = re.compile(r"^ {2,40}[|+] (?=.)")
"""Begins the lines of a group of exceptions."""
_WRITER = re.compile(rb"\[rank ?(\d{1,6})\]:")
_GOES_ON = 20
"""Steps after a failure: more than other ranks make until they wait for the one that failed."""
_RISES = 3
"""Steps that rise again from a lower one: more than ranks that are late print of one step."""
_PAUSE_S = 60
"""After a launcher's report of an end: what other ranks of that attempt print comes sooner."""
_BEFORE = 8
"""Lines before a report of an end that may show why: those that the process wrote last."""
_LAST_LINES = 5
"""Lines at the end of a file that may show how far the job came."""
_STILL_S = 1800
"""After the last step: the job stood still when it was ended."""
_LATE_S = 7200
"""After it, the time-outs and the launchers' reports of other nodes come sooner."""


def _head(line: bytes) -> bytes:
    """What stands before the number of a step, whatever numbers are in it."""
    first = _STEP.search(line.lower(), 0, LONGEST)
    return _NUMBERS.sub(b"0", line[: first.start(1)]) if first else b""


def _is_denied(text: str, began: Collection[Symptom]) -> bool:
    """Whether a symptom denies what a line has the words of, and no other is in it."""
    real = [symptom for symptom in began if symptom.role != "fact"]
    denied = any(symptom.denied_by(text) for symptom in real)
    return denied and all(symptom.fields(text) is None for symptom in real)


@dataclass
class ScanResult:
    """Everything found in a set of logs."""

    hits: list[Hit] = field(default_factory=list)
    exceptions: list[LoggedException] = field(default_factory=list)
    symptom_ids: set[str] = field(default_factory=set)
    """The ids of all symptoms, including those of hits that are not stored."""
    end_line: int = 0
    """The number of the last line that reports the normal end of the job; 0 if none."""
    settled_until: dict[str, float] = field(default_factory=dict)
    """By file, the last line in which torchrun reports that all its ranks succeeded, or that shows
    that another attempt begins: no failure before it is the last one."""
    progress_line: dict[str, int] = field(default_factory=dict)
    """By file, the last line after which the training came further by some steps."""
    highest_step_line: dict[str, int] = field(default_factory=dict)
    """By file, the last line with a higher step than any before."""
    finite_step_line: dict[str, int] = field(default_factory=dict)
    """By file, the last step that reports a loss or a gradient that is no nan."""
    first_step_line: dict[str, int] = field(default_factory=dict)
    """By file, the line of the first step."""
    restart_line: dict[str, int] = field(default_factory=dict)
    """By file, the last line that may be of another attempt, or of another rank: it has no time."""
    start_line: dict[str, int] = field(default_factory=dict)
    """By file, the last line in which its program starts again after a failure, as its first lines
    show, which it repeats."""
    world_size: int = 0
    """The largest number of ranks in any line of the last attempt; 0 if none."""
    node_by_rank: dict[int, str] = field(default_factory=dict)
    """By rank, its node, as lines of the largest communicator show."""
    writers: set[int] = field(default_factory=set)
    """The ranks that wrote any line of the last attempt."""
    has_subgroups: bool = False
    """Whether any line shows other groups of ranks than the one of all ranks."""
    first_failure: Place | None = None
    """The first line with a word of failure; None where no line has one."""
    failed_rank: int | None = None
    """The rank that wrote it, if its line shows one."""
    last_lines: list[Place] = field(default_factory=list)
    """The last lines of the file that was read last, without empty ones."""
    end: tuple[bytes, int] = b"", 0
    """The last bytes of the file that was read last, and how many lines it has."""
    line_count: int = 0
    lines_before: dict[str, int] = field(default_factory=dict)
    """By file, how many lines were read before it."""
    line_ends: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Of each part in which a bare carriage return ends a line: how many lines were read before it,
    how many of those ended with one, and its own line ends."""
    troubles: list[str] = field(default_factory=list)

    @cached_property
    def on_one_node(self) -> bool:
        """Whether a single node holds all ranks, as far as is known once everything is read."""
        return (
            0 < self.world_size == len(self.node_by_rank)
            and len({*self.node_by_rank.values()}) == 1
        )

    @cached_property
    def estimate(self) -> Estimate | None:
        """What the words of a single whole log show, once all is read; otherwise None."""
        if len(self.lines_before) != 1 or self.troubles or self.end[1] < LEAST_LINES:
            return None
        return estimate(*self.end)

    def attempt(self, source: str) -> tuple[float, int]:
        """The key of an attempt of the job in a file."""
        again = max(self.restart_line.get(source, 0), self.start_line.get(source, 0))
        return self.settled_until.get(source, 0), again

    def lines_of(self, source: str) -> int:
        """How many lines a file has."""
        start = self.lines_before[source]
        later = (before for before in self.lines_before.values() if before > start)
        return min(later, default=self.line_count) - start

    def count_lines(self, lines: int, ends: bytes) -> None:
        """Add lines that were read, which end so."""
        if b"\r" in ends:
            self.line_ends.append((self.line_count, self.returns(self.line_count), ends))
        self.line_count += lines

    def returns(self, order: int) -> int:
        """How many of the first lines, up to this one, end with a bare carriage return."""
        at = bisect_left(self.line_ends, order, key=itemgetter(0))
        if not at:
            return 0
        begin, before, ends = self.line_ends[at - 1]
        return before + ends.count(b"\r", 0, order - begin)

    def in_editor(self, place: Place) -> Place:
        """The place with the line number that editors and `grep -n` show: of line feeds only."""
        start = self.lines_before[place.source]
        returns = self.returns(start + place.line - 1) - self.returns(start)
        return replace(place, line=place.line - returns)


@dataclass
class _Candidate:
    """A symptom that may begin in a line, and the next lines of its speaker that belong to it."""

    symptom: Symptom
    line: Line
    texts: list[str]
    place: Place
    order: int
    before: list[bytes]
    """The lines right before it."""

    def places_before(self) -> tuple[Place, ...]:
        """The lines right before it, with their numbers."""
        first = self.place.line - len(self.before)
        return tuple(
            Place(self.place.source, at, text_of(line)[:_SHOWN])
            for at, line in enumerate(self.before, first)
        )


@dataclass
class _Progress:
    """How far the training has come in one file."""

    step: tuple[float, ...] = ()
    head: bytes = b""
    """What stands before the number of a step."""
    line: bytes = b""
    failure_before_step: Place | None = None
    """The first line of a failure before its last step, if no symptom knows it."""
    step_lines: deque[int] = field(default_factory=lambda: deque(maxlen=_GOES_ON))
    """The last lines with a higher step than any before."""
    lower_step: tuple[float, ...] = ()
    """The last step that was lower, or that comes after the launcher's report."""
    rise_start: int = 0
    """The line from which such steps rise."""
    rise_count: int = 0
    """How many have risen since."""
    answer_lines: deque[int] = field(default_factory=lambda: deque(maxlen=_GOES_ON))
    """The last lines of requests that were answered."""
    ended_s: float = inf
    """A step or a start after this time is of another attempt."""
    end_line: int = 0
    """The line of the launcher's last report of an end."""
    is_cancelled: bool = False
    """Whether Slurm has ended the whole job: a start is of another."""


class _File:
    """What is being read in a file."""

    def __init__(self, path: Path) -> None:
        self.source = str(path)
        self.whose = speaker_of_file(path)
        self.tracebacks = Tracebacks(self.whose)
        self.progress = _Progress()
        self.repeats = Repeats()
        self.starts = Starts()
        self.starts_before_failure = self.starts_after_failure = 0
        """How often its program has printed its first lines."""
        self.has_failed = False
        """Whether any line of it shows a cause or a sign of a failure."""
        self.before: list[bytes] = []
        """The lines right before the one that is read."""
        self.last_lines: deque[tuple[int, bytes]] = deque(maxlen=_LAST_LINES)
        """The last lines of the file with their numbers, without empty ones."""
        self.end_parts: deque[bytes] = deque()
        """The last parts of the file that were read: as many as END_BYTES may need."""
        self._end_size = 0
        self.candidates: dict[tuple[str, int | None], list[_Candidate]] = {}
        """By label and rank."""
        self._latest: dict[str, int | None] = {}
        self.wrote: set[int] = set()
        """The ranks in its lines."""
        self.named: set[int] = set()
        """The rank in its name, which counts if its lines name none."""

    @property
    def idle(self) -> bool:
        """Whether nothing has begun that the next lines may belong to."""
        return not self.candidates and not self.tracebacks.is_open

    def keep_end(self, text: bytes, lines: Sequence[bytes]) -> None:
        """Keep a part of the file in which these lines end, if any; drop the first ones."""
        if not lines:
            return
        self.end_parts.append(text)
        self._end_size += len(text)
        while self._end_size - len(self.end_parts[0]) > END_BYTES:
            self._end_size -= len(self.end_parts.popleft())

    def note_writers(self, text: bytes) -> None:
        """Note the ranks that wrote these lines."""
        if b"[rank" in text:
            self.wrote.update(map(int, {*_WRITER.findall(text)}))
        if text and self.whose.rank is not None:
            self.named.add(self.whose.rank)

    def begin(self, candidate: _Candidate) -> None:
        """Begin a candidate that goes on in the next lines of its speaker."""
        speaker = candidate.line.speaker
        going_on = (speaker.label, self._latest.get(speaker.label)) in self.candidates
        self.candidates.setdefault((speaker.label, speaker.rank), []).append(candidate)
        if speaker.rank is not None or not going_on:
            self._latest[speaker.label] = speaker.rank

    def ended_with(self, line: Line, number: int) -> list[_Candidate]:
        """Add a line to its speaker's candidates; one without a rank continues the latest, too."""
        label, rank, done = line.speaker.label, line.speaker.rank, list[_Candidate]()
        for key, candidates in self.candidates.items():
            if number - candidates[0].place.line > WOVEN_LINES:
                done += self.candidates.pop(key)
            break
        for writer in (
            {rank, self._latest.get(label) if rank is None else rank} if line.bare else ()
        ):
            going = list[_Candidate]()
            for candidate in self.candidates.pop((label, writer), ()):
                candidate.texts.append(line.bare)
                (done if len(candidate.texts) > candidate.symptom.span else going).append(candidate)
            if going:
                self.candidates[label, writer] = going
        return done


class Scanner:
    """Looks for symptoms, file by file; learns the ranks of processes on the way."""

    def __init__(self, symptoms: Sequence[Symptom]) -> None:
        words = [word.encode() for symptom in symptoms for word in symptom.anchors]
        words += [word.encode() for stem in STEMS for word in (stem, stem.upper())]
        words += [*ANNOUNCEMENTS, *ENDINGS, b'File "']
        self._anchor = any_of(frozenset(word.translate(TO_ZEROS) for word in words))
        self._shapes: dict[bytes, Shape] = {}
        self._anchors = [
            (word.encode().translate(TO_ZEROS), word.encode(), symptom)
            for symptom in symptoms
            for word in symptom.anchors
        ]
        self._times: Counter[tuple[str, object]] = Counter()
        self._processes: dict[tuple[str, str], dict[int, tuple[str, int]]] = {}
        """By node and GPU, the attempt's processes: the first communicator of each, its rank."""
        self._origins = Origins()
        self._summaries = Summaries()
        self._result = ScanResult()
        self._tried: tuple[int, Place | None] = 0, None
        """The last line of a failure after which the program tries again."""
        self._failed_at = "", 0
        """The file and the line of the first failure."""

    def read(self, paths: Iterable[Path]) -> ScanResult:
        """Scan them one after the other."""
        for path in paths:
            self._file(path)
        result = self._result
        result.writers |= self._origins.tasks if self._origins.tasks_are_ranks else set()
        if result.first_failure is None and result.line_count - self._tried[0] <= AT_END:
            result.first_failure = self._tried[1]
        settled = self._origins.settled
        errors = [replace(error, speaker=settled(error.speaker)) for error in result.exceptions]
        result.exceptions = self._summaries.named(errors)
        by_place = {
            (error.place.source, error.place.line): error.speaker
            for error in result.exceptions
            if error.speaker.rank is not None
        }
        result.hits = [self._with_rank(hit, by_place) for hit in result.hits]
        return result

    def _file(self, path: Path) -> None:
        file, result, by_key = _File(path), self._result, self._shapes
        before = result.line_count
        result.lines_before.setdefault(file.source, before)
        for lines, ends in chunks(path, result.troubles):
            text = b"\n".join(lines)
            file.keep_end(text, lines)
            shapes = text.translate(TO_ZEROS).split(b"\n")
            if len(by_key) + len(file.repeats.counts) > _SHAPES:
                by_key.clear()
                file.repeats.counts.clear()
            self._lines(file, lines, shapes, before)
            begin = int(max(result.attempt(file.source))) - result.line_count
            text = b"\n".join(lines[begin - 1 :]) if begin > 1 else text
            file.note_writers(text)
            number = result.line_count - before
            last = ((number + at, lines[at - 1]) for at in range(len(lines), 0, -1))
            written = islice((row for row in last if row[1].strip(b" \t\r\0")), _LAST_LINES)
            file.last_lines.extend([*written][::-1])
            self._origins.note_tasks(text)
            result.count_lines(len(lines), ends)
        result.writers |= file.wrote or file.named
        result.end = b"\n".join((b"", *file.end_parts))[-END_BYTES:], result.line_count - before
        for candidate in [*chain.from_iterable(file.candidates.values())]:
            self._close(candidate, file)
        self._repeat(file, before)
        result.last_lines = [
            Place(file.source, number, text_of(line)) for number, line in file.last_lines
        ]
        result.exceptions += file.tracebacks.exceptions

    def _lines(self, file: _File, lines: list[bytes], shapes: list[bytes], before: int) -> None:
        """Read a part of a file; `before`: how many lines of other files precede it."""
        repeats, by_key, lines_before = file.repeats, self._shapes, self._result.line_count
        starts, first = iter(file.starts.find(lines, shapes, lines_before)), lines_before + 1
        next_start = next(starts, sys.maxsize)
        idle, rows = file.idle, zip(count(), lines, shapes, strict=False)
        for at, line, key in rows:
            if first + at >= next_start:
                self._note_start(file, first + at)
                next_start = next(starts, sys.maxsize)
            shape = by_key.get(key) or self._learn_shape(key, line)
            if (idle and (shape is QUIET or repeats.has_read(shape, line))) or (
                shape is not STEP and among_settings(lines, at)
            ):
                continue
            order = first + at
            if idle and shape.begins_traceback and not file.tracebacks.awaited:
                rest = repeats.of_traceback(lines, shapes, at, order)
                if rest:
                    next(islice(rows, rest - 1, None))
                    continue
            is_step = shape is STEP
            if not (idle and is_step) and not repeats.skips(shape, line, order, idle=idle):
                file.before = lines[max(at - _BEFORE, 0) : at]
                self._line(file, text_of(line), order - before, order, shape.begins(line))
                idle = file.idle
            if is_step:
                self._take_step(file, line, order)

    def _repeat(self, file: _File, before: int) -> None:
        """Read the last of the lines with the same content."""
        file.tracebacks.end()
        for shape, line, order in file.repeats.last_ones.values():
            self._line(file, text_of(line), order - before, order, shape.begins(line))
        for first, lines in file.repeats.tracebacks.values():
            for order, line in enumerate(lines, first):
                begins = self._learn_shape(line.translate(TO_ZEROS), line).begins(line)
                self._line(file, text_of(line), order - before, order, begins)

    def _line(
        self, file: _File, shown: str, number: int, order: int, began: Collection[Symptom]
    ) -> None:
        """Read a line that may matter; of a structured log, the lines within it."""
        parts = unstructured(shown)
        for part in parts:
            here = [one for one in began if len(parts) == 1 or one.is_begun_in(part)]
            self._part(file, part, Place(file.source, number, part[:_SHOWN]), order, here)

    def _part(
        self, file: _File, part: str, place: Place, order: int, began: Collection[Symptom]
    ) -> None:
        line, number = self._origins.read(_OF_GROUP.sub("", part)), place.line
        for candidate in file.ended_with(line, number):
            self._close(candidate, file)
        ignored, result = file.tracebacks.feed(line, place, order), self._result
        if not ignored and result.first_failure is None and reports_failure(line.text):
            if TRIED_AGAIN.search(line.text):
                self._tried = max(self._tried, (order, place), key=itemgetter(0))
            elif not _is_denied(line.text, began):
                result.first_failure = place
                result.failed_rank = line.speaker.joined(file.whose).rank
                self._failed_at = file.source, order
        for symptom in began:
            if ignored and symptom.role != "fact":
                continue
            candidate = _Candidate(symptom, line, [line.text], place, order, file.before)
            if symptom.span:
                file.begin(candidate)
            else:
                self._close(candidate, file)

    def _note_start(self, file: _File, order: int) -> None:
        """Note a start after a failure.

        Processes of one start print its first lines as often as there are processes: fewer follow
        a failure of one of them.
        """
        has_failed = file.has_failed or bool(file.tracebacks.exceptions)
        file.starts_before_failure += not has_failed
        file.starts_after_failure += has_failed
        is_full = file.starts_after_failure >= file.starts_before_failure
        if has_failed and is_full:
            self._result.start_line[file.source] = order
            file.repeats.counts.clear()

    def _take_step(self, file: _File, line: bytes, order: int) -> None:
        """Take a line that reports a step."""
        if b"loss" in line or b"grad" in line:
            self._result.finite_step_line[file.source] = order
        progress = file.progress
        if line.endswith((_SERVED, _REJECTED)):
            self._take_request(file, line, order)
            return
        if progress.ended_s < inf and (self._time_of(line) or 0) > progress.ended_s:
            self._begin_attempt(file, self._result.settled_until, order)
            progress = file.progress = _Progress()
        step = tuple(map(float, _STEP.findall(line.lower(), 0, LONGEST)))
        first = self._result.first_step_line.setdefault(file.source, order)
        if first == order and b"%|" not in line:  # what no symptom knows did not keep it from that
            self._result.first_failure = None
        if step < progress.step or progress.end_line:
            self._take_lower(file, line, step, order)
        if step > progress.step:
            progress.step, progress.head = step, progress.head or _head(line)
            if b"%|" not in line and progress.failure_before_step != self._result.first_failure:
                progress.failure_before_step = self._result.first_failure
            elif b"%|" not in line:
                self._result.first_failure = None  # nor from its next steps
            self._result.highest_step_line[file.source] = order
            self._note_work(file, progress.step_lines, order)
        progress.line = line

    def _take_request(self, file: _File, line: bytes, order: int) -> None:
        """Take a line of a request that a server has answered."""
        if line.endswith(_REJECTED):
            file.tracebacks.rejects(order)
        else:
            self._note_work(file, file.progress.answer_lines, order)

    def _note_work(self, file: _File, orders: deque[int], order: int) -> None:
        """Note a step or an answer: what failed before many of them ended nothing."""
        orders.append(order)
        if len(orders) == _GOES_ON:
            self._result.progress_line[file.source] = orders[0]
            if (file.source, 0) < self._failed_at < (file.source, orders[0]):
                self._result.first_failure = None

    def _take_lower(self, file: _File, line: bytes, step: tuple[float, ...], order: int) -> None:
        """Note that steps begin again, in the same words and without a time."""
        progress = file.progress
        totals, before = (_OF_BAR.findall(text[-_TAIL:]) for text in (line, progress.line))
        if totals and before and totals[-1] != before[-1]:
            return  # another bar
        if step <= progress.lower_step or not progress.rise_count:
            progress.rise_start, progress.rise_count = order, 0
        progress.lower_step = step
        progress.rise_count += 1
        begins, head = progress.rise_count == (1 if step[-1] <= 1 else _RISES), _head(line)
        if begins and head == progress.head and self._time_of(line) is None:
            self._begin_attempt(file, self._result.restart_line, progress.rise_start)
        elif (
            progress.rise_count >= _GOES_ON and b"%|" not in line and not file.tracebacks.exceptions
        ):
            progress.step, progress.head = step, head  # another counter

    def _time_of(self, line: bytes) -> float | None:
        read = self._origins.read(text_of(line))
        return time_of(read.text, read.when)

    def _learn_shape(self, key: bytes, line: bytes) -> Shape:
        """What lines of this shape may show."""
        anchors, shape = [], QUIET
        if self._anchor.search(key):
            anchors = [(word, symptom) for alike, word, symptom in self._anchors if alike in key]
            if anchors or INFO not in key or HAS_EXCEPTION.search(key):
                shape = Shape(key, anchors)
        served = b'"POST ' in line and line.endswith((_SERVED, _REJECTED))
        if served or (shape is QUIET and _STEP.search(line.lower(), 0, LONGEST)):
            shape = STEP
        if shape in (QUIET, STEP) and self._origins.may_show_rank(line):
            return shape
        self._shapes[key] = shape
        return shape

    def _close(self, candidate: _Candidate, file: _File) -> None:
        text = "\n".join(candidate.texts)
        for fields in candidate.symptom.readings(text):
            self._take(candidate, file, fields, text)

    def _take(self, candidate: _Candidate, file: _File, fields: dict[str, str], text: str) -> None:
        symptom, result, source = candidate.symptom, self._result, candidate.place.source
        result.symptom_ids.add(symptom.id)
        speaker = candidate.line.speaker.joined(file.whose)
        if "world" in fields:
            self._learn(fields, speaker, file, candidate.order)
        time = time_of(fields.get("time", text), candidate.line.when)
        self._note_attempts(candidate, file, fields, time)
        if symptom.reads == "end" and not self._with_rank_of_gpu(fields, speaker):
            return
        if "end" in fields:
            result.end_line = candidate.order
        result.has_subgroups |= "parallel" in fields
        fact = tuple(sorted(fields.items()))[:6]
        key = symptom.id, (source, result.attempt(source), speaker, fact)
        self._times[key] += 1
        most = MOST_HITS if symptom.role == "fact" else 2 * MOST_HITS
        if (self._times[key] > MOST_EACH and not symptom.at_end) or len(result.hits) >= most:
            return
        hit = Hit(
            symptom=symptom,
            place=candidate.place,
            speaker=speaker,
            fields=fields,
            time=time,
            order=candidate.order,
            tried_again=symptom.role != "fact"
            and TRIED_AGAIN.search(candidate.texts[0]) is not None,
            before=candidate.places_before() if "code" in fields else (),
        )
        result.hits.append(hit)
        file.has_failed |= symptom.role in ("cause", "sign") and not hit.retried
        if symptom.reads in ("summary", "end"):  # a launcher, which is no rank itself
            self._origins.reports(speaker, int(fields["rank"]))
        self._summaries.take(hit)

    def _note_attempts(
        self, candidate: _Candidate, file: _File, fields: dict[str, str], time: float | None
    ) -> None:
        """Note what shows that an attempt of the job has ended, or that another has begun."""
        progress, settled = file.progress, self._result.settled_until
        reads = candidate.symptom.reads
        reports = reads in ("summary", "end")
        begins = "started" in fields and ((time or 0) > progress.ended_s or progress.is_cancelled)
        if "settled" in fields or begins:
            progress.is_cancelled = False
            self._begin_attempt(file, settled, candidate.order)
        elif "again" in fields or ("started" in fields and time is None and progress.step):
            self._begin_attempt(file, self._result.restart_line, candidate.order)
        if (reports or reads == "timeout") and (time or 0) > progress.ended_s + _LATE_S:
            self._begin_attempt(file, settled, progress.end_line)
        progress.is_cancelled |= any("*** JOB " in text for text in candidate.texts)
        if reports or any("CANCELLED AT" in text for text in candidate.texts):
            own = time_of(fields.get("time", candidate.line.text), candidate.line.when)
            before = (line for line in file.before[-2:] if not line.startswith((b"slurm", b"srun")))
            times = map(self._time_of, (progress.line, *before))
            last = max(filter(None, times), default=None)
            progress.ended_s = (own or last or inf) + _PAUSE_S
            if own and last and own - last > _STILL_S:
                fields |= {"still": "1", "still_min": f"{(own - last) / 60:.0f}"}
            progress.end_line = candidate.order

    def _begin_attempt(self, file: _File, since: dict[str, Any], order: int) -> None:
        """Note where another attempt begins: all its lines are new."""
        since[file.source] = order
        file.wrote.clear()
        self._origins.tasks.clear()
        file.repeats.counts.clear()

    def _with_rank_of_gpu(self, fields: dict[str, str], speaker: Speaker) -> bool:
        """Add the rank that ended if its launcher reports only its GPU; False if it is unknown."""
        if "rank" not in fields:
            node = fields.get("node") or self._origins.node_of(speaker)
            rank = self._origins.rank_of_gpu(node, fields.get("local_rank", ""))
            if rank is not None:
                fields |= {"rank": str(rank), "node": node} if node else {"rank": str(rank)}
        return "rank" in fields

    def _learn(self, fields: dict[str, str], speaker: Speaker, file: _File, order: int) -> None:
        """A communicator's line maps processes to ranks; the largest has the global ranks.

        Another process with the same rank on the same GPU shows another attempt. Processes that
        each see one GPU all call it 0.
        """
        world, rank = int(fields["world"]), int(fields.get("rank", 0))
        comm, here = fields.pop("comm", ""), (speaker.node, fields.get("gpu", ""))
        if speaker.pid is not None and comm:
            processes = self._processes.get(here, {})
            if speaker.pid not in processes and any(rank == of for _, of in processes.values()):
                self._processes.clear()
                self._begin_attempt(file, self._result.settled_until, order)
                self._result.world_size = 0
                self._result.node_by_rank.clear()
            first = self._processes.setdefault(here, {}).setdefault(speaker.pid, (comm, rank))
            self._result.has_subgroups |= comm != first[0]
        self._result.has_subgroups |= self._result.world_size not in (0, world)
        if world > self._result.world_size:
            self._result.world_size = world
            self._result.node_by_rank.clear()
            self._origins.forget()
        if world == self._result.world_size and speaker.node and speaker.pid is not None:
            self._result.node_by_rank[rank] = speaker.node
            self._origins.learn(speaker, speaker.pid, rank)
            gpu = whole(fields.get("gpu", ""), 1 << 16)
            if gpu is not None:
                self._origins.learn_gpu(speaker.node, rank - gpu)

    def _with_rank(self, hit: Hit, speakers: dict[tuple[str, int], Speaker]) -> Hit:
        """Add the rank to a hit that has only a process id, or is in torchrun's summary.

        `speakers`: those of exceptions, by place.
        """
        speaker = self._origins.settled(hit.speaker)
        if speaker.rank is None:
            in_summary = self._summaries.within(hit.place)
            speaker = in_summary or speakers.get((hit.place.source, hit.place.line)) or speaker
        return replace(hit, speaker=speaker)
