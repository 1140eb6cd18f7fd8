"""Reads in the folder of a watched launch how it ended and why it hung, for the answer."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from preflight.core.files import read_regular
from preflight.core.text import percent
from preflight.hang.answer_text import Alternative
from preflight.hang.diagnose.job_state import Diagnosis
from preflight.hang.explain.explanation import Explanation, Place
from preflight.hang.watch.evidence import DIAGNOSIS, RECORD, end_words

if TYPE_CHECKING:
    from preflight.hang.explain.symptom import Category

_UNREADABLE = (OSError, ValueError, RecursionError, msgspec.MsgspecError)
_LARGEST_BYTES = 16 << 20
_CATEGORIES: dict[str, Category] = {
    "desync": "collective_mismatch", "link": "nic_or_ib_link", "unknown": "unknown",
}  # fmt: skip
"""By the category of a diagnosis; any other is of a rank for which the others wait."""
_NO_CAUSE = ("no_failure", "unknown")
_OF_A_HANG = ("other", "timeout_rank_missing", "collective_mismatch")
"""What the log of a hang shows, if anything, also where its user ended it."""


class Ending(Struct):
    """How a launch ended, as `preflight watch` wrote into watch.json."""

    exit: int = 0
    signal: int = 0
    stalled: bool = True
    """Whether it failed in a stall; no such key: it still runs, or its watch was killed."""


class WatchedLaunch(NamedTuple):
    """A launch under `preflight watch`."""

    ending: Ending
    hang: Explanation | None
    """Its last diagnosis as an answer, of which the diagnosis' file is the only proof."""

    @property
    def diagnoses(self) -> list[Path]:
        """That file, if there is one."""
        return [Path(place.source) for place in self.hang.evidence] if self.hang else []


def watched_launches(folders: Iterable[Path]) -> list[WatchedLaunch]:
    """The launches of the watch folders among these."""
    launches = []
    for folder in folders:
        with suppress(*_UNREADABLE):
            content = read_regular(folder / RECORD, _LARGEST_BYTES)
            ending = msgspec.json.decode(content, type=Ending)
            launches.append(WatchedLaunch(ending, _last_diagnosis(folder)))
    return launches


def _last_diagnosis(folder: Path) -> Explanation | None:
    files = sorted(folder.glob(DIAGNOSIS.format("*")), key=lambda file: (len(file.name), file))
    for file in reversed(files):  # the last one may be written only in part
        with suppress(*_UNREADABLE):
            hang = msgspec.json.decode(read_regular(file, _LARGEST_BYTES), type=Diagnosis)
            text = f"{hang.category} ({percent(hang.confidence)} sure)"
            return Explanation(
                category=_CATEGORIES.get(hang.category, "timeout_rank_missing"),
                culprits=hang.culprits, sentence=f"the job hung: {hang.sentence}",
                advice=hang.advice, evidence=(Place(str(file.with_suffix(".txt")), 1, text),),
                confidence=hang.confidence, next=hang.next, line=hang.line,
            )  # fmt: skip
    return None


def with_launch(answer: Explanation, launch: WatchedLaunch) -> Explanation:
    """Add how the launch ended; if it hung to its end, why it hung is the answer."""
    ending, hang = launch.ending, launch.hang
    if answer.category == "no_failure" and (ending.signal or ending.exit):
        how = end_words(-ending.signal or ending.exit)
        sentence = f"the launch ended {how}; {answer.sentence}"
        answer = replace(answer, category="unknown", sentence=sentence)
    if hang is None:
        return answer
    less_clear = (*_NO_CAUSE, *(_OF_A_HANG if hang.category != "unknown" else ()))
    leads = ending.stalled and answer.category in less_clear
    first, second = (hang, answer) if leads else (answer, hang)
    other = Alternative(second.category, second.sentence, 0.0)
    return replace(
        first, evidence=(*hang.evidence, *answer.evidence), lines=answer.lines, waits=answer.waits,
        alternatives=(*[other] * (second.category not in _NO_CAUSE), *first.alternatives)[:3],
    )  # fmt: skip
