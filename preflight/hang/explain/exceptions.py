"""Judges logged exceptions: whose they are, which of them ended a rank, and what to do.

Torchrun's summaries of failed ranks name the rank of an exception without one.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from preflight.core.files import shipped_table
from preflight.hang.explain.explanation import Explanation, Hit, Speaker, names, proofs, rank_words
from preflight.hang.explain.tracebacks import LoggedException

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from preflight.hang.explain.explanation import Place


Failure = Hit | LoggedException
"""What may have ended the job."""
_T = TypeVar("_T", Hit, LoggedException)


def in_order_of_time(some: Iterable[_T]) -> list[_T]:
    """In order of their own times if all have one, otherwise in order of reading."""
    every = sorted(some, key=lambda failure: failure.order)
    if all(failure.time is not None for failure in every):
        every.sort(key=lambda failure: failure.time or 0)
    return every


_NUMBER = re.compile(r"\d+")
_TABLE = shipped_table(__file__, "exceptions.toml")
ECHOES = frozenset(_TABLE["echo_kinds"])
"""Exceptions that report the end of another process, or that have their own symptoms."""
_LAUNCHERS = frozenset(("ChildFailedError", "SignalException", "CalledProcessError"))
_WRAPS = re.compile("|".join(_TABLE["passed_on"]))
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


@cache
def _advice_by_pattern() -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(row["matches"]), row["advice"]) for row in _TABLE["row"]]


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
            if error.kind not in _LAUNCHERS
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
            if error.speaker.rank is None and error.kind not in _LAUNCHERS
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
