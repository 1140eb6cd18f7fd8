"""The answers where no symptom shows why a job ended: they quote the lines around its end."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import convert
from msgspec.structs import replace

from preflight.core.files import shipped_table
from preflight.core.text import whole
from preflight.hang.explain.attempts import exit_code, unfinished_work
from preflight.hang.explain.exceptions import in_order_of_time
from preflight.hang.explain.explanation import LIKELY, Explanation, proofs
from preflight.hang.explain.failure_words import (
    AT_END,
    GRAVE_LEVEL,
    TRIED_AGAIN,
    is_grave,
    is_harmless,
    reports_failure,
)
from preflight.hang.explain.meaning import circumstance, explain_hit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.hang.explain.explanation import Hit, Place
    from preflight.hang.explain.scan import ScanResult


_TABLE = shipped_table(__file__, "unexplained.toml")
ANSWERS = convert(_TABLE["answer"], dict[str, Explanation])
NOTHING, NO_FAILURE = ANSWERS["nothing"], ANSWERS["no_failure"]
_CORRECT: str = _TABLE["advice"]["correct"]
_LINES_AFTER_START = 10
"""Lines at most after the start of the last process: warnings printed during the wait."""
_SHOWN_BEFORE = 3
"""Lines quoted before the exit of a process."""
_SEPARATOR = re.compile(r"[-+=|*#]{3,200} {0,20}")
"""Of a table: no part of a message."""
_RANK = re.compile(r"\W{0,2}(?i:rank|task)?[ _]?(\d{1,6})[\]:](?!\d)")
"""Begins a line of a rank; a time has a digit after its colon."""
_WEAK = 0.2
"""Confidence of an echo that shows only that something had failed."""
_TIMED_OUT = 124
"""The exit code of `timeout`, which no program prints a reason for."""
_SIGNAL = 128
"""Shells add it to the number of the signal that ended a process."""


def explain_rest(hits: Sequence[Hit], scan: ScanResult) -> Explanation:
    """The answer if these lines show no failure, or only echoes of one."""
    echoes = [hit for hit in hits if hit.symptom.role == "echo"]
    if echoes:
        strong = [hit for hit in echoes if hit.symptom.confidence > _WEAK]
        first = in_order_of_time(strong or echoes)[0]
        return _explain_failure_near_end(scan, first) or _explain_exit(first, echoes, scan)
    hints = [hit for hit in hits if _is_relevant_hint(hit, scan)]
    answer = _explain_members(scan)
    if answer is not None or hints:
        return answer or explain_hit(in_order_of_time(hints)[0], hits, scan)
    if scan.first_failure is None and not scan.troubles:
        return explain_no_failure(scan)
    if scan.first_failure is None:
        return NOTHING
    if last := _explain_failure_near_end(scan):
        return last
    return _explain_unknown(scan, scan.first_failure)


def _explain_unknown(scan: ScanResult, first: Place) -> Explanation:
    """Quote the first line of failure; it is the cause if the log also ends with one."""
    line = proofs((first,))[0].text
    sentence = f"no known cause; the first line that reports a failure is: {line}"
    written = [place for place in scan.last_lines if not _is_summary(place.text)]
    is_of_rank = scan.exceptions or scan.failed_rank is not None
    if is_of_rank or not written or not _may_end_log(written[-1].text):
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


def _explain_exit(echo: Hit, hits: Sequence[Hit], scan: ScanResult) -> Explanation:
    """Quote the lines right before the exit of a process: a program prints its reason last."""
    answer = explain_hit(echo, hits, scan)
    code, source, words = exit_code(echo), echo.place.source, _lines_before_exit(echo)
    later_work = max(scan.highest_step_line.get(source, 0), scan.restart_line.get(source, 0))
    is_first = not scan.exceptions and all(hit.order >= echo.order for hit in hits)
    is_own = 0 < code < _SIGNAL and code != _TIMED_OUT
    if not (words and is_first and is_own) or later_work > echo.order:
        return answer
    quoted = " / ".join(_SEPARATOR.sub("", place.text, count=1) for place in proofs(words))
    answer = replace(
        answer,
        sentence=f"{answer.sentence}; right before it: {quoted}",
        evidence=proofs((*words, *answer.evidence)),
    )
    if not _gives_reason(words[0].text):
        return answer
    return replace(answer, category="other", advice=_CORRECT, confidence=LIKELY)


def _lines_before_exit(echo: Hit) -> list[Place]:
    """The nearest line with a reason before a report of an end; without any, the last lines."""
    words: list[Place] = []
    own_rank = whole(echo.fields.get("task", echo.fields.get("rank", "")))
    for place in reversed(echo.before):
        rank = _RANK.match(place.text)
        is_of_other_rank = rank is not None and own_rank not in (None, int(rank[1]))
        if _NOISE.search(place.text) or is_of_other_rank:
            continue
        if not _is_message(place.text):
            break
        words.insert(0, place)
        if _gives_reason(place.text):
            return words[:_SHOWN_BEFORE]
    return words[-_SHOWN_BEFORE:]


def _explain_failure_near_end(scan: ScanResult, echo: Hit | None = None) -> Explanation | None:
    """Quote the first line of failure, if the log or the job ends soon after it."""
    if (place := scan.first_failure) is None:
        return None
    line, lines_after = proofs((place,))[0].text, scan.line_count - place.line
    if echo is not None:
        lines_after = echo.place.line - place.line
        is_same_log = echo.place.source == place.source and 0 < lines_after <= AT_END
        ended = 0 < exit_code(echo) < _SIGNAL or echo.symptom.at_end
        if not is_same_log or scan.failed_rank is not None or not ended:
            return None
    most = _AFTER_LEVEL if GRAVE_LEVEL.search(line.encode()) else AT_END
    if lines_after > most or not is_grave(line):
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
        advice = _TABLE["advice"]["stopped"]
    else:
        sentence += f"; its last line is: {proofs((last,))[0].text}"
    shown = proofs((*caught.evidence, last))
    return replace(NO_FAILURE, sentence=sentence, advice=advice, evidence=shown)


def _explain_members(scan: ScanResult) -> Explanation | None:
    """An explanation from the processes' first lines, if there is nothing else; or None.

    It names no culprit: the processes of another node may write elsewhere. Only rank 0 reports
    that all ranks joined, so a log without rank 0 proves nothing.
    """
    facts = [hit for hit in scan.hits if hit.symptom.reads == "member"]
    members = {int(hit.fields["member"]) for hit in facts if "member" in hit.fields}
    sizes = {int(hit.fields["of"]) for hit in facts if "of" in hit.fields}
    if 0 not in members or len(sizes) != 1 or any("registered" in hit.fields for hit in facts):
        return None
    missing = list(islice((rank for rank in range(max(sizes)) if rank not in members), 9))
    if not missing or scan.line_count - max(hit.order for hit in facts) > _LINES_AFTER_START:
        return None
    words = ", ".join(map(str, missing[:8])) + " ..." * (len(missing) > 8)  # noqa: PLR2004
    return Explanation(
        category="timeout_rank_missing",
        sentence=f"{len(members)} of {max(sizes)} ranks joined, and the log ends there; missing: "
        f"{words}",
        cause="a node did not start its processes, or they cannot reach the first one",
        advice="check that the other nodes' processes run, their NODE_RANK and MASTER_ADDR, and "
        "the network path to that port",
        next="net.ports, launch.fits",
        evidence=proofs(hit.place for hit in facts),
        confidence=0.5,
    )


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


_LINE: dict[str, list[str]] = _TABLE["line"]
"""What these expressions are for stands at each of them in unexplained.toml."""
_NOTICE_OR_PROGRESS = re.compile("|".join(_LINE["notice_or_progress"]))
_NOISE = re.compile("(?i)" + "|".join(_LINE["noise"]))
_REASON = re.compile(rf"(?i)\b(?:{'|'.join(_LINE['reason'])})\b")
_NO_REASON = re.compile("(?i)" + "|".join(_LINE["no_reason"]))
_ONLY_AN_END = re.compile("(?i)" + "|".join(_LINE["only_an_end"]))
_SUMMARY = re.compile("(?i)" + "|".join(_LINE["summary"]))
_AFTER_WORK = re.compile("(?i)" + "|".join(_LINE["after_work"]))
_AFTER_LEVEL = 15
"""How many lines before the end of a log an error-level line may still be the reason."""


def _is_message(line: str) -> bool:
    """Whether a line may be the reason that a program prints: no progress, notice or launcher."""
    return not (_NOTICE_OR_PROGRESS.search(line) or is_harmless(line.encode()))


def _gives_reason(line: str) -> bool:
    """Whether a line has words of a reason why a program ends."""
    return _REASON.search(line) is not None and not _NO_REASON.search(line)


def _is_summary(line: str) -> bool:
    """Whether a line at the end of a log shows only numbers: times, counts, a row of a table."""
    return not _is_message(line) or bool(_NOISE.search(line) or _SUMMARY.match(line))


def _may_end_log(line: str) -> bool:
    """Whether a line may be the failure that ended a job; no report of an end, and no retry."""
    others = (_ONLY_AN_END, TRIED_AGAIN, _AFTER_WORK)
    return reports_failure(line) and not any(words.search(line) for words in others)
