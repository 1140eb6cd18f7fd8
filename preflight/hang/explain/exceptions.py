"""Finds Python exceptions in a log: which of them ended a rank, which rank, and where.

Tracebacks are followed line by line; torchrun's summary names the rank of one without a prefix.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from preflight.hang.explain.symptom import (
    Explanation,
    Hit,
    Place,
    Speaker,
    names,
    proofs,
    rank_words,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
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
    """Read a line's prefixes. `[rank9]:` is global; `[Rank 1]` may count only within a group.

    Torch writes the second beside the first; alone it counts as global.
    """
    rank = _RANK.search(text)
    if rank is None and "what():" not in text:  # a rank that dies by it has a prefix before it
        rank = _OWN_RANK.search(text) or _PREFIXED.match(text)
    nccl = _NCCL.search(text)
    return Speaker(
        rank=int(rank[rank.lastindex or 1]) if rank else None,
        node=nccl[1] if nccl else "",
        pid=int(nccl[2]) if nccl else None,
    )


def speaker_of_file(path: Path) -> Speaker:
    """The rank in a file's name is the speaker: `rank3.log`, `logs/rank_12/stderr`."""
    for part in (path.name, path.parent.name):
        named = _IN_NAME.search(part)
        if named:
            return Speaker(rank=int(named[1]))
    return Speaker()


_GLOG = re.compile(r"\b[IWEFC](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d(?:\.\d+)?)")
_SHORT = re.compile(r"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d(?:[.,]\d+)?) \[?[\w/.]+\.py:\d")
_ISO = re.compile(r"\b(?:19|20)\d\d[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d(?:[.,]\d+)?)")


def time_of(text: str) -> tuple[float, ...] | None:
    """(month, day, seconds of the day), the form that all formats share; None without a time.

    No year: torch's own prefix has none.
    """
    found = _GLOG.search(text) or _ISO.search(text) or _SHORT.search(text)
    if found is None:
        return None
    month, day, hour, minute, second = (float(each.replace(",", ".")) for each in found.groups())
    return (month, day, hour * 3600 + minute * 60 + second)


_MOST = 200
"""Limit of stored tracebacks."""
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
    r"|[a-z_][\w.]*\.[A-Z]\w{2,60})(?::\s*(?P<message>.*))?$"
)
_LIBRARY = re.compile(
    r"(?:site|dist)-packages|/lib/python3|<frozen|/torch/distributed/|/bin/(?:torchrun|accelerate|deepspeed)$"
)


class LoggedException(Struct, frozen=True, kw_only=True):
    """One uncaught exception."""

    kind: str
    message: str
    file: str
    """The file of the innermost frame outside libraries; "" if there is none."""
    line: int
    code: str
    script: str
    """The started script, if the outermost frame shows it; otherwise ""."""
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
    """Follows the tracebacks of one file, of several ranks at a time."""

    def __init__(self, source: str, whose: Speaker) -> None:
        self._source = source
        self._whose = whose
        self._running: dict[int | None, _Running] = {}
        self.raised: list[LoggedException] = []

    @property
    def open(self) -> bool:
        """Whether a traceback has begun and not ended."""
        return bool(self._running)

    def begin(self, text: str, number: int) -> None:
        """Start a traceback at the line that announces it."""
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
            self._end(running, ends["kind"], ends["message"] or "", (number, order, text))
            del self._running[speaker.rank]
        elif running.lines > _LONGEST:
            del self._running[speaker.rank]

    def _end(self, running: _Running, kind: str, message: str, at: tuple[int, int, str]) -> None:
        number, order, text = at
        if len(self.raised) >= _MOST:
            return
        file, line, code = running.own
        self.raised.append(
            LoggedException(
                kind=kind.rpartition(".")[2],
                message=message[:300],
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


_T = TypeVar("_T", Hit, LoggedException)


def in_order_of_time(some: Iterable[_T]) -> list[_T]:
    """In order of their own times if all have one, otherwise in order of reading."""
    every = sorted(some, key=lambda one: one.order)
    if all(one.time is not None for one in every):
        every.sort(key=lambda one: one.time or ())
    return every


ECHOES = frozenset((
    "ChildFailedError", "DistBackendError", "DistStoreError", "DistNetworkError",
    "RendezvousTimeoutError", "RendezvousConnectionError", "RendezvousClosedError",
    "ProcessRaisedException", "ProcessExitedException", "SignalException", "CalledProcessError",
    "SystemExit", "KeyboardInterrupt", "BrokenPipeError", "ConnectionResetError", "EOFError",
    "RayActorError", "ActorDiedError", "ActorUnavailableError", "WorkerCrashedError",
))  # fmt: skip
"""Exceptions that report the end of another process, or that have their own symptoms."""
_WRAPS = re.compile(
    r"NCCL (?:[Ee]rror|communicator was aborted)|nccl\w{0,60}Error|unhandled (?:system|cuda) error"
    r"|Timed out waiting \d+ms for (?:recv|send)|[Cc]onnection (?:closed|reset) by|[Bb]roken pipe"
    r"|Socket Timeout|Application timeout caused pair closure|worker process.{0,40}(?:died|exited)"
)
"""Messages of exceptions that only pass on a library's error: the cause is elsewhere."""


def own_faults(
    raised: Sequence[LoggedException], survived: dict[int, int]
) -> list[LoggedException]:
    """Exceptions that ended their rank and are no echo of another rank's end."""
    return [
        one
        for one in raised
        if one.kind not in ECHOES
        and not _WRAPS.search(one.message)
        and one.order >= survived.get(-1 if one.speaker.rank is None else one.speaker.rank, 0)
    ]


def of_exceptions(thrown: Sequence[LoggedException], roots: Collection[int]) -> Explanation:
    """The explanation for exceptions: the first rank that raised one ended the others.

    `roots`: ranks that torchrun names as the first to fail.
    """
    seen_first = [one for one in thrown if one.speaker.rank in roots]
    first = in_order_of_time(seen_first or thrown)[0]
    same = [one for one in thrown if (one.kind, one.message) == (first.kind, first.message)]
    ranks = sorted({one.speaker.rank for one in same if one.speaker.rank is not None})
    place = f" at {first.file}:{first.line}" if first.file else ""
    code = f" ({first.code})" if first.code else ""
    subject = first.speaker.words or "a rank"
    named = names(first.speaker)
    if len(ranks) > 1:
        subject = rank_words(ranks)
        named = tuple(f"rank {rank}" for rank in ranks[:16])
    message = f": {first.message}" if first.message else ""
    return Explanation(
        category="other",
        culprits=named,
        sentence=f"{subject} raised {first.kind}{message}{place}{code}",
        cause="an exception in the script or in a library; later errors of other ranks are echoes",
        advice="correct the code at that line; the other ranks only waited for this one",
        next=with_script("preflight lint SCRIPT", [first]),
        evidence=proofs(one.place for one in [first, *same, *thrown]),
        confidence=0.8,
    )


def with_script(words: str, raised: Sequence[LoggedException]) -> str:
    """Put the script that all these exceptions name into a preflight command."""
    scripts = {one.script for one in raised if one.kind not in ECHOES and one.script}
    if len(scripts) != 1 or not words.endswith(" SCRIPT"):
        return words
    (script,) = scripts
    return f"{words.removesuffix('SCRIPT')}{shlex.quote(script)}"


SUMMARY, ALONE = "child_failed", "failed_alone"
_LONG = 12
"""Lines of the summary of one failed rank."""
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

    def take(self, hit: Hit) -> int | None:
        """Store what belongs to a summary; return the rank that failed first, if this names it."""
        if hit.symptom.id == ALONE:
            self._alone.append(hit.place)
        if hit.symptom.id != SUMMARY:
            return None
        named = Speaker(rank=int(hit.fields["rank"]), node=hit.fields.get("node", ""))
        self._failed.append((hit, named))
        self._at.setdefault((hit.place.source, hit.place.line), named)
        return named.rank

    def within(self, place: Place) -> Speaker | None:
        """The rank and node of the summary that contains a line."""
        above = range(place.line - _LONG + 1, place.line)
        return next(filter(None, (self._at.get((place.source, number)) for number in above)), None)

    def named(self, raised: Sequence[LoggedException]) -> list[LoggedException]:
        """Add the ranks known from the summaries to exceptions."""
        alone = self._of_the_only_one(raised)
        return [self._whose(one, alone) for one in raised]

    def _whose(
        self, one: LoggedException, alone: tuple[LoggedException, Speaker] | None
    ) -> LoggedException:
        if one.speaker.rank is not None:
            return one
        if alone is not None and one is alone[0]:
            return replace(one, speaker=alone[1])
        named = self.within(replace(one.place, line=one.began))
        return one if named is None else replace(one, speaker=named)

    def _of_the_only_one(
        self, raised: Sequence[LoggedException]
    ) -> tuple[LoggedException, Speaker] | None:
        """The only exception before the summary of the only rank that failed by an exception.

        With two exceptions, one may belong to another rank, which caught it.
        """
        if len({named.rank for _, named in self._failed}) != 1:
            return None
        hit, named = self._failed[0]
        place = hit.place
        alone = any(
            one.source == place.source and 0 < place.line - one.line <= _ABOVE
            for one in self._alone
        )
        own = [
            one
            for one in raised
            if one.kind not in ECHOES
            and not (one.place.source == place.source and one.place.line > place.line)
        ]
        if not alone or hit.fields.get("exitcode") != _RAISED or len(own) != 1:
            return None
        (one,) = own
        if one.speaker.rank is not None or one.place.source != place.source:
            return None
        return one, named
