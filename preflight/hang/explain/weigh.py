"""Which of the symptoms came first, what it means, and how sure that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.triage.explain import watchdog
from preflight.triage.explain.blamed import culprits, proofs
from preflight.triage.explain.decoded import decoded
from preflight.triage.explain.members import of_members
from preflight.triage.explain.model import Alternative, Explanation
from preflight.triage.explain.refine import lesser, refined
from preflight.triage.explain.silent import EMPTY, ENDED, NOTHING, UNREAD
from preflight.triage.explain.thrown import of_exceptions, own_faults, survivors, with_script
from preflight.triage.symptom import RANKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from preflight.triage.explain.model import Hit
    from preflight.triage.explain.scan import Found
    from preflight.triage.explain.tracebacks import Raised
    from preflight.triage.symptom import Category

DEATHS = ("oom", "killed", "crashed", "bus_error")
"""Signs after which a rank is no more, so that its peers' links fail too."""
WAITS = (watchdog.WATCHDOG, "gloo_wait")
"""Signs of those who only waited for another."""
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
    thrown = own_faults(found.raised, survivors(hits))
    signs = [hit for hit in hits if hit.symptom.role == "sign" or lesser(hit)]
    ends = _times([*(hit for hit in signs if hit.symptom.id in DEATHS), *thrown])
    causes: list[Hit] = []
    for hit in hits:
        if hit.symptom.role == "cause" and not lesser(hit):
            (signs if hit.symptom.follows and _follows(hit, ends) else causes).append(hit)
    causes, signs = _in_time(causes), _in_time(signs)
    telling = [hit for hit in signs if not hit.symptom.retried and hit.symptom.id not in WAITS]
    others = _others(hits)
    answer: Explanation
    if _ended_well(hits, found):
        answer = _of_hints(hits, found) or ENDED
    elif causes:
        answer = _of_hit(causes[0], hits, found)
    elif thrown and not _before(telling, thrown):
        answer = of_exceptions(thrown, found.roots)
    elif late is not None and late.kind in ODD and not _follows(late.proofs[0], _times(telling)):
        answer = _of_watchdog(late)
    else:
        answer = _of_signs(telling, signs, hits, found) or _of_rest(hits, found)
    return _with(answer, others, found)


def _survived(found: Found) -> Callable[[Hit], bool]:
    """Which memory that ran out ended nobody: its trainer caught it, and went on training."""
    last: dict[str, int] = {}
    for fact in found.hits:
        if fact.symptom.id == "oom_survived":
            last[fact.place.source] = max(fact.order, last.get(fact.place.source, 0))
    return lambda hit: hit.symptom.id == "oom" and hit.order < last.get(hit.place.source, 0)


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
        return _of_hit(_in_time(echoes)[0], hits, found)
    hints = [hit for hit in hits if _hints(hit, found)]
    return of_members(found) or (_of_hit(_in_time(hints)[0], hits, found) if hints else NOTHING)


def _of_hints(hits: Sequence[Hit], found: Found) -> Explanation | None:
    """What may have slowed a job that came to its end; None for what is but a guess."""
    sure = [hit for hit in hits if _hints(hit, found) and hit.symptom.confidence >= _LIKELY]
    return _of_hit(_in_time(sure)[0], hits, found) if sure else None


def _hints(hit: Hit, found: Found) -> bool:
    """Sockets are no mistake on a node that has no InfiniBand, nor for a rank without peers."""
    alone = found.counts["no_ib_device"] > 0 or found.world == 1
    sockets_alone = hit.symptom.id == "using_socket" and alone
    return hit.symptom.role == "hint" and not sockets_alone


def _in_time(hits: Sequence[Hit]) -> list[Hit]:
    """By their own clocks where all have one, else as they were read."""
    if all(hit.time is not None for hit in hits):
        return sorted(hits, key=lambda hit: (hit.time or (), hit.order))
    return sorted(hits, key=lambda hit: hit.order)


def _times(some: Iterable[Hit | Raised]) -> list[tuple[tuple[float, ...] | None, int]]:
    return [(one.time, one.order) for one in some]


def _follows(hit: Hit, ends: Sequence[tuple[tuple[float, ...] | None, int]]) -> bool:
    """Whether a rank had died before this, by the clocks where both have one."""
    return any(
        time < hit.time if time is not None and hit.time is not None else order < hit.order
        for time, order in ends
    )


def _before(telling: Sequence[Hit], thrown: Sequence[Raised]) -> bool:
    """Whether a sign is what the exception tells, or came earlier."""
    first = min(thrown, key=lambda one: one.order)
    return any(sign.order <= first.order for sign in telling)


def _of_hit(hit: Hit, hits: Sequence[Hit], found: Found) -> Explanation:
    symptom = hit.symptom
    same = [one for one in hits if one.symptom.id == symptom.id and lesser(one) == lesser(hit)]
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
    timed_out = [hit for hit in signs if hit.symptom.id == watchdog.WATCHDOG]
    if telling:
        answer = _of_hit(telling[0], hits, found)
        if telling[0].symptom.id == "storage" and timed_out:
            told = f"{answer.sentence}; the others timed out waiting"
            return _changed(answer, category="timeout_rank_missing", sentence=told, confidence=0.7)
        return answer
    if timed_out:
        return _of_time_out(_of_hit(timed_out[0], hits, found), hits, found)
    waited = [hit for hit in signs if hit.symptom.id in WAITS]
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
    return _changed(base, category="unknown", sentence=f"{told}; {who}", confidence=0.3)


def _changed(
    answer: Explanation, *, category: Category, sentence: str, confidence: float
) -> Explanation:
    named = () if category == "unknown" else answer.culprits
    return replace(
        answer, category=category, sentence=sentence, confidence=confidence, culprits=named
    )


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
