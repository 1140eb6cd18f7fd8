"""What the numbers in a line change about its meaning: whose memory it is, how grave an Xid is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.facts.xids import known
from preflight.triage.explain import ibcodes
from preflight.triage.explain.decoded import errno_of, status_of
from preflight.triage.symptom import Category

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.facts.xids import Grade
    from preflight.triage.explain.model import Hit
    from preflight.triage.explain.scan import Found

_GIB = {"KiB": 2**-20, "MiB": 2**-10, "GiB": 1.0, "TiB": 2.0**10}
_WHOLE = 0.9
"""An allocation of so great a part of the GPU fits next to nothing: any rank would have failed."""
_GID = (22, 61)
"""errno of two ends whose GIDs do not fit."""
_FOREIGN = 0.25
"""That part of the GPU in others' hands is more than a driver's own."""
_NOT_FATAL = re.compile(r"[Nn]on-?[Ff]atal")
_PROVEN: tuple[Grade, ...] = ("fatal", "reset")
"""Xids after which the GPU is not fit, whatever ran on it."""


class Refined(Struct, frozen=True):
    """What one symptom says in this log."""

    category: Category
    confidence: float
    remark: str = ""


def lesser(hit: Hit) -> bool:
    """Whether this cause is but a sign here: a flushed queue, an Xid of a program's own."""
    if hit.symptom.id == "xid":
        return _grade(hit) not in _PROVEN
    return _flushed(hit)


def refined(hit: Hit, same: Sequence[Hit], found: Found) -> Refined:
    """Category and sureness of a hit; `same` are all hits of its symptom."""
    symptom = hit.symptom
    if symptom.id == "oom":
        return _memory(hit, same, found)
    return _xid(hit) if symptom.id == "xid" else _other(hit, found)


def _other(hit: Hit, found: Found) -> Refined:
    symptom = hit.symptom
    if _flushed(hit):
        return Refined("unknown", 0.3)
    if symptom.id == "rendezvous" and _more_than_all(hit):
        return Refined(
            "unknown", 0.4, "; more than were asked for: an earlier attempt's are counted"
        )
    if symptom.id == "address_garbled" and len(versions := _versions(found)) > 1:
        return Refined("version_mismatch", 0.7, f"; NCCL {' and '.join(versions)} met")
    if symptom.id == "ib_queue_pair" and errno_of(hit.fields) in _GID and found.counts["gid_index"]:
        return Refined("env_misconfig", 0.75, "; NCCL_IB_GID_INDEX is pinned")
    return Refined(symptom.category, symptom.confidence)


def _versions(found: Found) -> list[str]:
    """Of NCCL, as the processes told them."""
    facts = (one.fields for one in found.hits if one.symptom.id == "nccl_version")
    return sorted({told["nccl"] for told in facts})


def _more_than_all(hit: Hit) -> bool:
    """A group that was started again counts the keys of its first attempt in the same store."""
    came, of_all = hit.fields.get("came", ""), hit.fields.get("all", "")
    return came.isdecimal() and of_all.isdecimal() and int(came) > int(of_all)


def _flushed(hit: Hit) -> bool:
    """A flushed queue is the consequence of something, never the start."""
    return hit.symptom.id == "ib_completion" and status_of(hit.fields) == ibcodes.FLUSHED


def _grade(hit: Hit) -> Grade:
    code = known(int(hit.fields.get("xid", "0")))
    if code.worded and _NOT_FATAL.search(hit.place.text):
        return "configurable"
    return code.grade


def _xid(hit: Hit) -> Refined:
    grade = _grade(hit)
    if grade in _PROVEN:
        return Refined(hit.symptom.category, hit.symptom.confidence)
    if grade == "application":
        return Refined("other", 0.6, "; a program's fault more often than the GPU's")
    return Refined("unknown", 0.3, "; that alone does not tell whose fault it is")


def _memory(hit: Hit, same: Sequence[Hit], found: Found) -> Refined:
    tried, total = _gib(hit.fields.get("tried")), _gib(hit.fields.get("total"))
    own, free = _gib(hit.fields.get("own")), _gib(hit.fields.get("free"))
    ranks = {one.speaker.rank for one in same if one.speaker.rank is not None}
    if found.world > 1 and len(ranks) == found.world:
        remark = f"; all {found.world} ranks did: the work does not fit these GPUs"
        return Refined("other", 0.85, remark)
    if tried and total and tried >= _WHOLE * total:
        remark = "; nearly a whole GPU at once: no rank could have had that"
        return Refined("other", 0.55, remark)
    if own and total and free is not None and total - own - free >= _FOREIGN * total:
        foreign = total - own - free
        remark = f"; {foreign:.1f} GiB of it belong to others than this process"
        return Refined("oom_one_rank", 0.9, remark)
    return Refined(hit.symptom.category, hit.symptom.confidence)


def _gib(words: str | None) -> float | None:
    if not words:
        return None
    number, _, unit = words.partition(" ")
    return float(number) * _GIB.get(unit, 1.0)
