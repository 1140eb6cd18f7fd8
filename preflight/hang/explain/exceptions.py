"""Python exceptions in a log: which of them ended a rank, whose it was, and where it was raised.

Tracebacks are followed line by line; torchrun's summary tells whose one without a rank was.
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


ECHOES = frozenset((
    "ChildFailedError", "DistBackendError", "DistStoreError", "DistNetworkError",
    "RendezvousTimeoutError", "RendezvousConnectionError", "RendezvousClosedError",
    "ProcessRaisedException", "ProcessExitedException", "SignalException", "CalledProcessError",
    "SystemExit", "KeyboardInterrupt", "BrokenPipeError", "ConnectionResetError", "EOFError",
    "RayActorError", "ActorDiedError", "ActorUnavailableError", "WorkerCrashedError",
))  # fmt: skip
"""Exceptions that tell of somebody else's end, or that have symptoms of their own."""
_WRAPS = re.compile(
    r"NCCL (?:[Ee]rror|communicator was aborted)|nccl\w{0,60}Error|unhandled (?:system|cuda) error"
    r"|Timed out waiting \d+ms for (?:recv|send)|[Cc]onnection (?:closed|reset) by|[Bb]roken pipe"
    r"|Socket Timeout|Application timeout caused pair closure|worker process.{0,40}(?:died|exited)"
)
"""What an exception says that only passes on what a library met: its cause stands elsewhere."""


def own_faults(raised: Sequence[Raised], survived: dict[int, int]) -> list[Raised]:
    """Those that ended their rank, and are no echo of another rank's end."""
    return [
        one
        for one in raised
        if one.kind not in ECHOES
        and not _WRAPS.search(one.said)
        and one.order >= survived.get(-1 if one.speaker.rank is None else one.speaker.rank, 0)
    ]


def of_exceptions(thrown: Sequence[Raised], roots: Collection[int]) -> Explanation:
    """Code that raised: the first rank to do so ended the others.

    `roots`: ranks that torchrun saw fail first.
    """
    seen_first = [one for one in thrown if one.speaker.rank in roots]
    first = in_time(seen_first or thrown)[0]
    same = [one for one in thrown if (one.kind, one.said) == (first.kind, first.said)]
    ranks = sorted({one.speaker.rank for one in same if one.speaker.rank is not None})
    place = f" at {first.file}:{first.line}" if first.file else ""
    code = f" ({first.code})" if first.code else ""
    who = first.speaker.words or "a rank"
    named = names(first.speaker)
    if len(ranks) > 1:
        who = rank_words(ranks)
        named = tuple(f"rank {rank}" for rank in ranks[:16])
    said = f": {first.said}" if first.said else ""
    return Explanation(
        category="other",
        culprits=named,
        sentence=f"{who} raised {first.kind}{said}{place}{code}",
        cause="an exception in the script or in a library; what other ranks say after it is echo",
        advice="mend the code at that line; the others only waited for this rank",
        next=with_script("preflight lint SCRIPT", [first]),
        evidence=proofs(one.place for one in [first, *same, *thrown]),
        confidence=0.8,
    )


def with_script(words: str, raised: Sequence[Raised]) -> str:
    """A command of ours with the script that these exceptions name, where all name the same."""
    scripts = {one.script for one in raised if one.kind not in ECHOES and one.script}
    if len(scripts) != 1 or not words.endswith(" SCRIPT"):
        return words
    (script,) = scripts
    return f"{words.removesuffix('SCRIPT')}{shlex.quote(script)}"


SUMMARY, ALONE = "child_failed", "failed_alone"
_LONG = 12
"""Lines of the summary of one failed rank."""
_ABOVE = 6
"""Lines before that, among which the summary says whether another failed."""
_RAISED = "1"
"""How Python exits by an exception."""


class Summaries:
    """All that the logs hold; who is who may stand behind what it tells of."""

    def __init__(self) -> None:
        self._told: list[tuple[Hit, Speaker]] = []
        self._at: dict[tuple[str, int], Speaker] = {}
        self._alone: list[Place] = []

    def take(self, hit: Hit) -> int | None:
        """Keep what belongs to a summary; the rank that was the first to fail, if this names it."""
        if hit.symptom.id == ALONE:
            self._alone.append(hit.place)
        if hit.symptom.id != SUMMARY:
            return None
        named = Speaker(rank=int(hit.fields["rank"]), node=hit.fields.get("node", ""))
        self._told.append((hit, named))
        self._at.setdefault((hit.place.source, hit.place.line), named)
        return named.rank

    def within(self, place: Place) -> Speaker | None:
        """Whom the summary that a line stands in is of."""
        above = range(place.line - _LONG + 1, place.line)
        return next(filter(None, (self._at.get((place.source, number)) for number in above)), None)

    def named(self, raised: Sequence[Raised]) -> list[Raised]:
        """Exceptions with the ranks that are known from the summaries."""
        alone = self._of_the_only_one(raised)
        return [self._whose(one, alone) for one in raised]

    def _whose(self, one: Raised, alone: tuple[Raised, Speaker] | None) -> Raised:
        if one.speaker.rank is not None:
            return one
        if alone is not None and one is alone[0]:
            return replace(one, speaker=alone[1])
        named = self.within(replace(one.place, line=one.began))
        return one if named is None else replace(one, speaker=named)

    def _of_the_only_one(self, raised: Sequence[Raised]) -> tuple[Raised, Speaker] | None:
        """The one exception before the summary of a rank that failed alone, by an exception.

        Of two, one may be another rank's, who caught it.
        """
        if len({named.rank for _, named in self._told}) != 1:
            return None
        hit, named = self._told[0]
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
