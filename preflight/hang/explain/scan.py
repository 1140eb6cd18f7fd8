"""Finds every symptom in logs as they stream by: 50 MB/s of NCCL's chatter, in bounded memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.triage.explain.anchors import any_of
from preflight.triage.explain.model import Hit, Place, Speaker
from preflight.triage.explain.reading import chunks, text_of
from preflight.triage.explain.speakers import speaker_of, speaker_of_file
from preflight.triage.explain.summaries import Summaries
from preflight.triage.explain.times import time_of
from preflight.triage.explain.tracebacks import Tracebacks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from preflight.triage.explain.tracebacks import Raised
    from preflight.triage.symptom import Symptom

_KEPT_EACH = 3
"""Hits of one symptom by one speaker that are kept: the first ones."""
_KEPT = 20_000
"""Hits in all."""
_SHOWN = 400
"""Characters of a line that are kept as proof."""

_INFO = b"NCCL INFO "
_CHATTER = frozenset(
    {
        *(b"Channe", b"Trees ", b"Ring 0", b"Ring 1", b"Connec", b"thread", b"Settin", b"AllRed"),
        *(b"AllGat", b"Reduce", b"Broadc", b"Send: ", b"Recv: ", b"P2P Ch", b"Tree 0", b"Tree 1"),
        *(b"=== Sy", b"NVLS t", b"CPU/0-", b"CPU/1-", b"+ PCI[", b"+ NVL[", b"+ NET[", b"=====\n"),
    }
)
"""What a line of NCCL begins with that never tells of a failure; without them nothing changes but
the speed."""


@dataclass
class Found:
    """All that a set of logs gave."""

    hits: list[Hit] = field(default_factory=list)
    raised: list[Raised] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """How often each symptom was met, those not kept included."""
    ranks: set[int] = field(default_factory=set)
    """Global ranks that any line was written by."""
    roots: set[int] = field(default_factory=set)
    """Global ranks that torchrun calls the first to fail."""
    ended: int = 0
    """The last line, in the order of reading, that says the job came to its end; 0 if none."""
    world: int = 0
    """The greatest number of ranks that anybody told of; 0 if nobody did."""
    lines: int = 0
    troubles: list[str] = field(default_factory=list)


@dataclass
class _Open:
    """A symptom whose following lines belong to it."""

    symptom: Symptom
    texts: list[str]
    number: int
    order: int


class Scanner:
    """Looks for symptoms, file by file; who is who is learned on the way."""

    def __init__(self, symptoms: Sequence[Symptom]) -> None:
        self._anchor = any_of(word.encode() for each in symptoms for word in each.anchors)
        self._by_anchor: dict[bytes, list[Symptom]] = {}
        for each in symptoms:
            for word in each.anchors:
                self._by_anchor.setdefault(word.encode(), []).append(each)
        self._kept: Counter[tuple[str, object]] = Counter()
        self._processes: dict[tuple[str, int], int] = {}
        self._summaries = Summaries()
        self._found = Found()

    def read(self, paths: Iterable[Path]) -> Found:
        """Scan them one after the other."""
        for path in paths:
            self._file(path)
        found = self._found
        found.raised = self._summaries.named(found.raised)
        by_place = {
            (one.place.source, one.place.number): one.speaker
            for one in found.raised
            if one.speaker.rank is not None
        }
        found.hits = [self._who(hit, by_place) for hit in found.hits]
        return found

    def _file(self, path: Path) -> None:
        source, whose = str(path), speaker_of_file(path)
        tracebacks = Tracebacks(source, whose)
        still: list[_Open] = []
        number = 0
        found = self._found
        anchored = self._anchor.search
        for lines in chunks(path, found.troubles):
            for line in lines:
                number += 1
                at = line.find(_INFO)
                if at >= 0 and not still and line[at + 10 : at + 16] in _CHATTER:
                    continue
                if still or tracebacks.open:
                    text = text_of(line)
                    still = self._feed(still, text, source, whose)
                    tracebacks.feed(text, number, found.lines + number)
                if b"Traceback (most" in line:
                    tracebacks.begin(text_of(line), number)
                if anchored(line) is not None:
                    text = text_of(line)
                    for began in self._begun(line, text, number, found.lines + number):
                        if began.symptom.span:
                            still.append(began)
                        else:
                            self._close(began, source, whose)
        for each in still:
            self._close(each, source, whose)
        found.lines += number
        found.raised += tracebacks.raised

    def _begun(self, line: bytes, text: str, number: int, order: int) -> list[_Open]:
        """Begin with every symptom of which an anchor is in this line."""
        symptoms = {
            each.id: each
            for word, those in self._by_anchor.items()
            if word in line  # the expression finds one of those that overlap only
            for each in those
        }
        return [_Open(symptom, [text], number, order) for symptom in symptoms.values()]

    def _feed(self, still: list[_Open], text: str, source: str, whose: Speaker) -> list[_Open]:
        left: list[_Open] = []
        for each in still:
            each.texts.append(text)
            if len(each.texts) > each.symptom.span:
                self._close(each, source, whose)
            else:
                left.append(each)
        return left

    def _close(self, began: _Open, source: str, whose: Speaker) -> None:
        symptom, text = began.symptom, "\n".join(began.texts)
        told = symptom.fields(text)
        if told is None:
            return
        found = self._found
        speaker = speaker_of(began.texts[0]).joined(whose)
        if "world" in told:
            self._learn(told, speaker)
        if "end" in told:
            found.ended = began.order
        if speaker.rank is not None:
            found.ranks.add(speaker.rank)
        found.counts[symptom.id] += 1
        key = (symptom.id, (source, speaker, tuple(sorted(told.items()))[:6]))
        self._kept[key] += 1
        if self._kept[key] > _KEPT_EACH or len(found.hits) >= _KEPT:
            return
        place = Place(source, began.number, began.texts[0][:_SHOWN])
        hit = Hit(
            symptom=symptom,
            place=place,
            speaker=speaker,
            fields=told,
            time=time_of(text),
            order=began.order,
        )
        found.hits.append(hit)
        root = self._summaries.take(hit)
        if root is not None:
            found.roots.add(root)

    def _learn(self, told: dict[str, str], speaker: Speaker) -> None:
        """A communicator's line joins rank and process; the largest one has the global ranks."""
        world, rank = int(told["world"]), int(told.get("rank", 0))
        if world > self._found.world:
            self._found.world = world
            self._processes.clear()
        if world == self._found.world and speaker.node and speaker.pid is not None:
            self._processes[speaker.node, speaker.pid] = rank

    def _who(self, hit: Hit, raised: dict[tuple[str, int], Speaker]) -> Hit:
        """Name the rank of a process that said its number only, or that torchrun sums up.

        `raised`: who raised the exception in which the words stand.
        """
        speaker = hit.speaker
        if speaker.rank is not None:
            return hit
        rank = self._processes.get((speaker.node, speaker.pid or -1))
        if rank is not None:
            self._found.ranks.add(rank)
            return replace(hit, speaker=replace(speaker, rank=rank))
        named = self._summaries.within(hit.place)
        named = named or raised.get((hit.place.source, hit.place.number))
        return hit if named is None else replace(hit, speaker=named)
