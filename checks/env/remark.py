"""A launch script has several mistakes at once: all are told, the worst first, in one verdict.

Told from the job's Python (`software` of the facts). Where that does not tell a version, or another
library is put in front of it, nothing is judged by versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct

from preflight.checks.software.test_versions import version
from preflight.core.text import starred
from preflight.verdict import Verdict, fail, unknown, warn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from preflight.facts.model import Facts


UNKNOWN_JOB: Final = (
    "no job environment known; give --preflight-env-file, --preflight-launch, "
    "or run inside the allocation"
)
SHOWN: Final = 3
"""Remarks in one sentence; the evidence has all."""

_LONGEST_VALUE: Final = 60
_RANK: Final = {"fail": 0, "unknown": 1, "warn": 2}


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing that is wrong. `fail`: the job dies, hangs, or does the opposite of what is set."""

    sentence: str
    advice: str
    weight: Literal["fail", "unknown", "warn"] = "fail"
    cause: str = ""
    """What another check may remark on too: both are then one finding."""
    hangs: bool = False
    """The job waits for ever and logs nothing: told before all that it dies of with a message."""


def told(name: str, value: str) -> str:
    """NAME='value', without passwords, cut to what a line can hold."""
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


class Editions(Struct, frozen=True):
    """Versions by owner of a variable: "NCCL" to "2.21.5"; of others nothing is known."""

    nccl: str = ""
    torch: str = ""

    def of(self, owner: str) -> str:
        """The version of whoever reads a variable; "" where it is not known."""
        return {"NCCL": self.nccl, "torch": self.torch}.get(owner, "")

    def before(self, owner: str, first: str) -> bool:
        """Whether the one here is known to be older than `first`, "2.24"."""
        here = version(self.of(owner))
        return bool(here) and here < version(first)


def editions(facts: Facts | None, environ: Mapping[str, str]) -> Editions:
    """Read the versions of a node, as far as this job will load them."""
    if facts is None or facts.software is None:
        return Editions()
    torch = facts.software.torch.version if facts.software.torch else ""
    preloaded = "nccl" in environ.get("LD_PRELOAD", "")
    return Editions(nccl="" if preloaded else facts.software.nccl or "", torch=torch)
