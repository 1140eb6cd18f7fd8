"""What a symptom means in this log: its category and confidence, by what else the log shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.text import whole
from preflight.facts.boards import GRADES, xid_info
from preflight.hang.explain.attempts import exit_code
from preflight.hang.explain.exceptions import in_order_of_time
from preflight.hang.explain.explanation import (
    Explanation,
    Speaker,
    culprits,
    number_of,
    proofs,
    rank_words,
    with_meanings,
)
from preflight.hang.explain.failure_words import AT_END
from preflight.hang.explain.symptom import Category

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.facts.boards import Grade
    from preflight.hang.explain.explanation import Hit
    from preflight.hang.explain.scan import ScanResult
    from preflight.hang.explain.symptom import Circumstance

_GIB = {"K": 2**-20, "M": 2**-10, "G": 1.0, "T": 2.0**10}
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?([KMGT])i?B")
_WHOLE = 0.9
"""Share of the GPU: an allocation this large would have failed on any rank."""
_FOREIGN = 0.25
"""Share of the GPU: if others use more, it is not only the driver."""
_SEVERAL = 4
"""Ranks that write lines: so many stand for all where no line shows how many there are."""
_OTHER_LIBRARY = "another library in the same process (TensorFlow, JAX, cuDF) took the rest"
_LIMIT_IT = (
    "keep that library off the GPU, or limit it: tf.config.set_visible_devices([], 'GPU'), "
    "XLA_PYTHON_CLIENT_PREALLOCATE=false"
)
_NOT_FATAL = re.compile(r"[Nn]on-?[Ff]atal")
_PROVEN: tuple[Grade, ...] = ("fatal", "reset")
"""Xids after which the GPU is faulty, whatever ran on it."""


class Meaning(Struct, frozen=True):
    """The meaning of one symptom in this log."""

    category: Category
    confidence: float
    remark: str = ""
    cause: str = ""
    advice: str = ""


def is_lesser(hit: Hit, scan: ScanResult) -> bool:
    """Whether this cause is only a sign here: a flushed queue, an Xid that a program caused."""
    if hit.symptom.reads == "xid":
        return _grade(hit) not in _PROVEN
    here = circumstance(hit, scan)
    return here is not None and here.lesser


def meaning_of(hit: Hit, same: Sequence[Hit], scan: ScanResult) -> Meaning:
    """Category and confidence of a hit; `same` are all hits of its symptom."""
    if hit.symptom.reads == "memory":
        return _memory(hit, same, scan)
    here = circumstance(hit, scan)
    if here is None and hit.symptom.reads == "xid":
        return _xid(hit)
    if here is None:
        return Meaning(hit.symptom.category, hit.symptom.confidence)
    several = " and ".join(_values(here.several, scan))
    remark = here.remark.format(several=several)
    return Meaning(here.category, here.confidence, remark, here.cause, here.advice)


def circumstance(hit: Hit, scan: ScanResult) -> Circumstance | None:
    """What changes the meaning of its symptom here."""
    return next((case for case in hit.symptom.when if _holds(case, hit, scan)), None)


def _holds(case: Circumstance, hit: Hit, scan: ScanResult) -> bool:
    if case.greater is not None:
        first, second = (whole(hit.fields.get(name, "")) for name in case.greater)
        if first is None or second is None or first <= second:
            return False
    return (
        all(number_of(hit, field) in numbers for field, numbers in case.numbers.items())
        and (not case.met or case.met in scan.symptom_ids)
        and (not case.several or len(_values(case.several, scan)) > 1)
        and case.world in (0, scan.world_size)
        and (not case.one_node or scan.on_one_node)
        and (not case.last or (scan.line_count - hit.order <= AT_END and not scan.first_step_line))
    )


def _values(field: str, scan: ScanResult) -> list[str]:
    return sorted({hit.fields[field] for hit in scan.hits if field in hit.fields})


def _grade(hit: Hit) -> Grade:
    code = xid_info(int(hit.fields.get("xid", "0")))
    if code.worded and _NOT_FATAL.search(hit.place.text):
        return "configurable"
    return code.grade


def _xid(hit: Hit) -> Meaning:
    grade = _grade(hit)
    if grade in _PROVEN:
        return Meaning(hit.symptom.category, hit.symptom.confidence)
    if grade == "application":
        return Meaning("other", 0.6, "; more often a program's fault than the GPU's")
    return Meaning("unknown", 0.3, "; this alone does not show the cause")


def _memory(hit: Hit, same: Sequence[Hit], scan: ScanResult) -> Meaning:
    tried, total = _gib(hit.fields.get("tried")), _gib(hit.fields.get("total"))
    own, free = _gib(hit.fields.get("own")), _gib(hit.fields.get("free"))
    ranks = {other.speaker.rank for other in same if other.speaker.rank is not None}
    everyone = scan.world_size or max(len(scan.writers), _SEVERAL)
    if everyone > 1 and len(ranks) == everyone:
        remark = f"; all {everyone} ranks did: the work does not fit these GPUs"
        return Meaning("other", 0.85, remark)
    if tried and total and tried >= _WHOLE * total:
        return Meaning("other", 0.55, "; nearly a whole GPU at once: it would fail on any rank")
    foreign = total - own - free if own and total and free is not None else 0.0
    if total and foreign >= _FOREIGN * total:
        return Meaning("oom_one_rank", 0.9, f"; {foreign:.1f} GiB of it belongs to other processes")
    if own and total and "allocated" in hit.fields and own - _pooled(hit) >= _FOREIGN * total:
        remark = f"; {own - _pooled(hit):.1f} GiB of its own memory is not PyTorch's"
        return Meaning("oom_one_rank", 0.9, remark, _OTHER_LIBRARY, _LIMIT_IT)
    doubted = "CUDA error: " in hit.place.text  # not torch's allocator: perhaps a faulty GPU
    return Meaning(hit.symptom.category, 0.75 if doubted else hit.symptom.confidence)


def _pooled(hit: Hit) -> float:
    """GiB that PyTorch's allocator holds, as the line shows it."""
    parts = [_gib(hit.fields.get(name)) for name in ("allocated", "cached")]
    return sum(part or 0 for part in parts)


def _gib(words: str | None) -> float | None:
    size = _SIZE.fullmatch(words or "")
    return float(size[1]) * _GIB[size[2]] if size else None


def gravest_first(some: Sequence[Hit], scan: ScanResult) -> list[Hit]:
    """In order of time; after an Xid: the gravest of its node first, and a program's own last.

    A faulty GPU makes programs fail, and the GPUs that it talked to log Xids as well.
    """
    some = in_order_of_time(some)
    if not some or some[0].symptom.reads != "xid":
        return some
    of_node = ("xid", some[0].speaker.node)

    def order(hit: Hit) -> tuple[bool, int]:
        if (hit.symptom.reads, hit.speaker.node) != of_node:
            return True, len(GRADES)
        return meaning_of(hit, (), scan).category != "gpu_hardware", GRADES.index(_grade(hit))

    return sorted(some, key=order)


def explain_hit(hit: Hit, hits: Sequence[Hit], scan: ScanResult) -> Explanation:
    """The answer if this hit shows the first failure."""
    symptom = hit.symptom
    weight = is_lesser(hit, scan)
    same = [o for o in hits if o.symptom.id == symptom.id and is_lesser(o, scan) == weight]
    same = [o for o in same if o.fields.get("xid") == hit.fields.get("xid")]
    speakers = ended_as(scan, symptom.exits)
    if hit.speaker.rank is None and len(speakers) == 1:
        hit = replace(hit, speaker=next(iter(speakers.values())).joined(hit.speaker))
        same = [hit, *same]
    fields = _fields_with_speaker(hit, same)
    alike = _ended_alike(hit, same, scan)
    if len(alike) > 1:
        fields = {name: value for name, value in fields.items() if name not in _OF_ONE}
    here = meaning_of(hit, same, scan)
    is_shown = len(alike) > 1 and not (symptom.reads == "memory" and here.remark)
    together = _ALIKE.format(rank_words(alike)) if is_shown else ""
    xid = xid_info(int(fields.get("xid", "0"))) if symptom.reads == "xid" else None
    names_culprit = here.category != "unknown" or symptom.role == "echo" or symptom.dies
    who = culprits(same if symptom.role != "echo" else (), hit) if names_culprit else ()
    if len(alike) > 1 or "several" in fields:
        who = tuple(f"rank {rank}" for rank in sorted(alike)[:16]) if symptom.dies else ()
    return Explanation(
        category=here.category,
        culprits=who,
        sentence=symptom.sentence(fields) + together + here.remark,
        cause=here.cause or symptom.cause,
        advice=xid.advice if xid is not None and xid.source else here.advice or symptom.advice,
        next=symptom.check,
        evidence=proofs(other.place for other in same),
        confidence=min(here.confidence, _TRIED_AGAIN) if hit.tried_again else here.confidence,
    )


_TRIED_AGAIN = 0.45
"""Confidence at most of a failure after which the program tries again."""
_BY_LAUNCHER = -15
_OF_ONE = ("speaker", "rank", "rank_words", "local_rank", "pid")
_ALIKE = "; {} ended alike, so that no single one is at fault: the cause is common to them"


def _ended_alike(hit: Hit, same: Sequence[Hit], scan: ScanResult) -> set[int]:
    """The ranks that ended as this one did, at the same time as far as it is known."""
    by_torchrun = hit.symptom.role == "echo" and hit.fields.keys() & {"exitcode", "local_rank"}
    if by_torchrun and exit_code(hit) != _BY_LAUNCHER:
        return {*ended_as(scan, (exit_code(hit),))}
    if not hit.symptom.dies:
        return set()
    ranks = {other.speaker.rank for other in same if other.speaker.rank is not None}
    return ranks.union(ended_as(scan, hit.symptom.exits))


def ended_as(scan: ScanResult, codes: Sequence[int]) -> dict[int, Speaker]:
    """The ranks that launchers saw end first with one of these codes, and their nodes."""
    ends: dict[int, Hit] = {}
    for hit in scan.hits:
        if hit.symptom.reads == "end" and exit_code(hit) in codes:
            rank = int(hit.fields["rank"])
            ends[rank] = ends.get(rank, hit) if hit.time is None else hit
    first = min((hit.time for hit in ends.values() if hit.time is not None), default=None)
    return {
        rank: Speaker(rank=rank, node=hit.fields.get("node", ""))
        for rank, hit in ends.items()
        if hit.time in (None, first)
    }


def _fields_with_speaker(hit: Hit, same: Sequence[Hit]) -> dict[str, str]:
    """The hit's fields; the speaker is the only rank among its symptom's hits, if it has none."""
    fields = with_meanings(hit)
    ranks = {
        other.speaker.rank: other.speaker.words for other in same if other.speaker.rank is not None
    }
    if hit.speaker.rank is None and len(ranks) == 1:
        fields["speaker"] = next(iter(ranks.values()))
    peers = {other.fields["peer"] for other in same if "peer" in other.fields}
    if not fields.keys() & {"peer", "node", "store"} and len(peers) == 1:
        fields |= {"peer": peers.pop()}
    return fields
