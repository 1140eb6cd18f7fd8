"""What checks of the kernel log share: unread logs, the time a log covers, the age of a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from preflight.core.text import age, count
from preflight.facts.machine import KernelLog
from preflight.facts.model import Facts
from preflight.verdict import Verdict, ok, unknown

CAUSE = "kernel log unread"
GRANT = (
    "let this login read the kernel log: group adm or systemd-journal, or kernel.dmesg_restrict=0"
)
_FLOODED = "look at dmesg there for what floods it, then recheck"
_REFUSALS = ("permitted", "denied", "permission", "privilege")
DAY_S = 86400.0
_FORGOT_S = 600.0
"""A log that begins this long after boot has lost its first lines."""


def unread(facts: Facts) -> Verdict:
    """The verdict `unknown` of a check whose log could not be read."""
    problem = next((text for text in facts.problems if text.startswith("kernel log: ")), "")
    reason = problem.partition(": ")[2] or "no way to read it worked"
    needs_grant = any(word in reason.lower() for word in _REFUSALS)
    sentence = f"its kernel log could not be read: {reason}"
    if needs_grant:
        return unknown(sentence, advice=f"{GRANT}; then recheck", grant=GRANT, cause=CAUSE)
    advice = "make /dev/kmsg, the journal or dmesg readable there"
    return unknown(sentence, advice=advice, cause=CAUSE)


def ok_if_read(sentence: str, log: KernelLog, kinds: Sequence[str], /, **evidence: Any) -> Verdict:
    """Return ok with that sentence; unknown if lines of these kinds were dropped."""
    dropped = sum(log.dropped_of.get(kind, 0) for kind in (*kinds, "any"))
    if not dropped:
        return ok(sentence, **evidence)
    amount = "part" if "any" in log.dropped_of else count(dropped, "line")
    sentence = f"{amount} of its kernel log could not be kept; of the rest: {sentence}"
    return unknown(sentence, advice=_FLOODED, **evidence)


def maybe_over(sentence: str, log: KernelLog, /, **evidence: Any) -> Verdict | None:
    """Unknown if later lines were not read: one of them may say that the fault is over."""
    if "later" not in log.dropped_of:
        return None
    doubt = "later lines of its kernel log could not be read: it may be over since"
    return unknown(f"{sentence}; {doubt}", advice=_FLOODED, **evidence)


def now_s(facts: Facts) -> float | None:
    """Seconds since boot when the node answered; None for a captured log, which has no now."""
    return facts.time_s - facts.boot_s if facts.time_s > facts.boot_s > 0 else None


def window(log: KernelLog, facts: Facts) -> str:
    """The time that the log covers: "since boot", "in the last 2 h 0 min", "in this log"."""
    now = now_s(facts)
    if log.source == "text" or now is None:
        return "in this log"
    if log.after_s > 0:
        return f"in the last {age(max(0.0, now - log.after_s))}"
    if log.begins_s is not None and log.begins_s > _FORGOT_S:
        return f"in the last {age(max(0.0, now - log.begins_s))} (older lines are overwritten)"
    return "since boot"


def ago(last_s: float | None, facts: Facts) -> str:
    """The age of a line: ", 2 h 5 min ago", or "" where the log has no times."""
    since_s = elapsed_s(last_s, facts)
    return "" if since_s is None else f", {age(since_s)} ago"


def elapsed_s(last_s: float | None, facts: Facts) -> float | None:
    """The age of a line in seconds; None where it is not known."""
    now = now_s(facts)
    return None if last_s is None or now is None else max(0.0, now - last_s)


def days_covered(log: KernelLog, facts: Facts) -> float:
    """How many days the lines cover, at least one."""
    return max(1.0, (span_s(log, facts) or 0.0) / DAY_S)


def is_frequent(times: int, last_s: float | None, most: float, days: float, facts: Facts) -> bool:
    """Whether something came at least `most` times a day, the last time within the last day."""
    since_s = elapsed_s(last_s, facts)
    return times / days >= most and (since_s is None or since_s < DAY_S)


def span_s(log: KernelLog, facts: Facts) -> float | None:
    """How many seconds the lines cover; None where the log has no times."""
    times = [line.last_s for line in log.lines if line.last_s is not None]
    until = now_s(facts) or max(times, default=None)
    if until is None:
        return None
    return max(0.0, until - max(log.after_s, log.begins_s or 0.0))
