"""Turns several remarks about a job's settings into one verdict, the worst first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from msgspec import Struct

from preflight.core.text import mask_secrets
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
    text = mask_secrets(value)
    text = text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."
    return f"{name}={text!a}" if not text or not _plain(text) else f"{name}={text}"


def _plain(value: str) -> bool:
    return value.isascii() and value.isprintable() and not set(value) & set(" '\"")


def verdict(remarks: Iterable[Remark], fine: Verdict, origin: str = "") -> Verdict:
    """All remarks in one verdict, or the given one where there are none."""
    ranking = sorted(remarks, key=lambda remark: (_RANK[remark.weight], not remark.hangs))
    if not ranking:
        return fine
    sentence = "; ".join(remark.sentence for remark in ranking[:SHOWN])
    if len(ranking) > SHOWN:
        sentence += f"; and {len(ranking) - SHOWN} more: all in the JSON report"
    sentence += f" ({origin})" if origin else ""
    advice = "; ".join(dict.fromkeys(remark.advice for remark in ranking[:SHOWN]))
    conclude = {"fail": fail, "unknown": unknown, "warn": warn}[ranking[0].weight]
    cause = ranking[0].cause if len(ranking) == 1 else ""
    evidence = [remark.sentence for remark in ranking]
    return conclude(sentence, advice=advice, cause=cause, findings=evidence)
