"""The answers where no symptom shows why a job ended: they quote the lines around its end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

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
    answer = explain_members(scan)
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


_NOTICE_OR_PROGRESS = re.compile(
    r"\b(?:INFO|DEBUG|WARN(?:ING)?|NOTICE)\b|^\W{0,8}(?i:info|note|debug|warning): |\d%\|"
    r"|^\W{0,20}(?i:step|iter(?:ation)?|epoch|batch|loss)s?\W{1,6}\d[^a-z]{0,40}(?:loss|$)"
    r"|^\W{0,4}(?:slurmstepd|srun|mpirun|mpiexec|prterun|jsrun|torchrun): |launch\.py"
)
"""Begins progress, a notice, or a line of a launcher."""
_NOISE = re.compile(
    r"(?i)^\W{0,4}(?:(?:wandb|comet|neptune|clearml|mlflow|aim)\b|View (?:run|experiment|project)"
    r"|STAGE:|==PROF==|sys:1:)|process group has NOT|resource_tracker|leaked semaphore"
    r"|warnings\.warn\(|ResourceWarning|Sending process \d+ closing|Killing subprocess"
    r"|HYDRA_FULL_ERROR|NCCL INFO|UCX  (?:WARN|DIAG)|help message help-|orte_base_help"
    r"|^(?:real|user|sys)\s+\d|elapsed \d+%CPU|pagefaults|^\+ |^Command exited with"
    r"|^Generated?\b|^Generating\b|^\W*$|for (?:more information|help)\b|^\W*https?://\S*$|\bcite\b"
    r"|\b(?:wall-?clock|elapsed|runtime)\b[^\d\n]{0,20}\d"
)
"""In lines that trackers, profilers, timers and destructors print at any end."""
_REASON = re.compile(
    r"(?i)\b(?:not|no|none|nothing|cannot|can't|could ?n.t|does ?n.t|must|without|missing|lacks?"
    r"|required?|requires|only|need(?:s|ed)?|please|specify|differ\w*|disagree\w*|larger|smaller"
    r"|below|above|exceed\w*|too|(?:more|less) than|fewer|invalid|inconsistent|illegal|bad|wrong"
    r"|unknown|unsupported|unexpected|incompatib\w*|undefined|empty|read-only|negative|fail\w*"
    r"|fatal|error|stop\w*|abort\w*|refus\w*|denied|expect\w*|would|out of|but|twice|duplicate"
    r"|nan|diverged|gone|expired|exception)\b"
)
"""Words of which the reason for an end mostly has one."""
_NO_REASON = re.compile(
    r"(?i)were not initialized|running processes|non-trainable|no work to do|\bpassed\b|not using"
    r"|\b0 (?:other|failed|errors?)|^\W{0,4}(?:only rank|no resume|starting|evaluation|if )"
)
"""Lines that have such a word and report nothing wrong."""
_ONLY_AN_END = re.compile(
    r"(?i)\bexit(?:ed|s|ing)?[ _]?(?:code|status)|\bexit(?:ed|s)? with\b|\bnon-?zero\b|MPI_ABORT"
    r"|\bsignal\b|\bpossible (?:cause|reason)s?\b|\bwill re-?start\b|pg_status"
)
"""A launcher's words about the end of a process, which do not show why it ended."""
_SUMMARY = re.compile(
    r"(?i)^(?:\w{1,20} ){0,3}(?:time|duration|elapsed|memory|hours)\b\W{0,12}\d"
    r"|^(?:\w{1,20} )?date\b\W"
    r"|^\W{0,8}\w[\w ]{0,40}[:|=]?(?: {1,20}[|]? ?-?\d[\d.eE+s-]{0,20}){1,9}\s*$"
    r"|^[^a-zA-Z]*$"
)
"""Times, counts, and rows of a table."""
_AFTER_WORK = re.compile(
    r"(?i)^(?:rm|curl|wget|mail|notify-send|fusermount|umount|quota|setfacl|Epilog|cleanup)\b"
    r"|^Agent pid|(?:remove|unmount|clean|free|delete) (?:\w+ ){0,3}"
    r"(?:temporary|scratch|directory|/)"
    r"|(?<!rank )(?<!node )(?<!task )(?<!gpu )(?<!worker )(?<!process )\b\d+ "
    r"(?:[\w-]+ ){0,3}(?:failed|timed out|killed|stuck|mismatch|invalid|not found)\b"
    r"|^errors?:? \d|(?<!cuda )\berror: \d|accuracy|within tolerance|upload of logs|closing writer"
    r"|^(?:pipeline|training|job|run) failed\W*$"
)
"""Messages of cleaning up, counts, and words that report a failure without its reason."""
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
