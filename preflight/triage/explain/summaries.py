"""Torchrun's summaries of what failed: they give a rank to lines that name none themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.triage.explain.model import Speaker
from preflight.triage.explain.thrown import ECHOES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.triage.explain.model import Hit, Place
    from preflight.triage.explain.tracebacks import Raised

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
        self._alone: list[Place] = []

    def take(self, hit: Hit) -> int | None:
        """Keep what belongs to a summary; the rank that was the first to fail, if this names it."""
        if hit.symptom.id == ALONE:
            self._alone.append(hit.place)
        if hit.symptom.id != SUMMARY:
            return None
        named = Speaker(rank=int(hit.fields["rank"]), node=hit.fields.get("node", ""))
        self._told.append((hit, named))
        return named.rank

    def within(self, place: Place) -> Speaker | None:
        """Whom the summary that a line stands in is of."""
        for hit, named in self._told:
            if hit.place.source == place.source and 0 < place.number - hit.place.number < _LONG:
                return named
        return None

    def named(self, raised: Sequence[Raised]) -> list[Raised]:
        """Exceptions with the ranks that are known from the summaries."""
        alone = self._of_the_only_one(raised)
        return [self._whose(one, alone) for one in raised]

    def _whose(self, one: Raised, alone: tuple[Raised, Speaker] | None) -> Raised:
        if one.speaker.rank is not None:
            return one
        if alone is not None and one is alone[0]:
            return replace(one, speaker=alone[1])
        named = self.within(replace(one.place, number=one.began))
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
            one.source == place.source and 0 < place.number - one.number <= _ABOVE
            for one in self._alone
        )
        own = [
            one
            for one in raised
            if one.kind not in ECHOES
            and not (one.place.source == place.source and one.place.number > place.number)
        ]
        if not alone or hit.fields.get("exitcode") != _RAISED or len(own) != 1:
            return None
        (one,) = own
        if one.speaker.rank is not None or one.place.source != place.source:
            return None
        return one, named
