"""The answers where no symptom shows why a job ended: they quote the lines around its end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.hang.explain.attempts import exit_code, unfinished_work
from preflight.hang.explain.exceptions import in_order_of_time
from preflight.hang.explain.explanation import LIKELY, Explanation, proofs
from preflight.hang.explain.failure_words import (
    AT_END,
    gives_reason,
    is_last_word,
    is_message,
    is_noise,
    is_summary,
    may_be_last,
)
from preflight.hang.explain.meaning import circumstance, explain_hit
from preflight.hang.explain.missing_ranks import explain_members

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.hang.explain.explanation import Hit, Place
    from preflight.hang.explain.scan import ScanResult


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
_STOPPED = (
    "if the job still runs, or hangs: preflight diagnose, on its nodes; if it died there, "
    "something outside ended it: look in the scheduler's log of that time (sacct, kubectl get "
    "events) and in dmesg, and give the logs of all ranks, with standard error"
)
_CORRECT = (
    "correct what that line reports; if that is not enough, give the logs of all ranks from start "
    "to end"
)
_SHOWN_BEFORE = 3
_RULE = re.compile(r"[-+=|*#]{3,200} {0,20}")
_RANK = re.compile(r"\W{0,2}(?i:rank|task)?[ _]?(\d{1,6})[\]:]")
_SAYS_LITTLE = 0.2
"""Confidence of an echo that shows only that something had failed."""
_TIMED_OUT = 124
"""The exit code of `timeout`, which no program prints a reason for."""
_SIGNAL = 128
"""Shells add it to the number of the signal that ended a process."""


def explain_rest(hits: Sequence[Hit], scan: ScanResult) -> Explanation:
    """The answer if these lines show no failure, or only echoes of one."""
    echoes = [hit for hit in hits if hit.symptom.role == "echo"]
    if echoes:
        strong = [hit for hit in echoes if hit.symptom.confidence > _SAYS_LITTLE]
        first = in_order_of_time(strong or echoes)[0]
        return _explain_last_words(scan, first) or _explain_end(first, echoes, scan)
    hints = [hit for hit in hits if _is_relevant_hint(hit, scan)]
    answer = explain_members(scan)
    if answer is not None or hints:
        return answer or explain_hit(in_order_of_time(hints)[0], hits, scan)
    if scan.first_failure is None and not scan.troubles:
        return explain_no_failure(scan)
    if scan.first_failure is None:
        return NOTHING
    if last := _explain_last_words(scan):
        return last
    return _explain_unknown(scan, scan.first_failure)


def _explain_unknown(scan: ScanResult, first: Place) -> Explanation:
    """The first line with words of failure: the cause, if the log ends with such words too."""
    line = proofs((first,))[0].text
    sentence = f"no known cause; the first line that reports a failure is: {line}"
    written = [place for place in scan.last_lines if not is_summary(place.text)]
    is_of_ranks = scan.exceptions or scan.failed_rank is not None
    if is_of_ranks or not written or not is_last_word(written[-1].text):
        return replace(NOTHING, sentence=sentence, evidence=(first,), confidence=0.2)
    (last,) = proofs(written[-1:])
    return replace(
        NOTHING,
        category="other",
        sentence=sentence + f"; the log ends with: {last.text}" * (last.text != line),
        advice=_CORRECT,
        evidence=proofs((first, last)),
        confidence=LIKELY,
    )


def _explain_end(echo: Hit, hits: Sequence[Hit], scan: ScanResult) -> Explanation:
    """The end of a process, with the lines right before it: a program prints its reason last."""
    answer = explain_hit(echo, hits, scan)
    later_work = {**scan.highest_step_line, **scan.restart_line}.get(echo.place.source, 0)
    is_first = not scan.exceptions and all(hit.order >= echo.order for hit in hits)
    words = _words_before(echo)
    if not words or not is_first or later_work > echo.order or not 0 < exit_code(echo) < _TIMED_OUT:
        return answer
    quoted = " / ".join(_RULE.sub("", place.text, count=1) for place in proofs(words))
    answer = replace(
        answer,
        sentence=f"{answer.sentence}; right before it: {quoted}",
        evidence=proofs((*words, *answer.evidence)),
    )
    if not gives_reason(words[0].text):
        return answer
    return replace(answer, category="other", advice=_CORRECT, confidence=LIKELY)


def _words_before(echo: Hit) -> list[Place]:
    """The nearest line with a reason before a report of an end; without any, the last lines."""
    words: list[Place] = []
    for place in reversed(echo.before):
        rank = _RANK.match(place.text)
        is_of_other = rank and echo.fields.get("task", echo.fields.get("rank")) not in (
            None,
            rank[1],
        )
        if is_noise(place.text) or is_of_other:
            continue
        if not is_message(place.text):
            break
        words.insert(0, place)
        if gives_reason(place.text):
            return words[:_SHOWN_BEFORE]
    return words[-_SHOWN_BEFORE:]


def _explain_last_words(scan: ScanResult, echo: Hit | None = None) -> Explanation | None:
    """The first line of a failure, if the log, or the job as a launcher reports, soon ends."""
    if (place := scan.first_failure) is None:
        return None
    line, lines_after = proofs((place,))[0].text, scan.line_count - place.line
    if echo is not None:
        lines_after = echo.place.line - place.line
        is_of_it = echo.place.source == place.source and 0 < lines_after <= AT_END
        ended = 0 < exit_code(echo) < _SIGNAL or echo.symptom.at_end
        if not is_of_it or scan.failed_rank is not None or not ended:
            return None
    if not may_be_last(line, lines_after):
        return None
    ends = "the log" if echo is None else "the job"
    return replace(
        NOTHING,
        category="other",
        sentence=f"{ends} ends soon after the first line that reports a failure: {line}",
        advice=_CORRECT,
        evidence=proofs((place, echo.place)) if echo else (place,),
        confidence=LIKELY,
    )


def explain_no_failure(
    scan: ScanResult, caught: Explanation = NO_FAILURE, goes_on: str = ""
) -> Explanation:
    """Where the log stops, if it is a single one: a killed process writes nothing about its end.

    `caught`: the last failure, if the job went on after it; `goes_on`: how.
    """
    if len(scan.lines_before) > 1 or not scan.last_lines:
        return NO_FAILURE
    sentence, last, advice = NO_FAILURE.sentence, scan.last_lines[-1], NO_FAILURE.advice
    if goes_on:
        sentence += f" that ended the job: {caught.sentence}{goes_on}"
    if unfinished := unfinished_work(scan):
        last, share = unfinished
        sentence += f"; where the log stops, its last count is {share}"
        advice = _STOPPED
    else:
        sentence += f"; its last line is: {proofs((last,))[0].text}"
    shown = proofs((*caught.evidence, last))
    return replace(NO_FAILURE, sentence=sentence, advice=advice, evidence=shown)


def explain_hints(hits: Sequence[Hit], scan: ScanResult) -> Explanation | None:
    """What may have slowed a job that ended normally; None if it is only a guess."""
    sure = [
        hit for hit in hits if _is_relevant_hint(hit, scan) and hit.symptom.confidence >= LIKELY
    ]
    return explain_hit(in_order_of_time(sure)[0], hits, scan) if sure else None


def _is_relevant_hint(hit: Hit, scan: ScanResult) -> bool:
    """Whether it is a hint that matters here."""
    here = circumstance(hit, scan)
    return hit.symptom.role == "hint" and not (here is not None and here.moot)
