"""Which failures in a log ended the job: not those that it survived, nor an earlier attempt's."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from preflight.core.text import whole
from preflight.hang.explain import watchdog
from preflight.hang.explain.exceptions import IMPORTS, Failure, own_faults
from preflight.hang.explain.explanation import Hit, Speaker, number_of
from preflight.hang.explain.failure_words import AT_END, is_grave
from preflight.hang.explain.tracebacks import LoggedException

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from preflight.hang.explain.explanation import Place
    from preflight.hang.explain.scan import ScanResult


def survived(scan: ScanResult) -> Callable[[Hit], bool]:
    """Which failures ended no process: the trainer caught them, or tried again, and went on."""
    last: dict[tuple[str, str], int] = {}
    for hit in scan.hits:
        key = (hit.symptom.id, hit.place.source)
        last[key] = max(hit.order, last.get(key, 0))
    has_ended = any(hit.reports_exit for hit in scan.hits)
    return lambda hit: (
        (not has_ended and hit.order < last.get((hit.symptom.survived_by, hit.place.source), 0))
        or (
            hit.symptom.at_end == "steps"
            and hit.order < scan.finite_step_line.get(hit.place.source, 0)
        )
        or (
            (hit.tried_again or hit.symptom.at_end == "lines")
            and scan.line_count - hit.order > AT_END
            and not (hit.symptom.retried and scan.first_failure)
        )
    )


def last_attempt(scan: ScanResult) -> tuple[ScanResult, Doubt | None]:
    """What is not settled, if it shows why the job failed; otherwise all, perhaps with a doubt."""
    exceptions = [error for error in scan.exceptions if not _is_of_a_tool(error, scan)]
    scan = dataclasses.replace(scan, settled_until=watchdog.settled(scan), exceptions=exceptions)
    grave: list[Failure] = [*own_faults(scan.exceptions, {}), *filter(_is_grave, scan.hits)]
    grave = [failure for failure in grave if is_unsettled(failure, scan)]
    doubt = _RESTART if _note_starts(scan, grave) else None
    certain = {hit.order for hit in scan.hits if "new_start" in hit.fields}
    is_over = any(_OF_LAUNCHER.match(error.message) for error in scan.exceptions)
    for source, again in scan.restart_line.items():
        if is_over and again >= scan.line_count - AT_END:  # a launcher's banner, printed at its end
            continue
        here = [failure for failure in grave if failure.place.source == source]
        before = {_kind_of(failure) for failure in here if failure.order < again}
        if before:
            scan.settled_until[source] = again
            alike = before == {_kind_of(failure) for failure in here if failure.order >= again}
            if not alike:
                doubt = EARLIER if again in certain else doubt_of_start(scan)
    exceptions = [error for error in scan.exceptions if is_unsettled(error, scan)]
    hits = [
        hit
        for hit in scan.hits
        if is_unsettled(hit, scan) or (hit.symptom.role == "fact" and hit.symptom.reads != "end")
    ]
    if doubt and any(hit.symptom.phase == "job_end" for hit in hits):
        doubt = EARLIER
    unsettled = dataclasses.replace(scan, hits=hits, exceptions=exceptions)
    if own_faults(exceptions, {}) or any(map(_is_grave, hits)):
        return unsettled, doubt
    rest: list[Failure] = [*scan.exceptions]
    rest += [hit for hit in scan.hits if hit.symptom.role not in ("fact", "hint")]
    rest = [failure for failure in rest if not is_unsettled(failure, scan)]
    cancels = [hit for hit in hits if "job_cancel" in hit.fields]
    if cancels and all(hit in cancels for hit in hits if hit.symptom.role != "fact"):
        return unsettled, None
    # A program may print its last steps when it ends, after its exception: a launcher reports that.
    has_died = _last_failure(hits, scan) == inf
    again = any(
        failure.order <= scan.settled_until.get(failure.place.source, 0) for failure in rest
    )
    if not rest or (has_died and not again):
        return scan, None
    return scan, _LATER if any(map(_reports_end, rest)) else SURVIVED


def _note_starts(scan: ScanResult, grave: Sequence[Failure]) -> bool:
    """Note a start with a failure of its own, as repeated first lines show it, if no rank is named.

    Returns whether there is one without: a scheduler, or another process, may print them as well.
    """
    if any(one.speaker.rank is not None for one in grave):
        return False
    others = False
    for source, start in scan.start_line.items():
        own = [one for one in grave if one.place.source == source and one.order >= start]
        if any(isinstance(one, LoggedException) or not one.symptom.waits for one in own):
            scan.restart_line[source] = max(start, scan.restart_line.get(source, 0))
        others |= not own and scan.line_count - start >= _OF_START
    return others


def _kind_of(failure: Failure) -> str:
    """Describe a failure so that two starts of a script that fail alike have the same text."""
    rank = failure.speaker.rank
    if isinstance(failure, LoggedException):
        message = _NUMBER.sub("0", failure.message)
        return f"{failure.kind}: {message} at {failure.file}:{failure.line} of {rank}"
    fields = sorted((name, value) for name, value in failure.fields.items() if name != "pid")
    return f"{failure.symptom.id} {fields} of {rank}"


def _is_of_a_tool(error: LoggedException, scan: ScanResult) -> bool:
    """Whether pip or the like raised it before the job's program made its first step."""
    return error.is_of_tool and error.order < scan.first_step_line.get(error.place.source, 0)


def doubt_of_start(scan: ScanResult) -> Doubt:
    """The doubt that a failure before the last one leaves: of an earlier start, or another rank."""
    own = own_faults(scan.exceptions, {})
    speakers = {error.speaker for error in scan.exceptions}
    is_launched = any(hit.symptom.role == "echo" for hit in scan.hits)
    if speakers == {Speaker()} and all(error.script for error in own) and not is_launched:
        return EARLIER  # each exception ended a start of a script without ranks
    has_ranks = any(speaker.rank is not None for speaker in speakers)
    return AGAIN if has_ranks else AGAIN._replace(confidence=0.5)


def reports_ends(scan: ScanResult) -> bool:
    """Whether a launcher of several ranks reports how some ended."""
    return any(hit.symptom.reads == "end" or _reports_end(hit) for hit in scan.hits)


def _reports_end(failure: Failure) -> bool:
    """Whether a launcher reports that a process had ended by a failure."""
    if not isinstance(failure, Hit):
        return False
    is_summary = failure.symptom.role == "echo" and failure.symptom.reads == "summary"
    return is_summary or failure.reports_exit


def _is_grave(hit: Hit) -> bool:
    return hit.symptom.role in ("cause", "sign") and not hit.retried


def is_unsettled(failure: Failure, scan: ScanResult) -> bool:
    """Whether no later line of its file settles what failed before."""
    source = failure.place.source
    is_import = isinstance(failure, LoggedException) and failure.kind in IMPORTS
    first_step = scan.first_step_line.get(source, 0) if is_import else 0
    return failure.order > max(
        scan.settled_until.get(source, 0), scan.progress_line.get(source, 0), first_step
    )


def ended_well(hits: Sequence[Hit], failures: Sequence[Failure], scan: ScanResult) -> bool:
    """Whether the job reports its normal end after all warnings, and no process died.

    What torchrun settled before, by a restart of all ranks or by their success, does not count.
    A script may print its last words whatever happened: they count only without a failure, and a
    server's if it ended no more than requests.
    """
    last = _last_failure(hits, scan)
    if not failures and unfinished_work(scan) is not None:
        return False
    if all(
        isinstance(error, LoggedException) and error.loose and not error.cut for error in failures
    ):
        words = _last_words(scan, {"exit"}) if failures else _last_words(scan)
        return max(scan.end_line, words) > last
    return scan.end_line > last


def _last_words(scan: ScanResult, fields: Collection[str] = ()) -> int:
    """The last line of a normal end: a script's, or a server's if no failure is known."""
    bad = scan.first_failure
    fields = {*fields} or ({"last_words", "done"} if bad else {"last_words", "done", "exit"})
    last = [hit for hit in scan.hits if fields & hit.fields.keys()]
    if bad is not None:  # the words of one program say nothing of the next
        after = bad.line + _SOON if is_grave(bad.text) else bad.line
        last = [
            hit
            for hit in last
            if hit.place.source != bad.source
            or hit.place.line > (after if "done" in hit.fields else bad.line)
        ]
    return max((hit.order for hit in last), default=0)


def _last_failure(hits: Sequence[Hit], scan: ScanResult) -> float:
    """The last line of a failure that the job may have survived; infinite if a process died."""
    traceback_lines = {
        (error.place.source, line)
        for error in scan.exceptions
        for line in range(error.began, error.place.line + 1)
    }
    has_died = any(
        (hit.symptom.role == "echo" and not hit.symptom.retried)
        or hit.symptom.at_end
        or (
            hit.symptom.role == "sign"
            and not hit.retried
            and hit.order > scan.highest_step_line.get(hit.place.source, 0)
        )
        or (hit.symptom.reads == "end" and exit_code(hit) != 0)
        for hit in (*hits, *(end for end in scan.hits if end.symptom.reads == "end"))
        if is_unsettled(hit, scan) and (hit.place.source, hit.place.line) not in traceback_lines
    )
    errors = [error for error in scan.exceptions if is_unsettled(error, scan)]
    # An exception is not caught if another rank, or torch's old launcher, reports the end.
    if has_died or any(
        error.speaker.rank is not None or _OF_LAUNCHER.match(error.message) for error in errors
    ):
        return inf
    orders = [error.order for error in errors]
    orders += [hit.order for hit in hits if "warning" not in hit.fields]
    return max(orders, default=0)


_OF_LAUNCHER = re.compile(r"Command '\[.{0,300}'--local[_-]rank=\d")
"""The message of the exception by which torch.distributed.launch reports that a rank ended."""
_SOON = 20
"""Lines after an error in which `Done` says nothing: a shell's script prints it anyway."""


class Doubt(NamedTuple):
    """Why the first failure in a log may not be what ended the job."""

    words: str
    """Added to the sentence of the answer."""
    confidence: float = 0.45
    """Of an answer with this doubt, at most."""


SURVIVED = Doubt("; but the job goes on after that, and no line shows its end")
_SEVERAL_TIMES = Doubt(
    "; but one process raised it several times, so that it caught it at least once"
)
_LATER = Doubt("; the start after it shows no failure", 0.65)
AGAIN = Doubt(
    "; but another failure stands before it, and no time shows whether of another attempt"
)
"""Two unlabelled ranks could have failed differently."""
EARLIER = Doubt("; an earlier start in this log failed, too", 0.65)
_RESTART = Doubt("; but its program seems to start again after that, and fails no more")
OUTLIVED = Doubt(
    "; but the scheduler ended the job only later: this may be of an earlier start, or other ranks "
    "waited for this one",
    0.6,
)
_OF_START = 20
"""Lines of a start, at least: a scheduler may print the first lines once more at the end."""
_GOES_ON, _FEW = 100, 3
"""Lines after an exception: more than a program prints that ends by it, or by a failed import."""


def perhaps_survived(hits: Sequence[Hit], scan: ScanResult) -> Doubt | None:
    """How the log goes on after its last failure, if no process is known to have died."""
    last = _last_failure(hits, scan)
    if _last_words(scan) > last:
        return Doubt("; but a later line reports the end of the work: it may have been caught")
    sources = {hit.place.source for hit in scan.hits}
    sources |= {error.place.source for error in scan.exceptions}
    after = scan.line_count - last
    few = any(error.kind in IMPORTS for error in scan.exceptions)
    if scan.exceptions and len(sources) == 1 and after > (_FEW if few else _GOES_ON):
        return Doubt(
            f"; but {after:g} lines follow, and none reports an end: it may have been caught"
        )
    counts = Counter(
        (error.speaker.pid, error.kind, error.file, error.line) for error in scan.exceptions
    )
    often = any(times > _FEW for (pid, *_), times in counts.items() if pid is not None)
    return _SEVERAL_TIMES if often and last < inf else None


_NUMBER = re.compile(r"\d+")
_OF_TOTAL = re.compile(
    r"(?:\d%\|[^|\n]{0,300}\| {0,4}|\]\[ {0,6}|(?i:\b(?:epoch|step|iter(?:ation)?|batch|round"
    r"|fold|trial|episode|generation)s?\b)(?:\(\w{1,12}\))?[^\w\n]{0,12})"
    r"(\d{1,12})(?:\.\d{1,9})?\]? {0,6}(?:/|of|out of) {0,6}(\d{1,12})\b"
)
"""How far a job has come: a progress bar, `Epoch 3/40`, `step 5 of 28`."""
_TAIL = 400
"""Characters at the end of a line in which it is looked for: a line may hold a whole bar."""
_NOT_OF_WORK = re.compile(r"(?i)\b(?:best|correct|remaining|finished|saved|early|done|complete)")


def unfinished_work(scan: ScanResult) -> tuple[Place, str] | None:
    """The last line that shows how much is done, if that is not all; None if no line shows it.

    One short of all may be the last: many programs count from 0.
    """
    for place in reversed(scan.last_lines):
        if _NOT_OF_WORK.search(place.text[-_TAIL:]):
            return None
        counts = [(int(done), int(total)) for done, total in _OF_TOTAL.findall(place.text[-_TAIL:])]
        if counts:
            open_ones = (f"{done} of {total}" for done, total in counts if done < total - 1)
            first = next(open_ones, None)
            return (place, first) if first else None
    return None


def exit_code(hit: Hit) -> int:
    """The exit code in a launcher's report; a negative one is a signal."""
    code = hit.fields.get("code", hit.fields.get("exitcode", ""))
    number = whole(code.removeprefix("-"), 2**31)
    return number_of(hit, "code") if number is None else -number if code[:1] == "-" else number
