"""Decides which symptom came first, what it means, and with which confidence."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.facts.boards import xid_info
from preflight.hang.answer_text import Alternative, rows
from preflight.hang.diagnose.job_state import ranks
from preflight.hang.explain import watchdog
from preflight.hang.explain.attempts import (
    DOUBTED,
    IMPORTED,
    ended_well,
    exit_code,
    is_unsettled,
    last_attempt,
    perhaps_survived,
    survived,
)
from preflight.hang.explain.exceptions import (
    LoggedException,
    in_order_of_time,
    of_exceptions,
    own_faults,
    with_script,
    without_caught_imports,
)
from preflight.hang.explain.explanation import (
    Explanation,
    Speaker,
    culprits,
    proofs,
    rank_words,
    with_meanings,
)
from preflight.hang.explain.meaning import circumstance, gravest_first, lesser, refine
from preflight.hang.explain.symptom import RANKING, Category, next_commands

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.hang.explain.explanation import Hit
    from preflight.hang.explain.scan import ScanResult


_ROWS = 8
"""Rows of the table of waits on a terminal."""
_LATER = 10
"""This many lines may follow: warnings printed during the wait."""


def of_members(found: ScanResult) -> Explanation | None:
    """An explanation from the processes' first lines, if there is nothing else; or None.

    It names no culprit: the processes of another node may write elsewhere. Only rank 0 reports
    that all ranks joined, so a log without rank 0 proves nothing.
    """
    facts = [hit for hit in found.hits if hit.symptom.reads == "member"]
    came = Counter(int(hit.fields["member"]) for hit in facts if "member" in hit.fields)
    sizes = {int(hit.fields["of"]) for hit in facts if "of" in hit.fields}
    if 0 not in came or len(sizes) != 1 or any("registered" in hit.fields for hit in facts):
        return None
    missing = list(islice((rank for rank in range(max(sizes)) if rank not in came), 9))
    if not missing or found.lines - max(hit.order for hit in facts) > _LATER:
        return None
    words = ", ".join(map(str, missing[:8])) + " ..." * (len(missing) > 8)  # noqa: PLR2004
    away = f"{len(came)} of {max(sizes)} ranks joined, and the log ends there; missing: {words}"
    evidence = proofs(hit.place for hit in facts)
    if came[0] > 1 and not any("waits" in hit.fields for hit in facts):
        return Explanation(
            category="env_misconfig",
            sentence=f"two processes joined as rank 0, and none as {words}",
            cause="two nodes were started with the same NODE_RANK, or two jobs write this log",
            advice="give each node a different NODE_RANK, and start with only one launcher",
            next="launch.fits, env.ranks",
            evidence=evidence,
            confidence=0.7,
            alternatives=(Alternative("timeout_rank_missing", away, 0.0),),
        )
    return Explanation(
        category="timeout_rank_missing",
        sentence=away,
        cause="a node did not start its processes, or they cannot reach the first one",
        advice="check that the other nodes' processes run, their NODE_RANK and MASTER_ADDR, and "
        "the network path to that port",
        next="net.ports, launch.fits",
        evidence=evidence,
        confidence=0.5,
    )


NOTHING = Explanation(
    sentence="these lines show no failure that preflight knows",
    advice="give the logs of all ranks from start to end; collect more in the next run: "
    "preflight watch -- torchrun --log-dir DIR --redirects 3 ...",
)
NO_FAILURE = Explanation(
    category="no_failure",
    sentence="no line shows a failure",
    advice="if the job hangs: preflight diagnose, on its nodes; if it died: give the logs of all "
    "ranks, from start to end",
)
EMPTY = Explanation(
    sentence="the given logs are empty",
    advice="find where the output went (srun --output, torchrun --log-dir, kubectl logs "
    "--previous); collect more in the next run: preflight watch --tee -- torchrun ...",
)
UNREAD = Explanation(
    sentence="no line of the given logs could be read",
    advice="give the files as the job wrote them, or copy them again",
)
ENDED = Explanation(
    category="no_failure",
    sentence="the job ended normally: it reports its end after all that looks like a failure",
    advice="for another job, give its log; if this one was slow: preflight check --tier=standard",
)


_SAYS_LITTLE = 0.2
"""Confidence of an echo that shows only that something had failed."""
ODD = ("mismatch", "behind", "missing")
"""Kinds of verdicts in which the timeouts of several ranks show an odd one."""
_ALTERNATIVES = 3
_LIKELY = 0.5
"""Confidence that a hint needs to be the answer for a job that did not fail."""


def explain(found: ScanResult) -> Explanation:
    """Name the first failure in time; `unknown` if the lines do not show one."""
    if not found.lines:
        return UNREAD if found.troubles else EMPTY
    others = _others([hit for hit in found.hits if hit.symptom.role != "fact"])
    found, doubt = last_attempt(found)
    is_survived = survived(found)
    hits = [hit for hit in found.hits if hit.symptom.role != "fact" and not is_survived(hit)]
    late = watchdog.judge(hits, found)
    every = own_faults(found.raised, watchdog.survivors(hits))
    thrown = without_caught_imports(every)
    doubt = doubt or IMPORTED * (len(thrown) < len(every))
    left = _first([hit for hit in hits if hit.symptom.role == "echo" and "code" in hit.fields])
    signs = [
        hit
        for hit in hits
        if (hit.symptom.role == "sign" and not (hit.symptom.follows and _follows(hit, left)))
        or lesser(hit, found)
    ]
    ends = _first([*(hit for hit in signs if hit.symptom.dies), *thrown])
    causes: list[Hit] = []
    for hit in hits:
        if hit.symptom.role == "cause" and not lesser(hit, found):
            follows = hit.retried or (hit.symptom.follows and _follows(hit, ends))
            (signs if follows else causes).append(hit)
    causes, signs = (gravest_first(in_order_of_time(some), found) for some in (causes, signs))
    own = [hit for hit in signs if not hit.retried and not hit.symptom.waits]
    telling = [hit for hit in own if hit.symptom.reads != "call"]
    roots = {int(hit.fields["rank"]): hit.time for hit in hits if hit.symptom.reads == "summary"}
    telling, thrown = _of_first_root(roots, telling, thrown)
    # A failed call is earlier than the others' waits for its rank, but no earlier than a mismatch.
    before = telling if late is not None and late.kind == "mismatch" else own
    answer: Explanation
    failures: list[Hit | LoggedException] = [*causes, *thrown]
    failures = [one for one in failures if is_unsettled(one, found)]
    if ended_well(hits, failures, found):
        answer, doubt = _of_hints(hits, found) or ENDED, ""
    elif causes:
        answer = _with_ranks(_of_hit(causes[0], hits, found), late)
    elif thrown and not _before(telling, thrown):
        answer = of_exceptions(thrown, roots)
    elif late is not None and late.kind in ODD and not _follows(late.proofs[0], _first(before)):
        answer = _of_the_dead(late, telling, hits, found) or _of_watchdog(late)
    else:
        answer = _of_signs(telling or own, signs, hits, found) or _of_rest(hits, found)
    if doubt or (failures and (doubt := perhaps_survived(hits, found))):
        sure = min(answer.confidence, DOUBTED)
        answer = replace(answer, sentence=answer.sentence + doubt, confidence=sure)
    answer = replace(answer, consequences=_consequences(answer, hits))
    return _with_alternatives(answer, others, found)


def _of_first_root(
    roots: Mapping[int, float | None], telling: list[Hit], thrown: list[LoggedException]
) -> tuple[list[Hit], list[LoggedException]]:
    """What is of the rank that failed first by the times of several nodes' torchruns, if known."""
    failed: list[Hit | LoggedException] = [*telling, *thrown]
    ranks = {one.speaker.rank for one in failed} & {*roots}
    dated = sorted((time, rank) for rank, time in roots.items() if rank in ranks and time)
    if not 1 < len(ranks) == len(dated) or dated[0][0] == dated[1][0]:
        return telling, thrown
    root = dated[0][1]
    return (
        [hit for hit in telling if hit.speaker.rank == root],
        [one for one in thrown if one.speaker.rank == root],
    )


_MOST_CONSEQUENCES = 4
_FEWEST = 2
"""Ranks that waited, so that the only other one is missing."""


def _consequences(answer: Explanation, hits: Sequence[Hit]) -> tuple[str, ...]:
    """What other ranks only report: time-outs, lost peers, ends by the launcher."""
    proven = {(one.source, one.line) for one in answer.evidence}
    groups: dict[str, list[Hit]] = {}
    for hit in hits:
        passive = hit.symptom.waits or hit.retried or hit.symptom.reads == "timeout"
        if passive and (hit.place.source, hit.place.line) not in proven:
            groups.setdefault(hit.symptom.id, []).append(hit)
    sentences = []
    for same in groups.values():
        ranks = {hit.speaker.rank for hit in same if hit.speaker.rank is not None}
        who = f"{rank_words(ranks)}: " if ranks else ""
        sentences.append(f"{who}{same[0].symptom.sentence(with_meanings(same[0]))}")
    return tuple(sentences[:_MOST_CONSEQUENCES]) if answer.confidence >= _LIKELY else ()


def _of_rest(hits: Sequence[Hit], found: ScanResult) -> Explanation:
    """The answer if these lines show no failure, or only echoes of one."""
    echoes = [hit for hit in hits if hit.symptom.role == "echo"]
    if echoes:
        telling = [hit for hit in echoes if hit.symptom.confidence > _SAYS_LITTLE]
        return _of_hit(in_order_of_time(telling or echoes)[0], hits, found)
    hints = [hit for hit in hits if _is_relevant_hint(hit, found)]
    known = of_members(found)
    if known is not None or hints:
        return known or _of_hit(in_order_of_time(hints)[0], hits, found)
    if found.failure is None and not found.troubles:
        return NO_FAILURE
    if found.failure is None:
        return NOTHING
    line = proofs((found.failure,))[0].text
    sentence = f"no known cause; the first line that reports a failure is: {line}"
    return replace(NOTHING, sentence=sentence, evidence=(found.failure,), confidence=0.2)


def _of_hints(hits: Sequence[Hit], found: ScanResult) -> Explanation | None:
    """What may have slowed a job that ended normally; None if it is only a guess."""
    sure = [
        hit for hit in hits if _is_relevant_hint(hit, found) and hit.symptom.confidence >= _LIKELY
    ]
    return _of_hit(in_order_of_time(sure)[0], hits, found) if sure else None


def _is_relevant_hint(hit: Hit, found: ScanResult) -> bool:
    """Whether it is a hint that matters here."""
    here = circumstance(hit, found)
    return hit.symptom.role == "hint" and not (here is not None and here.moot)


def _first(some: Sequence[Hit | LoggedException]) -> tuple[float, float, float]:
    """The first time, the first line, and the first line without a time."""
    return (
        min((one.time for one in some if one.time is not None), default=inf),
        min((one.order for one in some), default=inf),
        min((one.order for one in some if one.time is None), default=inf),
    )


def _follows(hit: Hit, ends: tuple[float, float, float]) -> bool:
    """Whether a rank died before this hit, by times if both have one."""
    time, order, timeless = ends
    return order < hit.order if hit.time is None else time < hit.time or timeless < hit.order


def _before(telling: Sequence[Hit], thrown: Sequence[LoggedException]) -> bool:
    """Whether a sign is in the exception itself or came earlier."""
    first = min(thrown, key=lambda one: one.order)
    return any(sign.order <= first.order for sign in telling)


def _of_hit(hit: Hit, hits: Sequence[Hit], found: ScanResult) -> Explanation:
    symptom = hit.symptom
    weight = lesser(hit, found)
    same = [o for o in hits if o.symptom.id == symptom.id and lesser(o, found) == weight]
    same = [o for o in same if o.fields.get("xid") == hit.fields.get("xid")]
    if hit.speaker.rank is None and (only := rank_by_exit(found, symptom.exits)) is not None:
        hit = replace(hit, speaker=only.joined(hit.speaker))
        same = [hit, *same]
    fields = _fields_with_speaker(hit, same)
    xid = xid_info(int(fields.get("xid", "0"))) if symptom.reads == "xid" else None
    here = refine(hit, same, found)
    named = here.category != "unknown" or symptom.role == "echo" or symptom.dies
    return Explanation(
        category=here.category,
        culprits=culprits(same if symptom.role != "echo" else (), hit) if named else (),
        sentence=symptom.sentence(fields) + here.remark,
        cause=symptom.cause,
        advice=xid.advice if xid is not None and xid.source else symptom.advice,
        next=symptom.check,
        evidence=proofs(one.place for one in same),
        confidence=min(here.confidence, DOUBTED) if hit.tried_again else here.confidence,
    )


def rank_by_exit(found: ScanResult, codes: Sequence[int]) -> Speaker | None:
    """The only rank that a launcher saw end with one of these codes, and its node."""
    ended = {
        int(hit.fields["rank"]): hit.fields.get("node", "")
        for hit in found.hits
        if hit.symptom.reads == "end" and exit_code(hit) in codes
    }
    if len(ended) != 1:
        return None
    ((rank, node),) = ended.items()
    return Speaker(rank=rank, node=node)


def _fields_with_speaker(hit: Hit, same: Sequence[Hit]) -> dict[str, str]:
    """The hit's fields; the speaker is the only rank among its symptom's hits, if it has none."""
    fields = with_meanings(hit)
    ranks = {one.speaker.rank: one.speaker.words for one in same if one.speaker.rank is not None}
    if hit.speaker.rank is None and len(ranks) == 1:
        fields["speaker"] = next(iter(ranks.values()))
    return fields


_ABORTED = (-6, -15)
"""Exit codes of ranks that torch's watchdog or the launcher ended."""


def _of_the_dead(
    late: watchdog.Verdict, telling: Sequence[Hit], hits: Sequence[Hit], found: ScanResult
) -> Explanation | None:
    """Why a rank that did not come had ended, as its launcher reports later; None if it lived."""
    ended = {
        int(hit.fields["rank"]): exit_code(hit) for hit in found.hits if hit.symptom.reads == "end"
    }
    dead = {
        rank: code
        for rank, code in ended.items()
        if code not in (0, *_ABORTED) and rank in late.ranks
    }
    if late.kind == "mismatch" or not dead:
        return None
    why = [hit for hit in telling if set(hit.symptom.exits) & set(dead.values())]
    summaries = [hit for hit in hits if hit.symptom.reads == "summary"]
    first = why or [hit for hit in summaries if int(hit.fields["rank"]) in dead]
    return _of_hit(first[0], hits, found) if first else None


def _of_watchdog(late: watchdog.Verdict) -> Explanation:
    category: Category = (
        "collective_mismatch" if late.kind == "mismatch" else "timeout_rank_missing"
    )
    if late.kind == "mismatch":
        cause = "the ranks' code took different paths: a branch by rank, data that ends on one rank"
        advice = "compare what these ranks do at that step; TORCH_DISTRIBUTED_DEBUG=DETAIL names it"
    else:
        cause = "that rank was elsewhere: in its data loader, in saving, dead, or stopped"
        advice = "check that rank's log, and its node at that time"
    return Explanation(
        category=category,
        culprits=tuple(f"rank {rank}" for rank in late.ranks),
        sentence=late.sentence,
        cause=cause,
        advice=advice,
        next="preflight lint SCRIPT",
        evidence=proofs(hit.place for hit in late.proofs),
        confidence=min(late.confidence, 0.85 if late.kind != "missing" else 0.75),
    )


def _with_ranks(answer: Explanation, late: watchdog.Verdict | None) -> Explanation:
    """Add the ranks that the watchdog's lines show to a cause that names none."""
    if late is None or late.kind not in ODD or late.confidence < _LIKELY or answer.culprits:
        return answer
    shown = _of_watchdog(late)
    if shown.category != answer.category:
        return answer
    return replace(shown, evidence=proofs((*shown.evidence, *answer.evidence)))


def _of_signs(
    telling: Sequence[Hit], signs: Sequence[Hit], hits: Sequence[Hit], found: ScanResult
) -> Explanation | None:
    """Without a cause: the best sign, or the timeouts as such."""
    if telling:
        return _of_hit(telling[0], hits, found)
    timed_out = [hit for hit in signs if hit.symptom.reads == "timeout"]
    if timed_out:
        return _of_time_out(_of_hit(timed_out[0], hits, found), hits, found)
    waited = [hit for hit in signs if hit.symptom.waits]
    if (absent := _the_only_absent(waited, signs, found)) is not None:
        return absent
    tried = [hit for hit in signs if hit.retried and hit.symptom.category != "unknown"]
    # A launcher that reports the end of a process says more than its peers' lost connections.
    ended = [hit for hit in hits if hit.symptom.role == "echo" and hit.symptom.dies]
    if not ended and (first := _of_first_end(signs, hits, found)) is not None:
        return first
    rest = ended or waited or tried or signs
    return _of_hit(rest[0], hits, found) if rest else None


def _the_only_absent(
    waited: Sequence[Hit], signs: Sequence[Hit], found: ScanResult
) -> Explanation | None:
    """The only rank that a launcher ended and that reports no wait, if the others waited."""
    ended = {int(hit.fields["rank"]) for hit in found.hits if hit.symptom.reads == "end"}
    there = {hit.speaker.rank for hit in waited if hit.speaker.rank is not None}
    absent = ended - {hit.speaker.rank for hit in signs}
    if len(absent) != 1 or len(there) < _FEWEST:
        return None
    (rank,) = absent
    who, ms = rank_words(there), waited[0].fields.get("timeout_ms", "?")
    sentence = f"{who} waited {ms} ms in gloo, and rank {rank} reports no wait"
    return _of_watchdog(
        watchdog.Verdict(
            kind="missing",
            ranks=(rank,),
            sentence=sentence,
            proofs=tuple(waited[:3]),
            confidence=0.55,
        )
    )


def _of_first_end(
    signs: Sequence[Hit], hits: Sequence[Hit], found: ScanResult
) -> Explanation | None:
    """The only rank that torchrun saw end first, if its peers lost it or it logged a failure."""
    bereft = {hit.speaker.rank for hit in signs} - {None}
    summaries = {
        hit.fields["rank"]: hit
        for hit in hits
        if hit.symptom.reads == "summary" and int(hit.fields["rank"]) not in bereft
    }
    if len(summaries) != 1:
        return None
    ((rank, summary),) = summaries.items()
    answer = _of_hit(summary, hits, found)
    if found.failure and found.failed == int(rank) and "Traceback" not in found.failure.text:
        evidence = proofs((found.failure, summary.place))
        return replace(
            answer,
            category="other",
            sentence=f"rank {rank} ended first, and had written: {evidence[0].text}",
            cause="what that line reports; later errors of other ranks are echoes",
            advice="correct what that line reports; @record on main() keeps the whole exception",
            evidence=evidence,
            confidence=0.6,
        )
    if not bereft:
        return None
    return replace(
        answer,
        category="other",
        cause="its process ended without a line: sys.exit(), abort(), a signal, or lost output",
        confidence=0.6,
    )


def _of_time_out(base: Explanation, hits: Sequence[Hit], found: ScanResult) -> Explanation:
    """Which ranks waited, and that these lines do not show for which."""
    late = watchdog.judge(hits, found)
    finding = late.sentence if late is not None else base.sentence
    absence = (
        "no rank is missing: the data did not get through, or the GPUs hang"
        if late is not None and late.kind == "all"
        else "these lines do not show which rank is missing"
    )
    sentence = f"{finding}; {absence}"
    return replace(base, category="unknown", sentence=sentence, confidence=0.3, culprits=())


def _others(hits: Sequence[Hit]) -> list[Alternative]:
    """One alternative per category, highest confidence first."""
    best: dict[str, Hit] = {}
    for hit in hits:
        one = hit.symptom
        known = best.get(one.category)
        rank = (RANKING[one.role], -one.confidence)
        if one.category != "unknown" and (
            known is None or rank < (RANKING[known.symptom.role], -known.symptom.confidence)
        ):
            best[one.category] = hit
    alternatives = [
        Alternative(hit.symptom.category, hit.symptom.sentence(with_meanings(hit)), 0.0)
        for hit in sorted(best.values(), key=lambda hit: -hit.symptom.confidence)
    ]
    instead = {
        category: sentence for hit in hits for category, sentence in hit.symptom.instead.items()
    }
    return alternatives + [
        Alternative(one, instead[one], 0.0) for one in instead if one not in best
    ]


def _with_alternatives(
    answer: Explanation, others: Sequence[Alternative], found: ScanResult
) -> Explanation:
    """Add the alternatives; they share the rest of the confidence, each at most half of it."""
    rest = [one for one in (*others, *answer.alternatives) if one.category != answer.category]
    rest = rest[:_ALTERNATIVES]
    share = min((1 - answer.confidence) / (len(rest) + 1), answer.confidence / 2)
    return replace(
        answer,
        alternatives=tuple(replace(o, confidence=round(share, 2)) for o in rest),
        next=with_script(next_commands(answer.next), found.raised),
        lines=found.lines,
    )


def lines(answer: Explanation, width: int) -> list[str]:
    """The lines of the answer, wrapped."""
    read = "dumps" if answer.waits else "lines"
    labelled = (
        ("what", [answer.sentence]),
        ("who", [", ".join(answer.culprits) or f"not shown by these {read}"]),
        ("line", [answer.line]),
        ("why", [answer.cause]),
        ("do", [answer.advice]),
        ("next", [answer.next]),
        ("proof", [f"{proof.source}:{proof.line}: {proof.text}" for proof in answer.evidence]),
        ("then", answer.consequences),
        ("waits", _waits(answer)),
        ("unseen", answer.unseen),
        ("or", [other.words for other in answer.alternatives]),
    )
    category: str = answer.category
    if 0 < answer.confidence < _LIKELY:
        category = "unclear" if category == "unknown" else f"unclear: {category}"
    return rows(category, answer.confidence, labelled, width)


def _waits(answer: Explanation) -> list[str]:
    """What each rank waits for: `ranks 0-7: send in PIPELINE, for ranks 8-15`."""
    rows = []
    for row in islice(answer.waits, _ROWS):
        number = f" {row.number}" if row.number else ""
        away = f"for {ranks(row.waits_for)}" if row.waits_for else "all ranks are there"
        rows.append(f"{ranks(row.ranks)}: {row.call}{number} in {row.group}, {row.state}: {away}")
    left = len(answer.waits) - _ROWS
    return rows + [f"... {left} more: --json has them"] * (left > 0)
