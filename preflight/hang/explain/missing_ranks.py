"""Answers that name the rank for which the others waited, and why it did not come."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.hang.explain import watchdog
from preflight.hang.explain.attempts import exit_code
from preflight.hang.explain.explanation import LIKELY, Explanation, proofs, rank_words
from preflight.hang.explain.meaning import explain_hit

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from preflight.hang.explain.explanation import Hit
    from preflight.hang.explain.scan import ScanResult
    from preflight.hang.explain.symptom import Category


ODD = ("mismatch", "behind", "missing")
"""Kinds of verdicts in which the timeouts of several ranks show an odd one."""
_ABORTED = (-6, -15)
"""Exit codes of ranks that torch's watchdog or the launcher ended."""
_FEWEST = 2
"""Ranks that waited, so that the only other one is missing."""


def explain_stall(stall: watchdog.Stall) -> Explanation:
    """Which ranks the timeouts show to be odd."""
    category: Category = "timeout_rank_missing"
    cause = "that rank was elsewhere: in its data loader, in saving, dead, or stopped"
    advice = "check that rank's log, and its node at that time"
    if stall.kind == "mismatch":
        category = "collective_mismatch"
        cause = "the ranks' code took different paths: a branch by rank, data that ends on one rank"
        advice = "compare what these ranks do at that step; TORCH_DISTRIBUTED_DEBUG=DETAIL names it"
    return Explanation(
        category=category,
        culprits=tuple(f"rank {rank}" for rank in stall.ranks),
        sentence=stall.sentence,
        cause=cause,
        advice=advice,
        next="preflight lint SCRIPT",
        evidence=proofs(hit.place for hit in stall.proofs),
        confidence=min(stall.confidence, 0.85 if stall.kind != "missing" else 0.75),
    )


def name_ranks(answer: Explanation, stall: watchdog.Stall | None) -> Explanation:
    """Add the ranks that the watchdog's lines show to a cause that names none."""
    if stall is None or stall.kind not in ODD or stall.confidence < LIKELY or answer.culprits:
        return answer
    shown = explain_stall(stall)
    if shown.category != answer.category:
        return answer
    return replace(shown, evidence=proofs((*shown.evidence, *answer.evidence)))


def explain_dead_rank(
    stall: watchdog.Stall, strong_signs: Sequence[Hit], hits: Sequence[Hit], scan: ScanResult
) -> Explanation | None:
    """Why a rank that did not come had ended, as its launcher reports later; None if it lived."""
    codes = {
        int(hit.fields["rank"]): exit_code(hit) for hit in scan.hits if hit.symptom.reads == "end"
    }
    dead = {
        rank: code
        for rank, code in codes.items()
        if code not in (0, *_ABORTED) and rank in stall.ranks
    }
    if stall.kind == "mismatch" or not dead:
        return None
    why = [hit for hit in strong_signs if set(hit.symptom.exits) & set(dead.values())]
    summaries = [hit for hit in hits if hit.symptom.reads == "summary"]
    first = why or [hit for hit in summaries if int(hit.fields["rank"]) in dead]
    return explain_hit(first[0], hits, scan) if first else None


def explain_only_absent(
    waited: Sequence[Hit], signs: Sequence[Hit], scan: ScanResult
) -> Explanation | None:
    """The only rank that a launcher ended and that reports no wait, if the others waited."""
    ranks = {int(hit.fields["rank"]) for hit in scan.hits if hit.symptom.reads == "end"}
    there = {hit.speaker.rank for hit in waited if hit.speaker.rank is not None}
    absent = ranks - {hit.speaker.rank for hit in signs}
    if len(absent) != 1 or len(there) < _FEWEST:
        return None
    (rank,) = absent
    who, ms = rank_words(there), waited[0].fields.get("timeout_ms", "?")
    sentence = f"{who} waited {ms} ms in gloo, and rank {rank} reports no wait"
    return explain_stall(
        watchdog.Stall(
            kind="missing",
            ranks=(rank,),
            sentence=sentence,
            proofs=tuple(waited[:3]),
            confidence=0.55,
        )
    )


def explain_ended_before(
    timed_out: Sequence[Hit], hits: Sequence[Hit], scan: ScanResult
) -> Explanation | None:
    """The only rank that torchrun saw end before the others' time-outs, by the times of both."""
    waiting = {-1 if hit.speaker.rank is None else hit.speaker.rank for hit in timed_out}
    stall = min((hit.time for hit in timed_out if hit.time is not None), default=-inf)
    summaries = {
        hit.fields["rank"]: hit
        for hit in hits
        if hit.symptom.reads == "summary"
        and int(hit.fields["rank"]) not in waiting
        and hit.time is not None
        and hit.time < stall
    }
    if len(summaries) != 1 or -1 in waiting:
        return None
    (summary,) = summaries.values()
    answer = explain_hit(summary, hits, scan)
    return replace(
        answer,
        category="other",
        sentence=f"{answer.sentence}; after that {rank_words(waiting)} waited for it",
        confidence=0.6,
    )


def explain_first_end(
    signs: Sequence[Hit], hits: Sequence[Hit], scan: ScanResult
) -> Explanation | None:
    """The only rank that torchrun saw end first, if its peers lost it or it logged a failure."""
    peers = {hit.speaker.rank for hit in signs} - {None}
    summaries = {
        hit.fields["rank"]: hit
        for hit in hits
        if hit.symptom.reads == "summary" and int(hit.fields["rank"]) not in peers
    }
    if not summaries:
        return _of_only_exit(peers, hits, scan)
    if len(summaries) != 1:
        return None
    ((rank, summary),) = summaries.items()
    answer = explain_hit(summary, hits, scan)
    if (
        scan.first_failure
        and scan.failed_rank == int(rank)
        and "Traceback" not in scan.first_failure.text
    ):
        evidence = proofs((scan.first_failure, summary.place))
        return replace(
            answer,
            category="other",
            sentence=f"rank {rank} ended first, and had written: {evidence[0].text}",
            cause="what that line reports; later errors of other ranks are echoes",
            advice="correct what that line reports; @record on main() keeps the whole exception",
            evidence=evidence,
            confidence=0.6,
        )
    if not peers:
        return None
    return replace(
        answer,
        category="other",
        cause="its process ended without a line: sys.exit(), abort(), a signal, or lost output",
        confidence=0.6,
    )


def _of_only_exit(
    peers: Collection[int | None], hits: Sequence[Hit], scan: ScanResult
) -> Explanation | None:
    """The only task that srun saw end with an error, besides those that report a lost peer."""
    tasks = {
        hit.fields["rank"]
        for hit in scan.hits
        if hit.symptom.reads == "end" and int(hit.fields["rank"]) not in peers and exit_code(hit)
    }
    first = [hit for hit in hits if {hit.fields.get("task", "")} == tasks]
    return explain_hit(first[0], hits, scan) if peers and first else None


def explain_time_out(base: Explanation, hits: Sequence[Hit], scan: ScanResult) -> Explanation:
    """Which ranks waited, and that these lines do not show for which."""
    stall = watchdog.judge(hits, scan)
    finding = stall.sentence if stall is not None else base.sentence
    absence = (
        "no rank is missing: the data did not get through, or the GPUs hang"
        if stall is not None and stall.kind == "all"
        else "these lines do not show which rank is missing"
    )
    sentence = f"{finding}; {absence}"
    return replace(base, category="unknown", sentence=sentence, confidence=0.3, culprits=())
