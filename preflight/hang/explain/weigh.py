"""Which of the symptoms came first, what it means, and how sure that is."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.text import whole
from preflight.facts.boards import xid_info
from preflight.hang.answer_text import Alternative, rows
from preflight.hang.explain import watchdog
from preflight.hang.explain.exceptions import in_time, of_exceptions, own_faults, with_script
from preflight.hang.explain.symptom import (
    RANKING,
    Category,
    Explanation,
    culprits,
    decoded,
    number_of,
    proofs,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preflight.facts.boards import Grade
    from preflight.hang.explain.exceptions import Raised
    from preflight.hang.explain.scan import Found
    from preflight.hang.explain.symptom import Circumstance, Hit


_LATER = 10
"""So many lines may follow: warnings that are printed while it waits."""


def of_members(found: Found) -> Explanation | None:
    """What the first words of the processes tell where nothing else does; None for nothing.

    Nobody is accused: the processes of another node may write elsewhere. Rank 0 alone says that
    all have come, so without it a log is no witness.
    """
    facts = [hit for hit in found.hits if hit.symptom.id == "members"]
    came = Counter(int(hit.fields["member"]) for hit in facts if "member" in hit.fields)
    sizes = {int(hit.fields["of"]) for hit in facts if "of" in hit.fields}
    if 0 not in came or len(sizes) != 1 or any("registered" in hit.fields for hit in facts):
        return None
    missing = list(islice((rank for rank in range(max(sizes)) if rank not in came), 9))
    if not missing or found.lines - max(hit.order for hit in facts) > _LATER:
        return None
    words = ", ".join(map(str, missing[:8])) + " ..." * (len(missing) > 8)  # noqa: PLR2004
    away = f"{len(came)} of {max(sizes)} ranks came, and the lines end there; not so: {words}"
    evidence = proofs(hit.place for hit in facts)
    if came[0] > 1:
        return Explanation(
            category="env_misconfig",
            sentence=f"two processes came as rank 0, and none as {words}",
            cause="two nodes were started with the same NODE_RANK, or two jobs write here",
            advice="give each node its own NODE_RANK, and start with one launcher only",
            next="launch.fits, env.ranks",
            evidence=evidence,
            confidence=0.7,
            alternatives=(Alternative("timeout_rank_missing", away, 0.0),),
        )
    return Explanation(
        category="timeout_rank_missing",
        sentence=away,
        cause="a node did not start its processes, or they cannot reach the first one",
        advice="look whether the other nodes' processes run, what they were told of NODE_RANK and "
        "MASTER_ADDR, and at the way to that port",
        next="net.ports, launch.fits",
        evidence=evidence,
        confidence=0.5,
    )


_GIB = {"KiB": 2**-20, "MiB": 2**-10, "GiB": 1.0, "TiB": 2.0**10}
_WHOLE = 0.9
"""An allocation of so great a part of the GPU fits next to nothing: any rank would have failed."""
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


def lesser(hit: Hit, found: Found) -> bool:
    """Whether this cause is but a sign here: a flushed queue, an Xid of a program's own."""
    if hit.symptom.id == "xid":
        return _grade(hit) not in _PROVEN
    here = _circumstance(hit, found)
    return here is not None and here.lesser


def refined(hit: Hit, same: Sequence[Hit], found: Found) -> Refined:
    """Category and sureness of a hit; `same` are all hits of its symptom."""
    if hit.symptom.id == "oom":
        return _memory(hit, same, found)
    if hit.symptom.id == "xid":
        return _xid(hit)
    here = _circumstance(hit, found)
    if here is None:
        return Refined(hit.symptom.category, hit.symptom.confidence)
    several = " and ".join(_values(here.several, found))
    return Refined(here.category, here.confidence, here.remark.format(several=several))


def _circumstance(hit: Hit, found: Found) -> Circumstance | None:
    return next((one for one in hit.symptom.when if _holds(one, hit, found)), None)


def _holds(one: Circumstance, hit: Hit, found: Found) -> bool:
    if one.greater is not None:
        first, second = (whole(hit.fields.get(name, "")) for name in one.greater)
        if first is None or second is None or first <= second:
            return False
    return (
        all(number_of(hit, field) in some for field, some in one.numbers.items())
        and (not one.met or found.counts[one.met] > 0)
        and (not one.several or len(_values(one.several, found)) > 1)
        and one.world in (0, found.world)
    )


def _values(field: str, found: Found) -> list[str]:
    return sorted({one.fields[field] for one in found.hits if field in one.fields})


def _grade(hit: Hit) -> Grade:
    code = xid_info(int(hit.fields.get("xid", "0")))
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


NOTHING = Explanation(
    sentence="nothing in these lines tells of a failure that is known here",
    advice="give the logs of all ranks from start to end; let the next run leave more: "
    "preflight watch -- torchrun --log-dir DIR --redirects 3 ...",
)
EMPTY = Explanation(
    sentence="there are no lines in what was given: it is empty",
    advice="look whether the output went elsewhere (srun --output, torchrun --log-dir, "
    "kubectl logs --previous); let the next run leave more: preflight watch --tee -- torchrun ...",
)
UNREAD = Explanation(
    sentence="no line of what was given could be read",
    advice="give the files as the job wrote them, or copy them again",
)
ENDED = Explanation(
    sentence="the job came to its end: it says so after all that looks like a failure",
    advice="if another job is meant, give its log; if it was slow: pytest --preflight "
    "--preflight-tier=standard",
)


ODD = ("mismatch", "behind", "missing")
"""What the time-outs of several ranks may tell together about one of them."""
_ALTERNATIVES = 3
_LIKELY = 0.5
"""A hint less sure than that is no answer about a job that did not fail."""


def explain(found: Found) -> Explanation:
    """Name the first failure in time; `unknown` where the lines do not establish one."""
    if not found.lines:
        return UNREAD if found.troubles else EMPTY
    survived = _survived(found)
    hits = [hit for hit in found.hits if hit.symptom.role != "fact" and not survived(hit)]
    late = watchdog.judge(hits, found.ranks, found.world)
    thrown = own_faults(found.raised, watchdog.survivors(hits))
    signs = [hit for hit in hits if hit.symptom.role == "sign" or lesser(hit, found)]
    ends = _first([*(hit for hit in signs if hit.symptom.dies), *thrown])
    causes: list[Hit] = []
    for hit in hits:
        if hit.symptom.role == "cause" and not lesser(hit, found):
            (signs if hit.symptom.follows and _follows(hit, ends) else causes).append(hit)
    causes, signs = in_time(causes), in_time(signs)
    telling = [hit for hit in signs if not hit.symptom.retried and not hit.symptom.waits]
    others = _others(hits)
    answer: Explanation
    if _ended_well(hits, found):
        answer = _of_hints(hits, found) or ENDED
    elif causes:
        answer = _of_hit(causes[0], hits, found)
    elif thrown and not _before(telling, thrown):
        answer = of_exceptions(thrown, found.roots)
    elif late is not None and late.kind in ODD and not _follows(late.proofs[0], _first(telling)):
        answer = _of_watchdog(late)
    else:
        answer = _of_signs(telling, signs, hits, found) or _of_rest(hits, found)
    return _with(answer, others, found)


def _survived(found: Found) -> Callable[[Hit], bool]:
    """Which failures ended nobody: the trainer caught them, and went on training."""
    last: dict[tuple[str, str], int] = {}
    for hit in found.hits:
        key = (hit.symptom.id, hit.place.source)
        last[key] = max(hit.order, last.get(key, 0))
    return lambda hit: hit.order < last.get((hit.symptom.survived_by, hit.place.source), 0)


def _ended_well(hits: Sequence[Hit], found: Found) -> bool:
    """Whether the job tells its end after all warnings, and nothing in it died: none ended it."""
    died = found.raised or any(
        hit.symptom.role == "echo" or (hit.symptom.role == "sign" and not hit.symptom.retried)
        for hit in hits
    )
    return not died and found.ended > max((hit.order for hit in hits), default=0)


def _of_rest(hits: Sequence[Hit], found: Found) -> Explanation:
    """Nothing failed in these lines, or nothing but echoes of it."""
    echoes = [hit for hit in hits if hit.symptom.role == "echo"]
    if echoes:
        return _of_hit(in_time(echoes)[0], hits, found)
    hints = [hit for hit in hits if _hints(hit, found)]
    return of_members(found) or (_of_hit(in_time(hints)[0], hits, found) if hints else NOTHING)


def _of_hints(hits: Sequence[Hit], found: Found) -> Explanation | None:
    """What may have slowed a job that came to its end; None for what is but a guess."""
    sure = [hit for hit in hits if _hints(hit, found) and hit.symptom.confidence >= _LIKELY]
    return _of_hit(in_time(sure)[0], hits, found) if sure else None


def _hints(hit: Hit, found: Found) -> bool:
    """Whether it is a hint that matters here."""
    here = _circumstance(hit, found)
    return hit.symptom.role == "hint" and not (here is not None and here.moot)


def _first(some: Sequence[Hit | Raised]) -> tuple[tuple[float, ...], float, float]:
    """Return the first clock, the first line, and the first line of those without a clock."""
    return (
        min((one.time for one in some if one.time is not None), default=(inf,)),
        min((one.order for one in some), default=inf),
        min((one.order for one in some if one.time is None), default=inf),
    )


def _follows(hit: Hit, ends: tuple[tuple[float, ...], float, float]) -> bool:
    """Whether a rank had died before this, by the clocks where both have one."""
    time, order, timeless = ends
    return order < hit.order if hit.time is None else time < hit.time or timeless < hit.order


def _before(telling: Sequence[Hit], thrown: Sequence[Raised]) -> bool:
    """Whether a sign is what the exception tells, or came earlier."""
    first = min(thrown, key=lambda one: one.order)
    return any(sign.order <= first.order for sign in telling)


def _of_hit(hit: Hit, hits: Sequence[Hit], found: Found) -> Explanation:
    symptom = hit.symptom
    weight = lesser(hit, found)
    same = [o for o in hits if o.symptom.id == symptom.id and lesser(o, found) == weight]
    told = _spoken(hit, same)
    here = refined(hit, same, found)
    named = here.category != "unknown" or symptom.role == "echo"
    return Explanation(
        category=here.category,
        culprits=culprits(same if symptom.role != "echo" else (), hit) if named else (),
        sentence=symptom.sentence(told) + here.remark,
        cause=symptom.cause,
        advice=symptom.advice,
        next=symptom.check,
        evidence=proofs(one.place for one in same),
        confidence=here.confidence,
    )


def _spoken(hit: Hit, same: Sequence[Hit]) -> dict[str, str]:
    """Its fields; where it tells no rank, and all that do name one, that is who spoke."""
    told = decoded(hit)
    ranks = {one.speaker.rank: one.speaker.words for one in same if one.speaker.rank is not None}
    if hit.speaker.rank is None and len(ranks) == 1:
        told["speaker"] = next(iter(ranks.values()))
    return told


def _of_watchdog(late: watchdog.Verdict) -> Explanation:
    category: Category = (
        "collective_mismatch" if late.kind == "mismatch" else "timeout_rank_missing"
    )
    if late.kind == "mismatch":
        cause = "the ranks' code took different ways: a branch by rank, data that end on one"
        advice = "compare what these ranks do at that step; TORCH_DISTRIBUTED_DEBUG=DETAIL names it"
    else:
        cause = "that rank was elsewhere: in its data loader, in saving, dead, or stopped"
        advice = "look at that rank's own log, and at its node, at that time"
    return Explanation(
        category=category,
        culprits=tuple(f"rank {rank}" for rank in late.ranks),
        sentence=late.sentence,
        cause=cause,
        advice=advice,
        next="preflight lint SCRIPT",
        evidence=proofs(hit.place for hit in late.proofs),
        confidence=0.85 if late.kind != "missing" else 0.75,
    )


def _of_signs(
    telling: Sequence[Hit], signs: Sequence[Hit], hits: Sequence[Hit], found: Found
) -> Explanation | None:
    """No cause is established: the most telling sign, and time-outs as what they are."""
    if telling:
        return _of_hit(telling[0], hits, found)
    timed_out = [hit for hit in signs if hit.symptom.id == watchdog.WATCHDOG]
    if timed_out:
        return _of_time_out(_of_hit(timed_out[0], hits, found), hits, found)
    waited = [hit for hit in signs if hit.symptom.waits]
    tried = [hit for hit in signs if hit.symptom.retried and hit.symptom.category != "unknown"]
    rest = waited or tried or signs
    return _of_hit(rest[0], hits, found) if rest else None


def _of_time_out(base: Explanation, hits: Sequence[Hit], found: Found) -> Explanation:
    """Who waited, and that these lines do not tell for whom."""
    late = watchdog.judge(hits, found.ranks, found.world)
    told = late.sentence if late is not None else base.sentence
    who = (
        "nobody is missing: the data did not get through, or the GPUs hang"
        if late is not None and late.kind == "all"
        else "who did not come is not in these lines"
    )
    sentence = f"{told}; {who}"
    return replace(base, category="unknown", sentence=sentence, confidence=0.3, culprits=())


def _others(hits: Sequence[Hit]) -> list[Alternative]:
    """One per category, the surest first."""
    best: dict[str, Hit] = {}
    for hit in hits:
        one = hit.symptom
        known = best.get(one.category)
        rank = (RANKING[one.role], -one.confidence)
        if one.category != "unknown" and (
            known is None or rank < (RANKING[known.symptom.role], -known.symptom.confidence)
        ):
            best[one.category] = hit
    told = [
        Alternative(hit.symptom.category, hit.symptom.sentence(decoded(hit)), 0.0)
        for hit in sorted(best.values(), key=lambda hit: -hit.symptom.confidence)
    ]
    instead = {category: said for hit in hits for category, said in hit.symptom.instead.items()}
    return told + [Alternative(one, instead[one], 0.0) for one in instead if one not in best]


def _with(answer: Explanation, others: Sequence[Alternative], found: Found) -> Explanation:
    """Add what else it might be: it shares what is left, and is never as sure as the answer."""
    rest = [one for one in (*others, *answer.alternatives) if one.category != answer.category]
    rest = rest[:_ALTERNATIVES]
    share = min((1 - answer.confidence) / (len(rest) + 1), answer.confidence / 2)
    return replace(
        answer,
        alternatives=tuple(replace(o, confidence=round(share, 2)) for o in rest),
        next=with_script(answer.next, found.raised),
        lines=found.lines,
    )


def lines(told: Explanation, width: int) -> list[str]:
    """Everything of it, wrapped."""
    labelled = (
        ("what", [told.sentence]),
        ("who", [", ".join(told.culprits) or "not told by these lines"]),
        ("why", [told.cause]),
        ("do", [told.advice]),
        ("next", [told.next]),
        ("proof", [f"{proof.source}:{proof.line}: {proof.text}" for proof in told.evidence]),
        ("or", [other.words for other in told.alternatives]),
    )
    return rows(told.category, told.confidence, labelled, width)
