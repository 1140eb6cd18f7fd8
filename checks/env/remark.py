"""Turns several remarks about a job's settings into one verdict, the worst first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from msgspec import Struct

from preflight.core.text import starred
from preflight.verdict import Verdict, fail, unknown, warn

UNKNOWN_JOB: Final = (
    "no job environment known; give --preflight-env-file, --preflight-launch, "
    "or run inside the allocation"
)
SHOWN: Final = 3
"""Remarks in one sentence; the evidence holds all of them."""

_LONGEST_VALUE: Final = 60
_RANK: Final = {"fail": 0, "unknown": 1, "warn": 2}


class Remark(Struct, frozen=True):
    """One thing that is wrong. `fail`: the job dies, hangs, or does the opposite of what is set."""

    sentence: str
    advice: str
    weight: Literal["fail", "unknown", "warn"] = "fail"
    cause: str = ""
    """Shared with another check that reports the same fault: both are then one finding."""
    hangs: bool = False
    """The job waits forever and logs nothing: reported before faults that end it with a message."""


def show(name: str, value: str) -> str:
    """Format NAME=value: passwords masked, long values cut, unusual ones quoted."""
    shown = starred(value)
    shown = shown if len(shown) <= _LONGEST_VALUE else shown[: _LONGEST_VALUE - 3] + "..."
    return f"{name}={shown!a}" if not shown or not _plain(shown) else f"{name}={shown}"


def _plain(value: str) -> bool:
    return value.isascii() and value.isprintable() and not set(value) & set(" '\"")


def verdict(remarks: Iterable[Remark], fine: Verdict, origin: str = "") -> Verdict:
    """All remarks in one verdict, or the given one where there are none."""
    ranked = sorted(remarks, key=lambda one: (_RANK[one.weight], not one.hangs))
    if not ranked:
        return fine
    more = (
        f"; and {len(ranked) - SHOWN} more: all in the JSON report" if len(ranked) > SHOWN else ""
    )
    sentence = "; ".join(one.sentence for one in ranked[:SHOWN]) + more
    sentence += f" ({origin})" if origin else ""
    advice = "; ".join(dict.fromkeys(one.advice for one in ranked[:SHOWN]))
    conclude = {"fail": fail, "unknown": unknown, "warn": warn}[ranked[0].weight]
    cause = ranked[0].cause if len(ranked) == 1 else ""
    evidence = [one.sentence for one in ranked]
    return conclude(sentence, advice=advice, cause=cause, findings=evidence)
