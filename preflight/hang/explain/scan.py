"""Finds every symptom in streamed logs: 50 MB/s of NCCL's output, in bounded memory.

The cause is at the end of a log, which is often damaged: every readable part of it counts.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import count, groupby
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from preflight.core.text import whole
from preflight.hang.explain.exceptions import ENDS, FAR, Summaries, Tracebacks
from preflight.hang.explain.log_lines import LONGEST, chunks, text_of, unstructured
from preflight.hang.explain.origin import Line, Origins, speaker_of_file, time_of
from preflight.hang.explain.symptom import AT_END, TRIED_AGAIN, Hit, Place, Speaker, is_supposed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from pathlib import Path

    from preflight.hang.explain.exceptions import LoggedException
    from preflight.hang.explain.symptom import Symptom


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


_KEPT_EACH = 3
"""Hits stored of one symptom and speaker: the first ones."""
_KEPT = 20_000
"""Facts stored in all, and as many other hits."""
_SHOWN = 400
"""Characters stored of a line as proof."""

_FAILURE = re.compile(
    rb"(?i:traceback \(most|\bfatal\b|\bpanic\b|core dumped|segmentation fault|segfault"
    rb"|aborted\b|terminate called|exit(?:ed)?(?: with)?(?: exit| return)?[ _]?(?:code|status)"
    rb"[ :=]{0,8}-?[1-9]|return code[ :=]{0,3}-?[1-9]|\bkilled\b|out of memory|timed[ -]?out"
    rb"|deadlock|\bhung\b|\bstuck\b|unreachable|connection (?:refused|reset|closed)|\bxid\b"
    rb"|no space left|\b(?:signal|sig(?:kill|segv|abrt|bus|term))\b|unable to|can(?:no|')t "
    rb"|\baborting\b|MPI_ABORT|exited with non-?zero|\bloss is nan\b"
    rb"|assert(?:ion)? .{0,200}fail|\bcrash|\bdied\b|\bfail(?:ed|ure)\b|\bcorrupt|denied"
    rb"|\bpg_status\b"  # a flight recorder's dump, which is written after a failure
    rb"|(?<![\w0] )errors?(?: code| number)?[ :]|mismatch|invalid|not found|no such)"
    rb"|[a-z](?:Error|Exception)\b|\bERROR\b|\bCRITICAL\b|NCCL WARN|\[[EF]\d{0,6} |EXCEPTION"
)
"""A log without any of these shows no failure."""
_NOTICE = re.compile(
    rb"(?i:\bwarn(?:ing)?\b|warning:|\binfo\b|\bdebug\b|\bnotice\b|\bretry|continuing"
    rb"|ignor(?:ed|ing)|skipp(?:ed|ing)|falling back|deprecat|\bon[_ -]?error|\bpassed\b"
    rb"|\bsub-?optimal\b"
    rb"|\b(?:no|0|zero|without|any) (?:xid )?(?:error|fail)"
    rb"|error[_ -](?:bars?|rate|func|margin|norm)"
    rb"|(?:error|fail(?:ed|ures?)?|killed)[_ ]?(?:rate|s)?[ =:]{1,3}0(?:\.0{0,9})?\b"
    rb"|\bwatching for\b|\bhandles? xid\b|\b(?:will|would|may|might) (?:stop|fail) with no space\b"
    rb"|[a-z] error[ =:]{1,3}\d{0,9}\.\d)"
    rb"|\[W[\d :.]{0,30}(?:TCPStore|ProcessGroupNCCL)\.cpp:|^frame #\d"
)
"""What is no failure, whatever words are in it, unless NCCL or an exception says it."""
_HARMLESS = re.compile(
    rb"cannot be preloaded .{0,200}ignored|Unable to register cu\w{1,9} factory"
    rb"|Ignoring this choice|dependency resolver does not|(?i:\b(?:errors?|xids?): (?:none|0)\b)"
)
"""What is no failure, at whatever level it is logged."""
_CERTAIN = re.compile(rb"NCCL WARN|Traceback \(most|\bERROR\b|\bFATAL\b|^\w*Error: |core dumped")

_INFO = b"NCCL INFO "
_VOLATILE = re.compile(rb"0x0+|(?<![:0])00:00:00[.,0]*|(?<=:)0+(?= \[0+\] NCCL INFO )")
"""Addresses, times and threads in the shape of a line, which change where nothing new is seen."""
_STEMS = (
    *("raceback", "rror", "xception", "ail", "atal", "panic", "ore dumped", "egmentation fault"),
    *("egfault", "bort", "erminat", "xit", "eturn code", "ill", "ut of memory", "imed", "ime out"),
    *("eadlock", "hung", "stuck", "nreachable", "refused", "onnection", "xid", "o space left"),
    *("ignal", "nable to", "annot ", "an't ", "ssert", "rash", "ied", "orrupt", "ismatch"),
    *("nvalid", "ot found", "o such", "critical", "warn", "sig", "[E", "[F", "pg_status"),
    "xited with non",
    "s nan",
)
"""Each line of failure has one of these, in lower or upper case; a first letter may lack."""
_ALIKE = bytes.maketrans(b"0123456789abcdef", b"0" * 16)
"""Numbers, and addresses in hexadecimal, of lines that are otherwise the same."""
_BEGINS = b"Traceback (most".translate(_ALIKE)
_RAISED = any_of(word.translate(_ALIKE) for word in (*ENDS, b"Traceback"))
_OF_ONE_LINE = ("", "xid", "memory", "call")
"""What is read of a failure of which only the first lines are stored."""
_SHAPES = 200_000
"""Shapes of lines that are remembered."""
_STEP = re.compile(
    rb"(?:step|iter|iteration|epoch|batch|%\|[^|]{0,99}\|)s?[\"' :=#\[]{1,8}"
    rb"(\d{1,12}(?:\.\d{1,9})?)"
)
_NUMBERS = re.compile(rb"[\d.]+")
_GOES_ON = 20
"""Steps after a failure: more than other ranks make until they wait for the one that failed."""
_RISES = 3
"""Steps that rise again from a lower one: more than ranks that are late print of one step."""
_PAUSE_S = 60
"""After a launcher's report of an end: what other ranks of that attempt print comes sooner."""
_LATE_S = 7200
"""After it, the time-outs and the launchers' reports of other nodes come sooner."""


def _head(line: bytes) -> bytes:
    """What stands before the number of a step, whatever numbers are in it."""
    first = _STEP.search(line.lower(), 0, LONGEST)
    return _NUMBERS.sub(b"0", line[: first.start(1)]) if first else b""


@dataclass
class ScanResult:
    """Everything found in a set of logs."""

    hits: list[Hit] = field(default_factory=list)
    raised: list[LoggedException] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """How often each symptom was found, including hits that are not stored."""
    ended: int = 0
    """The number of the last line that reports the normal end of the job; 0 if none."""
    settled: dict[str, float] = field(default_factory=dict)
    """By file, the last line in which torchrun reports that all its ranks succeeded, or that shows
    that another attempt begins: no failure before it is the last one."""
    further: dict[str, int] = field(default_factory=dict)
    """By file, the last line after which the training came further by some steps."""
    began: dict[str, int] = field(default_factory=dict)
    """By file, the line of the first step."""
    again: dict[str, int] = field(default_factory=dict)
    """By file, the last line that may be of another attempt, or of another rank: it has no time."""
    world: int = 0
    """The largest number of ranks in any line of the last attempt; 0 if none."""
    several: bool = False
    """Whether any line shows other groups of ranks than the one of all ranks."""
    failure: Place | None = None
    """The first line with a word of failure; None where no line has one."""
    lines: int = 0
    troubles: list[str] = field(default_factory=list)

    def attempt(self, source: str) -> tuple[float, int]:
        """What tells the attempts of the job in a file apart."""
        return self.settled.get(source, 0), self.again.get(source, 0)


class _Shape:
    """What to look for in lines that differ only in their numbers."""

    def __init__(self, shape: bytes, anchors: list[tuple[bytes, Symptom]]) -> None:
        self.anchors = anchors
        """Words that may be there."""
        is_fact = all(one.role == "fact" and not one.reads for _, one in anchors)
        self.most = 2 if is_fact else _KEPT_EACH
        """How often a line that tells the same counts; a second one may be of another group."""
        cuts = [0, *(at for one in _VOLATILE.finditer(shape) for at in one.span()), None]
        self.tells: Callable[[bytes], object] = itemgetter(*map(slice, cuts[::2], cuts[1::2]))
        """What a line tells."""
        self.is_failure = _BEGINS not in shape and all(
            one.role != "fact" and not one.span and one.reads in _OF_ONE_LINE for _, one in anchors
        )
        """Whether it may tell of a failure, and of nothing that the next lines go on with."""
        alone = not _RAISED.search(shape) and not any(one.span for _, one in anchors)
        self.is_counted = self.is_failure or (_INFO in shape and alone)

    def begins(self, line: bytes) -> list[Symptom]:
        """The symptoms that may begin in a line."""
        return [*{one.id: one for word, one in self.anchors if word in line}.values()]


_QUIET = _Shape(b"", [])
"""Of lines in which there is nothing to read."""
_PACED = _Shape(b"", [])
"""Of lines that only tell the step of the training."""


@dataclass
class _Late:
    """The last of many lines that tell of the same failure."""

    shape: _Shape
    line: bytes = b""
    order: int = 0
    times: int = 0


class _Repeats:
    """Lines that repeat others: the first few are read, and of failures the last."""

    def __init__(self) -> None:
        self.seen: dict[object, int] = {}
        """How often, in this attempt of the job."""
        self.late: dict[object, _Late] = {}
        self._last: object = None
        self._same = 0

    def skips(self, shape: _Shape, line: bytes, order: int, *, idle: bool) -> bool:
        """Whether a line tells nothing new; `idle`: it is no part of what has begun."""
        tells = shape.tells(line)
        if not idle:
            self._same = self._same + 1 if (shape, tells) == self._last else 0
            self._last = shape, tells
            return self._same > _KEPT_EACH
        if not shape.is_counted:
            return False
        times = self.seen.get(tells, 0)
        if times < shape.most:
            self.seen[tells] = times + 1
            return False
        if shape.is_failure and (tells in self.late or len(self.late) < _KEPT):
            one = self.late.setdefault(tells, _Late(shape))
            one.line, one.order, one.times = line, order, one.times + 1
        return True


@dataclass
class _Story:
    """A symptom, and the lines of its speaker that belong to it."""

    symptom: Symptom
    line: Line
    texts: list[str]
    place: Place
    order: int


@dataclass
class _Progress:
    """How far the training has come in one file."""

    step: tuple[float, ...] = ()
    head: bytes = b""
    """What stands before the number of a step."""
    line: bytes = b""
    orders: deque[int] = field(default_factory=lambda: deque(maxlen=_GOES_ON))
    """The last lines with a higher step than any before."""
    lower: tuple[float, ...] = ()
    """The last step that was lower, or that comes after the launcher's report."""
    risen_from: int = 0
    """The line from which such steps rise."""
    rises: int = 0
    """How many have risen since."""
    over: float = inf
    """A step or a start after this time is of another attempt."""
    reported: int = 0
    """The line of the launcher's last report of an end."""


class _File:
    """What is being read in a file."""

    def __init__(self, path: Path) -> None:
        self.source = str(path)
        self.whose = speaker_of_file(path)
        self.tracebacks = Tracebacks(self.whose)
        self.progress = _Progress()
        self.repeats = _Repeats()
        self.stories: dict[tuple[str, int | None], list[_Story]] = {}
        """By label and rank."""
        self._latest: dict[str, int | None] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing has begun that the next lines may belong to."""
        return not self.stories and not self.tracebacks.open

    def begin(self, story: _Story) -> None:
        """Begin a story that goes on in the next lines of its speaker."""
        speaker = story.line.speaker
        self.stories.setdefault((speaker.label, speaker.rank), []).append(story)
        self._latest[speaker.label] = speaker.rank

    def ended_with(self, line: Line, number: int) -> list[_Story]:
        """Add a line to its speaker's stories; one without a rank goes on with the latest, too."""
        label, rank, done = line.speaker.label, line.speaker.rank, list[_Story]()
        for key, some in self.stories.items():
            if number - some[0].place.line > FAR:
                done += self.stories.pop(key)
            break
        for one in {rank, self._latest.get(label) if rank is None else rank} if line.bare else ():
            going = list[_Story]()
            for story in self.stories.pop((label, one), ()):
                story.texts.append(line.bare)
                (done if len(story.texts) > story.symptom.span else going).append(story)
            if going:
                self.stories[label, one] = going
        return done


class Scanner:
    """Looks for symptoms, file by file; learns the ranks of processes on the way."""

    def __init__(self, symptoms: Sequence[Symptom]) -> None:
        words = [word.encode() for each in symptoms for word in each.anchors]
        words += [*ENDS, *(word.encode() for stem in _STEMS for word in (stem, stem.upper()))]
        self._anchor = any_of(word.translate(_ALIKE) for word in words)
        self._shapes: dict[bytes, _Shape] = {}
        self._anchors = [
            (word.encode().translate(_ALIKE), word.encode(), each)
            for each in symptoms
            for word in each.anchors
        ]
        self._kept: Counter[tuple[str, object]] = Counter()
        self._processes: dict[tuple[str, str], dict[int, str]] = {}
        """By node and GPU, the attempt's processes, and the first communicator of each."""
        self._origins = Origins()
        self._summaries = Summaries()
        self._found = ScanResult()
        self._tried: tuple[int, Place | None] = 0, None
        """The last line of a failure after which the program tries again."""

    def read(self, paths: Iterable[Path]) -> ScanResult:
        """Scan them one after the other."""
        for path in paths:
            self._file(path)
        found = self._found
        if found.failure is None and found.lines - self._tried[0] <= AT_END:
            found.failure = self._tried[1]
        found.raised = self._summaries.named([self._of_rank(one) for one in found.raised])
        by_place = {
            (one.place.source, one.place.line): one.speaker
            for one in found.raised
            if one.speaker.rank is not None
        }
        found.hits = [self._with_rank(hit, by_place) for hit in found.hits]
        return found

    def _file(self, path: Path) -> None:
        file, found, known = _File(path), self._found, self._shapes
        before, repeats = found.lines, file.repeats
        for lines in chunks(path, found.troubles):
            shapes = b"\n".join(lines).translate(_ALIKE).split(b"\n")
            if len(known) + len(repeats.seen) > _SHAPES:
                known.clear()
                repeats.seen.clear()
            idle = file.idle
            for order, line, looks in zip(count(found.lines + 1), lines, shapes, strict=False):
                shape = known.get(looks) or self._learn_shape(looks, line)
                if idle and shape is _QUIET:
                    continue
                is_step = shape is _PACED
                if not (idle and is_step) and not repeats.skips(shape, line, order, idle=idle):
                    self._line(file, text_of(line), order - before, order, shape.begins(line))
                    idle = file.idle
                if is_step:
                    self._pace(file, line, order)
            found.lines += len(lines)
        for each in (one for some in file.stories.values() for one in some):
            self._close(each, file)
        self._repeat(file, before)
        found.raised += file.tracebacks.raised

    def _repeat(self, file: _File, before: int) -> None:
        """Read the last of lines that tell the same, and count those between."""
        file.tracebacks.end()
        for one in file.repeats.late.values():
            counts, begins = self._found.counts.copy(), one.shape.begins(one.line)
            self._line(file, text_of(one.line), one.order - before, one.order, begins)
            for name, number in (self._found.counts - counts).items():
                self._found.counts[name] += number * (one.times - 1)

    def _line(
        self, file: _File, shown: str, number: int, order: int, began: Collection[Symptom]
    ) -> None:
        """Read a line that may matter; of a structured log, the lines within it."""
        parts = unstructured(shown)
        for part in parts:
            here = began if len(parts) == 1 else [one for one in began if one.is_begun_in(part)]
            self._part(file, part, Place(file.source, number, part[:_SHOWN]), order, here)

    def _part(
        self, file: _File, part: str, place: Place, order: int, began: Iterable[Symptom]
    ) -> None:
        line, number = self._origins.read(part), place.line
        for story in file.ended_with(line, number):
            self._close(story, file)
        if not file.tracebacks.feed(line, place, order):
            self._look_for_failure(line, place, order)
        for symptom in began:
            story = _Story(symptom, line, [line.text], place, order)
            if symptom.span:
                file.begin(story)
            else:
                self._close(story, file)

    def _pace(self, file: _File, line: bytes, order: int) -> None:
        """Take a line that tells the step."""
        now = file.progress
        if now.over < inf and (self._time_of(line) or 0) > now.over:
            self._begin_attempt(file, self._found.settled, order)
            now = file.progress = _Progress()
        step = tuple(map(float, _STEP.findall(line.lower(), 0, LONGEST)))
        self._found.began.setdefault(file.source, order)
        if step < now.step or now.reported:
            self._take_lower(file, line, step, order)
        if step > now.step:
            now.step, now.head = step, now.head or _head(line)
            now.orders.append(order)
            if len(now.orders) == _GOES_ON:
                self._found.further[file.source] = now.orders[0]
        now.line = line

    def _take_lower(self, file: _File, line: bytes, step: tuple[float, ...], order: int) -> None:
        """Note that steps begin again, in the same words and without a time."""
        now = file.progress
        if step <= now.lower or not now.rises:
            now.risen_from, now.rises = order, 0
        now.lower = step
        now.rises += 1
        begins = now.rises == (1 if step[-1] <= 1 else _RISES)
        if begins and _head(line) == now.head and self._time_of(line) is None:
            self._begin_attempt(file, self._found.again, now.risen_from)

    def _time_of(self, line: bytes) -> float | None:
        read = self._origins.read(text_of(line))
        return time_of(read.text, read.when)

    def _learn_shape(self, looks: bytes, line: bytes) -> _Shape:
        """What lines of this shape may show."""
        anchors, shape = [], _QUIET
        if self._anchor.search(looks):
            anchors = [(word, one) for alike, word, one in self._anchors if alike in looks]
            if anchors or _INFO not in looks or _RAISED.search(looks):
                shape = _Shape(looks, anchors)
        if shape is _QUIET and _STEP.search(line.lower(), 0, LONGEST):
            shape = _PACED
        if shape in (_QUIET, _PACED) and self._origins.may_contradict(line):
            return shape
        self._shapes[looks] = shape
        return shape

    def _look_for_failure(self, line: Line, place: Place, order: int) -> None:
        """Remember the first line that reports a failure; NCCL's INFO lines are skipped."""
        if self._found.failure is not None:
            return
        text = line.text.encode()
        if _INFO in text or _HARMLESS.search(text):
            return
        certain = _CERTAIN.search(text) or not _NOTICE.search(text)
        failure = _FAILURE.search(text) if certain else None
        if failure and not is_supposed(text.decode("latin-1"), *failure.span()):
            if not TRIED_AGAIN.search(line.text):
                self._found.failure = place
            elif order > self._tried[0]:
                self._tried = order, place

    def _close(self, story: _Story, file: _File) -> None:
        symptom, text = story.symptom, "\n".join(story.texts)
        fields = symptom.fields(text)
        if fields is None:
            return
        found, source = self._found, story.place.source
        found.counts[symptom.id] += 1
        speaker = story.line.speaker.joined(file.whose)
        if "world" in fields:
            self._learn(fields, speaker, file, story.order)
        time = time_of(fields.get("time", text), story.line.when)
        self._tell_attempts(story, file, fields, time)
        if symptom.reads == "end" and not self._with_rank_of_gpu(fields, speaker):
            return
        if "end" in fields:
            found.ended = story.order
        found.several |= "parallel" in fields
        key = (
            symptom.id,
            (source, found.attempt(source), speaker, tuple(sorted(fields.items()))[:6]),
        )
        self._kept[key] += 1
        most = _KEPT if symptom.role == "fact" else 2 * _KEPT
        if self._kept[key] > _KEPT_EACH or len(found.hits) >= most:
            return
        hit = Hit(
            symptom=symptom,
            place=story.place,
            speaker=speaker,
            fields=fields,
            time=time,
            order=story.order,
            tried_again=TRIED_AGAIN.search(story.texts[0]) is not None,
        )
        found.hits.append(hit)
        if symptom.reads in ("summary", "end"):  # a launcher, which is no rank itself
            self._origins.reports(speaker, int(fields["rank"]))
        self._summaries.take(hit)

    def _tell_attempts(
        self, story: _Story, file: _File, fields: dict[str, str], time: float | None
    ) -> None:
        """Note what shows that an attempt of the job has ended, or that another has begun."""
        now, settled, reads = file.progress, self._found.settled, story.symptom.reads
        reports = reads in ("summary", "end")
        if "settled" in fields or ("started" in fields and (time or 0) > now.over):
            self._begin_attempt(file, settled, story.order)
        elif "again" in fields or ("started" in fields and time is None and now.step):
            self._begin_attempt(file, self._found.again, story.order)
        if (reports or reads == "timeout") and (time or 0) > now.over + _LATE_S:
            self._begin_attempt(file, settled, now.reported)
        if reports or any("CANCELLED AT" in text for text in story.texts):
            own = time_of(fields.get("time", story.line.text), story.line.when)
            now.over = (own or self._time_of(now.line) or inf) + _PAUSE_S
            now.reported = story.order

    @staticmethod
    def _begin_attempt(file: _File, since: dict[str, Any], order: int) -> None:
        """Note where another attempt begins: what it tells is new."""
        since[file.source] = order
        file.repeats.seen.clear()

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

        Another process on the same GPU shows another attempt.
        """
        world, rank = int(fields["world"]), int(fields.get("rank", 0))
        comm, here = fields.pop("comm", ""), (speaker.node, fields.get("gpu", ""))
        if speaker.pid is not None and comm:
            if speaker.pid not in self._processes.get(here, {speaker.pid: comm}):
                self._processes.clear()
                self._begin_attempt(file, self._found.settled, order)
                self._found.world = 0
            first = self._processes.setdefault(here, {}).setdefault(speaker.pid, comm)
            self._found.several |= comm != first
        self._found.several |= self._found.world not in (0, world)
        if world > self._found.world:
            self._found.world = world
            self._origins.forget()
        if world == self._found.world and speaker.node and speaker.pid is not None:
            self._origins.learn(speaker, speaker.pid, rank)
            gpu = whole(fields.get("gpu", ""), 1 << 16)
            if gpu is not None:
                self._origins.learn_gpu(speaker.node, rank - gpu)

    def _of_rank(self, one: LoggedException) -> LoggedException:
        return replace(one, speaker=self._origins.settled(one.speaker))

    def _with_rank(self, hit: Hit, raised: dict[tuple[str, int], Speaker]) -> Hit:
        """Add the rank to a hit that has only a process id, or is in torchrun's summary.

        `raised`: the speakers of exceptions, by place.
        """
        speaker = self._origins.settled(hit.speaker)
        if speaker.rank is None:
            named = self._summaries.within(hit.place)
            speaker = named or raised.get((hit.place.source, hit.place.line)) or speaker
        return replace(hit, speaker=speaker)
