"""Reads torchrun's summaries of failed ranks, which name the rank of an exception without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.hang.explain.exceptions import LAUNCHERS, own_faults
from preflight.hang.explain.explanation import Speaker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.hang.explain.explanation import Hit, Place
    from preflight.hang.explain.tracebacks import LoggedException


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
