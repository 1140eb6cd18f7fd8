"""The words that Slurm shows for a drained node: whose drain it is, which check, what was seen.

`sinfo -R` prints twenty characters of them, and other tools tell drains apart by how they begin.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from preflight.hook.model import Occasion

PREFIX: Final = "pf:"
LONGEST: Final = 120

_JOB_LONGEST, _CHECK_LONGEST = 24, 48
_ASKED: Final[dict[Occasion, str]] = {"prolog": "prolog", "healthcheck": "health check"}
_NOT_IN_A_JOB = re.compile(r"[^0-9A-Za-z_+.]")
_NOT_IN_A_CHECK = re.compile(r"[^0-9a-z_.]")
_PLAINER = str.maketrans(
    {"=": ":", ",": ";", '"': "", "'": "", "`": "", "\\": "/", "\u00d7": "x", "\u00b5": "u"}
    | dict.fromkeys("\u2013\u2014\u2212", "-")
)
"""No quotes, `=` or `,`: scripts cut what sinfo and scontrol print at these."""

_OURS = re.compile(
    r"pf:(?P<check>[0-9a-z_]+(?:\.[0-9a-z_]+)+) (?P<words>.+) "
    r"\[(?:node|preflight)\] (?:job (?P<job>[0-9A-Za-z_+.]+)|prolog|health check)"
)


class Ours(Struct, frozen=True, kw_only=True):
    """What a reason of ours says."""

    check: str
    words: str
    job: str = ""


def compose(
    check: str, sentence: str, job: str = "", *, whose: str = "node", occasion: Occasion = "prolog"
) -> str:
    """Join check, number and job into at most 120 printable ASCII characters.

    `pf:gpu.count 7 of 8 GPUs answer [node] job 81723`. Where the sentence is too long, its end is
    cut: sentences begin with the number that was seen. `whose`: `node`, or `preflight` for a fault
    of our own. Without a job it ends in what asked.
    """
    start = f"{PREFIX}{_NOT_IN_A_CHECK.sub('_', check.lower())[:_CHECK_LONGEST]} "
    number = _NOT_IN_A_JOB.sub("", job)[:_JOB_LONGEST]
    end = f" [{whose}] " + (f"job {number}" if number else _ASKED[occasion])
    return start + _cut(_plain(sentence), LONGEST - len(start) - len(end)) + end


def parse(reason: str) -> Ours | None:
    """Read a reason back; None for what anybody else wrote, or added something to."""
    found = _OURS.fullmatch(reason)
    if found is None or len(reason) > LONGEST:
        return None
    return Ours(check=found["check"], words=found["words"], job=found["job"] or "")


def _plain(sentence: str) -> str:
    ascii_only = sentence.translate(_PLAINER).encode("ascii", "replace").decode()
    shown = "".join(char if char.isprintable() else " " for char in ascii_only)
    return " ".join(shown.split()) or "no word"


def _cut(words: str, room: int) -> str:
    if len(words) <= room:
        return words
    short = words[: max(room - 2, 1)]
    whole = short.rpartition(" ")[0] if " " in short[room // 2 :] else short
    return f"{whole.rstrip(' ;:.')}.."
