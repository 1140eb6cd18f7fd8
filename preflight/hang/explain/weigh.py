"""Decides which symptom came first, what it means, and with which confidence."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.hang.answer_text import Alternative
from preflight.hang.explain import watchdog
from preflight.hang.explain.attempts import (
    OUTLIVED,
    SURVIVED,
    Doubt,
    doubt_of_start,
    ended_well,
    is_unsettled,
    last_attempt,
    perhaps_survived,
    reports_ends,
    survived,
    unfinished_work,
)
from preflight.hang.explain.exceptions import (
    IMPORTS,
    Failure,
    errors_of_last_start,
    explain_exceptions,
    in_order_of_time,
    own_faults,
    with_script,
    without_caught_imports,
)
from preflight.hang.explain.explanation import LIKELY, Explanation, Hit, rank_words, with_meanings
from preflight.hang.explain.failure_words import AT_END, reports_failure
from preflight.hang.explain.meaning import ended_as, explain_hit, gravest_first, is_lesser
from preflight.hang.explain.missing_ranks import (
    ODD,
    explain_dead_rank,
    explain_ended_before,
    explain_first_end,
    explain_only_absent,
    explain_stall,
    explain_time_out,
    name_ranks,
)
from preflight.hang.explain.symptom import RANKING, Category, next_commands
from preflight.hang.explain.unexplained import (
    ANSWERS,
    explain_hints,
    explain_no_failure,
    explain_rest,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.hang.explain.scan import ScanResult
    from preflight.hang.explain.tracebacks import LoggedException


_ALTERNATIVES = 3
_LACKS = re.compile(
    r"ModuleNotFoundError:|ImportError: No module named|FileNotFoundError:|OSError: CUDA_HOME"
    r"|DatasetNotFoundError:"
    r"|.*(?i:no such file|\bno \w{1,20} (?:files?|data)\b)"
)
"""An exception that may follow from a failed preparation."""
_OF_GPU = re.compile(
    r"(?i)cuda|gpu|(?<!left on )\bdevice(?!_map)|driver|nccl|bf16|_cpu\b|\bcpu\b|'half'|accelerator"
)


@dataclass(frozen=True, kw_only=True)
class _Evidence:
    """What counts for the answer: of the last attempt of the job, and of its last start."""

    scan: ScanResult
    hits: list[Hit]
    """All that the job did not survive, without facts."""
    causes: list[Hit]
    signs: list[Hit]
    own_signs: list[Hit]
    """Those of ranks that did not only wait or try again."""
    strong_signs: list[Hit]
    """Those of them that are no failed calls, of the rank that failed first if that is known."""
    errors: list[LoggedException]
    first_errors: list[LoggedException]
    """Those of the rank that failed first, if that is known."""
    all_errors: list[LoggedException]
    """Of all attempts."""
    roots: dict[int, float | None]
    """The ranks that torchrun reports as the first to fail on their nodes, and when."""
    is_restarted: bool
    """Whether an earlier start of the same script had failed."""


def explain(scan: ScanResult) -> Explanation:
    """Name the first failure in time; `unknown` if the lines do not show one."""
    if not scan.line_count:
        return ANSWERS["unread" if scan.troubles else "empty"]
    others = _others([hit for hit in scan.hits if hit.symptom.role != "fact"])
    evidence, doubt = _evidence(scan)
    answer, doubt = _answer(evidence, doubt)
    if doubt and answer.category != "no_failure":
        answer = _with_doubt(answer, doubt, scan)
    answer = _compared(answer, evidence, scan)
    answer = replace(
        answer,
        consequences=_consequences(answer, evidence.hits),
        evidence=tuple(map(scan.in_editor, answer.evidence)),
    )
    return _with_alternatives(answer, others, evidence.scan)


def _with_doubt(answer: Explanation, doubt: Doubt, scan: ScanResult) -> Explanation:
    """The answer, less sure; or that nothing failed, if the job went on after its failure."""
    words, is_survived = doubt.words, doubt is SURVIVED
    if is_survived and _is_over(answer, scan):
        return explain_no_failure(scan, answer, words)
    words += ": it may have been caught" * is_survived
    sure = min(answer.confidence, doubt.confidence)
    return replace(answer, sentence=answer.sentence + words, confidence=sure)


_SAME_LINE, _OTHER_LINE = 0.5, 0.7
"""From these probabilities on, the estimate counts for a quoted line, and for another line."""
_NO_FAILURE, _SURELY_NO_FAILURE = 0.8, 0.9
"""From these probabilities of no failure on, an unclear answer becomes no_failure, and one that is
at most 75 % sure becomes unclear."""
_UNCONFIRMED, _OF_OTHER_LINE, _DISPUTED, _DOUBTFUL = 0.75, 0.7, 0.55, 0.45
"""How sure an answer is at most where the estimate disagrees."""
_FOLLOWS = 20
"""Lines after a failure in which others may follow from it."""
_BROKEN_PARTS = ("gpu_hardware", "nic_or_ib_link")
"""Categories of failures that a driver reports, and from which no job recovers."""


def _compared(answer: Explanation, evidence: _Evidence, scan: ScanResult) -> Explanation:
    """The answer, changed where the estimate from the log's words disagrees with it.

    The numbers above were chosen on labelled logs, with weights that were not learned from the
    log's repository.
    """
    estimate = scan.estimate
    if estimate is None or answer.category == "no_failure":
        return answer
    proof_lines = {(place.source, place.line) for place in answer.evidence}
    known = [hit for hit in evidence.hits if _line(hit) in proof_lines]
    line, share = estimate.best
    is_agreed = share > estimate.no_failure and any(abs(at - line) <= 1 for _, at in proof_lines)
    if answer.confidence < LIKELY or answer.category == "unknown":
        is_quoted = answer.category == "unknown" and not known
        if is_quoted and is_agreed and share >= _SAME_LINE:
            return replace(answer, category="other", confidence=LIKELY)
        is_none = estimate.no_failure >= _NO_FAILURE and _may_be_none(answer, known, scan)
        words = ", but the words of the log are those of jobs that did not fail"
        return explain_no_failure(scan, answer, words) if is_none else answer
    if is_agreed or _names_rank(answer) or answer.category in _BROKEN_PARTS:
        return answer
    if share >= _OTHER_LINE:
        follows = 0 < line - max((at for _, at in proof_lines), default=0) <= _FOLLOWS
        other = None if follows else _explain_line(line, evidence)
        is_known = other and other.category != "unknown" and other.confidence >= LIKELY
        chosen, most = (other, _OF_OTHER_LINE) if other and is_known else (answer, _DISPUTED)
        return replace(chosen, confidence=min(chosen.confidence, most))
    doubtful = estimate.no_failure >= _SURELY_NO_FAILURE and answer.confidence <= _UNCONFIRMED
    is_none = doubtful and _may_be_none(answer, known, scan)
    return replace(
        answer, confidence=min(answer.confidence, _DOUBTFUL if is_none else _UNCONFIRMED)
    )


def _names_rank(answer: Explanation) -> bool:
    return any(name.startswith("rank ") for name in answer.culprits)


def _may_be_none(answer: Explanation, known: Sequence[Hit], scan: ScanResult) -> bool:
    """Whether the job may not have failed.

    That is if no cause, time-out, rank or broken part is known, and if the log ends neither with
    this failure nor with another one. `known`: the hits in the lines of proof.
    """
    is_known = any(hit.symptom.role == "cause" or hit.symptom.reads == "timeout" for hit in known)
    return not (is_known or _names_rank(answer)) and _goes_on(answer, answer.sentence, scan)


def _goes_on(answer: Explanation, words: str, scan: ScanResult) -> bool:
    """Whether lines follow, the last of which report no failure, and no broken part is left.

    `words`: what the log reports of failures.
    """
    last, end = max((place.line for place in answer.evidence), default=0), scan.last_lines[-AT_END:]
    return not (
        answer.category in _BROKEN_PARTS
        or _LASTING.search(words)
        or end[-1].line - last <= AT_END
        or any(reports_failure(place.text) for place in end)
    )


def _explain_line(line: int, evidence: _Evidence) -> Explanation | None:
    """The answer if the failure at this line ended the job; None if none is known there."""
    hits = [hit for hit in evidence.hits if hit.symptom.role in ("cause", "sign")]
    errors = [error for error in evidence.all_errors if error.message and not error.chained]
    some: list[Failure] = [*hits, *errors]
    near = [failure for failure in some if abs(failure.place.line - line) <= 1]
    if not near:
        return None
    first = min(near, key=lambda failure: abs(failure.place.line - line))
    if isinstance(first, Hit):
        return explain_hit(first, evidence.hits, evidence.scan)
    return explain_exceptions([first], {first.speaker.rank}, ())


_LASTING = re.compile(
    r"(?i)CUDA error|illegal memory|device-side assert|launch fail|CU(?:DNN|BLAS)_STATUS"
    r"|Errno (?:5|13|28|30|116|122)\b|file system|PermissionError|No space left|quota"
)
"""A failure that comes again: of a process that cannot use its GPU, of a disk."""
_NO_NUMBER = re.compile(r"(?i)\b(?:nan|inf)\b")


def _is_over(answer: Explanation, scan: ScanResult) -> bool:
    """Whether what the job survived ended no program, and has left no broken part."""
    messages = " ".join([answer.sentence, *(error.message for error in scan.exceptions)])
    return (
        _goes_on(answer, messages, scan)
        and len(scan.lines_before) == 1
        and not scan.troubles
        and (_is_of_later_start(answer, scan) or not any(e.script for e in scan.exceptions))
        and not any(_NO_NUMBER.search(place.text) for place in scan.last_lines)
        and unfinished_work(scan) is None
    )


_STARTED_AGAIN = 100
"""Lines after the end of a program, with steps among them: they are of another start."""


def _is_of_later_start(answer: Explanation, scan: ScanResult) -> bool:
    """Whether the steps after the failure are of another start: the only process had ended by it.

    Steps that count from the beginning again show the start.
    """
    last = max(place.line for place in answer.evidence)
    source = answer.evidence[0].source
    failures: list[Failure] = [*scan.exceptions, *scan.hits]
    ranks = {failure.speaker.rank for failure in failures} | scan.writers
    return (
        not scan.world_size
        and ranks <= {None}
        and scan.highest_step_line.get(source, 0) > last
        and scan.restart_line.get(source, 0) > last
        and scan.last_lines[-1].line - last > _STARTED_AGAIN
    )


def _evidence(scan: ScanResult) -> tuple[_Evidence, Doubt | None]:
    """What counts, and the doubt that earlier attempts leave."""
    all_errors = own_faults(scan.exceptions, {})
    scan, doubt = last_attempt(scan)
    is_survived = survived(scan)
    hits = [hit for hit in scan.hits if hit.symptom.role != "fact" and not is_survived(hit)]
    over = {_line(hit) for hit in scan.hits if hit.symptom.survived_by and is_survived(hit)}
    errors = own_faults(scan.exceptions, watchdog.survivors(hits))
    errors = without_caught_imports([error for error in errors if _line(error) not in over])
    causes, signs = _causes_and_signs(hits, errors, scan)
    own_signs = [hit for hit in signs if not hit.retried and not hit.symptom.waits]
    strong_signs = [hit for hit in own_signs if hit.symptom.reads != "call"]
    last_start = _last_start([*causes, *strong_signs], errors, scan)
    strong_signs = [hit for hit in strong_signs if hit.order > last_start]
    over |= {_line(error) for error in errors if error.order <= last_start}
    causes = [hit for hit in causes if not _is_of_earlier_start(hit, last_start, scan)]
    errors = [error for error in errors if error.order > last_start]
    firm_errors = [error for error in errors if not error.loose]
    errors = firm_errors if firm_errors or strong_signs else errors
    roots = {int(hit.fields["rank"]): hit.time for hit in hits if hit.symptom.reads == "summary"}
    strong_signs, first_errors = _keep_first_root(roots, strong_signs, errors)
    evidence = _Evidence(
        scan=scan,
        hits=hits,
        causes=[hit for hit in causes if _line(hit) not in over],
        signs=signs,
        own_signs=own_signs,
        strong_signs=strong_signs,
        errors=errors,
        first_errors=first_errors,
        all_errors=all_errors,
        roots=roots,
        is_restarted=last_start > 0,
    )
    return evidence, doubt


def _answer(evidence: _Evidence, doubt: Doubt | None) -> tuple[Explanation, Doubt | None]:
    """The answer that the evidence gives, and what makes it less sure, if anything."""
    scan, hits = evidence.scan, evidence.hits
    stall = watchdog.judge(hits, scan)
    causes, errors, first_errors = evidence.causes, evidence.errors, evidence.first_errors
    strong_signs, own_signs = evidence.strong_signs, evidence.own_signs
    # A failed call is earlier than the others' waits for its rank, but no earlier than a mismatch.
    rivals = strong_signs if stall is not None and stall.kind == "mismatch" else own_signs
    failures: list[Failure] = [*causes, *errors]
    failures = [failure for failure in failures if is_unsettled(failure, scan)]
    answer: Explanation
    if ended_well(hits, failures, scan):
        return explain_hints(hits, scan) or ANSWERS["ended"], None
    if preparation := _explain_preparation(evidence):
        answer = preparation
    elif causes:
        cause = next((hit for hit in causes if hit.symptom.phase != "start"), causes[-1])
        answer = name_ranks(explain_hit(cause, hits, scan), stall)
    elif first_errors and not _before(strong_signs, first_errors):
        of_first = {error.speaker.rank for error in first_errors}
        roots = evidence.roots if first_errors == errors else of_first
        answer = explain_exceptions(errors, roots, {*ended_as(scan, (1,))})
        if evidence.is_restarted and not doubt:
            doubt = doubt_of_start(scan)
        doubt = doubt or _doubt_of_later_end(hits, errors)
    elif stall is not None and stall.kind in ODD and not _follows(stall.proofs[0], _first(rivals)):
        answer = explain_dead_rank(stall, strong_signs, hits, scan) or explain_stall(stall)
    else:
        last_cancel = max((hit.order for hit in hits if "job_cancel" in hit.fields), default=0)
        signs = [hit for hit in evidence.signs if not _is_passed_over(hit, last_cancel, scan)]
        best = strong_signs or own_signs
        answer = _explain_signs(best, signs, hits, scan) or explain_rest(hits, scan)
    return answer, doubt or (perhaps_survived(hits, scan) if failures else None)


def _causes_and_signs(
    hits: Sequence[Hit], errors: Sequence[LoggedException], scan: ScanResult
) -> tuple[list[Hit], list[Hit]]:
    """The failures that explain themselves, and those that may follow from others; gravest first.

    A cause is only a sign if a rank's end can produce it and one ended before, if the program tried
    again, or if the circumstances make it less.
    """
    exits = _first([hit for hit in hits if hit.reports_exit])
    signs = [
        hit
        for hit in hits
        if (hit.symptom.role == "sign" and not (hit.symptom.follows and _follows(hit, exits)))
        or is_lesser(hit, scan)
    ]
    deaths = [hit for hit in signs if hit.symptom.dies]
    ends, deaths_alone = _first([*deaths, *errors]), _first(deaths)
    first_report = min((hit.order for hit in hits if hit.reports_exit), default=inf)
    causes: list[Hit] = []
    others = [error for error in errors if not _OF_GPU.search(f"{error.message} {error.source}")]
    for hit in hits:
        # A warning about the GPU is no cause if the program failed for another reason.
        goes_on = hit.order < scan.progress_line.get(hit.place.source, 0)
        is_passed = "level" in hit.fields and (goes_on or others == errors != [])
        if hit.symptom.role == "cause" and not is_passed and not is_lesser(hit, scan):
            follows = hit.retried or (hit.symptom.follows and _follows(hit, ends))
            if hit.symptom.phase == "start":  # of the next start, if a launcher has reported an end
                is_next = first_report < hit.order
                follows = hit.symptom.follows and not is_next and _follows(hit, deaths_alone)
            (signs if follows else causes).append(hit)
    return gravest_first(causes, scan), gravest_first(signs, scan)


def _last_start(hits: Sequence[Hit], errors: Sequence[LoggedException], scan: ScanResult) -> int:
    """The line by which an earlier start of the same script had failed; 0 if there was none."""
    interrupts = [
        error for error in scan.exceptions if error.kind == "KeyboardInterrupt" and error.script
    ]
    if not errors and not interrupts:
        return 0
    last = in_order_of_time(errors) if reports_ends(scan) else errors_of_last_start(errors)
    over = [error.order for error in errors if error not in last]
    # An import fails at a start: it is no consequence of an interrupt.
    imports = last and last[-1].kind in IMPORTS
    imports = imports and any(error.script == last[-1].script for error in interrupts)
    phases = ("start", "interrupt") if imports else ("start",)
    end = max(error.order for error in (*last, *interrupts))
    reports = [hit.order for hit in scan.hits if hit.reports_exit]
    begun = (
        hit.order
        for hit in hits
        if hit.symptom.phase in phases and hit.order < end
        if _is_of(hit, [*last, *interrupts]) or any(hit.order < at < end for at in reports)
        if not (hit.symptom.phase == "start" and hit.symptom.follows)  # a rank may fail by it
    )
    return max((*over, *begun), default=0)


def _is_of(hit: Hit, errors: Sequence[LoggedException]) -> bool:
    """Whether a start that failed at once was of a script of these exceptions, if it names one."""
    name = hit.fields.get("script", hit.fields.get("file", ""))
    return not name or any(error.script.endswith(name.rpartition("/")[2]) for error in errors)


def _explain_preparation(evidence: _Evidence) -> Explanation | None:
    """What went wrong before, if what failed first lacks something that was to be prepared.

    That is what the job's script could not load, download or install, or else the exception of
    another program, which may be of an earlier attempt.
    """
    failures: list[Failure] = [*(evidence.causes or evidence.first_errors)]
    if not failures:
        return None
    first = min(failures, key=lambda failure: failure.order)
    words = _words_of(first)
    if not (first.symptom.unprepared if isinstance(first, Hit) else _LACKS.match(words)):
        return None
    for hit in evidence.hits:
        if hit.symptom.phase == "preparation" and hit.order < first.order:
            answer = explain_hit(hit, evidence.hits, evidence.scan)
            return replace(answer, sentence=f"{answer.sentence}; then {words}", confidence=0.7)
    if isinstance(first, Hit) or not first.script:
        return None
    others = [
        error
        for error in evidence.all_errors
        if error.order < first.order
        and error.script not in ("", first.script)
        and is_unsettled(error, evidence.scan)
    ]
    if not others:
        return None
    answer = explain_exceptions([*others, first], {error.speaker.rank for error in others}, ())
    led = f"; a program after it lacks what this one may have had to make ({words})"
    return replace(answer, sentence=answer.sentence + led, confidence=0.55)


def _words_of(failure: Failure) -> str:
    if isinstance(failure, Hit):
        return failure.symptom.sentence(with_meanings(failure))
    return f"{failure.kind}: {failure.message}"


def _doubt_of_later_end(hits: Sequence[Hit], errors: Sequence[LoggedException]) -> Doubt | None:
    """The doubt if a job's scheduler ended it after exceptions of no known rank."""
    last = max(error.order for error in errors)
    later = [hit for hit in hits if hit.order > last]
    is_ended = any(hit.symptom.phase == "job_end" or "job_cancel" in hit.fields for hit in later)
    is_launched = any(hit.reports_exit for hit in hits)
    unknown = all(error.speaker.rank is None for error in errors)
    return OUTLIVED if is_ended and unknown and not is_launched else None


def _is_passed_over(sign: Hit, last_cancel: int, scan: ScanResult) -> bool:
    """Whether a script did without what it could not download, install, submit or enter.

    `last_cancel`: the line in which Slurm cancelled the job, which lasted until then.
    """
    if last_cancel > sign.order + AT_END:
        return sign.symptom.optional or sign.symptom.phase == "preparation"
    goes_on = scan.line_count - sign.order > AT_END or scan.first_step_line
    return sign.symptom.optional and bool(goes_on)


def _line(failure: Failure) -> tuple[str, int]:
    return failure.place.source, failure.place.line


def _is_of_earlier_start(cause: Hit, over: int, scan: ScanResult) -> bool:
    """Whether a program that ended before it began was started again: it made steps later."""
    last = max(over, scan.progress_line.get(cause.place.source, 0))
    return cause.symptom.phase == "start" and cause.order <= last


def _keep_first_root(
    roots: Mapping[int, float | None], strong_signs: list[Hit], errors: list[LoggedException]
) -> tuple[list[Hit], list[LoggedException]]:
    """What is of the rank that failed first by the times of several nodes' torchruns, if known."""
    failures: list[Failure] = [*strong_signs, *errors]
    ranks = {failure.speaker.rank for failure in failures} & {*roots}
    dated = sorted((time, rank) for rank, time in roots.items() if rank in ranks and time)
    if not 1 < len(ranks) == len(dated) or dated[0][0] == dated[1][0]:
        return strong_signs, errors
    root = dated[0][1]
    return (
        [hit for hit in strong_signs if hit.speaker.rank == root],
        [error for error in errors if error.speaker.rank == root],
    )


_MOST_CONSEQUENCES = 4


def _consequences(answer: Explanation, hits: Sequence[Hit]) -> tuple[str, ...]:
    """What other ranks only report: time-outs, lost peers, ends by the launcher."""
    proven = {(place.source, place.line) for place in answer.evidence}
    groups: dict[str, list[Hit]] = {}
    for hit in hits:
        passive = hit.symptom.waits or hit.retried or hit.symptom.reads == "timeout"
        if passive and _line(hit) not in proven:
            groups.setdefault(hit.symptom.id, []).append(hit)
    sentences = []
    for same in groups.values():
        ranks = {hit.speaker.rank for hit in same if hit.speaker.rank is not None}
        who = f"{rank_words(ranks)}: " if ranks else ""
        sentences.append(f"{who}{same[0].symptom.sentence(with_meanings(same[0]))}")
    return tuple(sentences[:_MOST_CONSEQUENCES]) if answer.confidence >= LIKELY else ()


def _first(failures: Sequence[Failure]) -> tuple[float, float, float]:
    """The first time, the first line, and the first line without a time."""
    return (
        min((failure.time for failure in failures if failure.time is not None), default=inf),
        min((failure.order for failure in failures), default=inf),
        min((failure.order for failure in failures if failure.time is None), default=inf),
    )


def _follows(hit: Hit, ends: tuple[float, float, float]) -> bool:
    """Whether a rank died before this hit, by times if both have one."""
    time, order, timeless = ends
    return order < hit.order if hit.time is None else time < hit.time or timeless < hit.order


def _before(strong_signs: Sequence[Hit], errors: Sequence[LoggedException]) -> bool:
    """Whether a sign is in the exception, in the next lines of its message, or came earlier."""
    first = min(errors, key=lambda error: error.order)
    end = first.order + AT_END * first.message.endswith(":")
    return any(sign.order <= end for sign in strong_signs)


def _explain_signs(
    strong_signs: Sequence[Hit], signs: Sequence[Hit], hits: Sequence[Hit], scan: ScanResult
) -> Explanation | None:
    """Without a cause: the best sign, or the timeouts as such."""
    if strong_signs:
        return explain_hit(strong_signs[0], hits, scan)
    timeouts = [hit for hit in signs if hit.symptom.reads == "timeout"]
    if timeouts and (first := explain_ended_before(timeouts, hits, scan)) is not None:
        return first
    if timeouts:
        return explain_time_out(explain_hit(timeouts[0], hits, scan), hits, scan)
    waits = [hit for hit in signs if hit.symptom.waits]
    if (absent := explain_only_absent(waits, signs, scan)) is not None:
        return absent
    retries = [hit for hit in signs if hit.retried and hit.symptom.category != "unknown"]
    # A launcher that reports the end of a process says more than its peers' lost connections.
    ends = [hit for hit in hits if hit.symptom.role == "echo" and hit.symptom.dies]
    if not ends and (first := explain_first_end(signs, hits, scan)) is not None:
        return first
    rest = ends or waits or retries or signs
    return explain_hit(rest[0], hits, scan) if rest else None


def _others(hits: Sequence[Hit]) -> list[Alternative]:
    """One alternative per category, highest confidence first."""
    by_category: dict[Category, list[Hit]] = {}
    instead: dict[Category, str] = {}
    for hit in hits:
        by_category.setdefault(hit.symptom.category, []).append(hit)
        instead |= hit.symptom.instead
    by_category.pop("unknown", None)
    best = [
        min(same, key=lambda hit: (RANKING[hit.symptom.role], -hit.symptom.confidence))
        for same in by_category.values()
    ]
    best.sort(key=lambda hit: -hit.symptom.confidence)
    sentences = {hit.symptom.category: hit.symptom.sentence(with_meanings(hit)) for hit in best}
    instead = {name: words for name, words in instead.items() if name not in sentences}
    return [Alternative(*row, 0.0) for row in (*sentences.items(), *instead.items())]


def _with_alternatives(
    answer: Explanation, others: Sequence[Alternative], scan: ScanResult
) -> Explanation:
    """Add the alternatives; they share the rest of the confidence, each at most half of it."""
    rest = [other for other in (*others, *answer.alternatives) if other.category != answer.category]
    rest = rest[:_ALTERNATIVES]
    share = min((1 - answer.confidence) / (len(rest) + 1), answer.confidence / 2)
    return replace(
        answer,
        alternatives=tuple(replace(other, confidence=round(share, 2)) for other in rest),
        next=with_script(next_commands(answer.next), scan.exceptions),
        lines=scan.line_count - scan.returns(scan.line_count),
    )
