"""All rules that decide whether this node is drained, resumed or left alone.

Pure: from what is known, `decide` returns what to do or what it must know first.
`sinfo -R` prints 20 characters of a drain's reason, and other tools recognize drains by its prefix.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from msgspec import Struct

from preflight.hook.child import HEALTHY, UNHEALTHY, UNJUDGED, printable_ascii
from preflight.hook.hook_values import (
    Assessment,
    Call,
    Decision,
    DrainRecord,
    Finding,
    HookConfig,
    NodeState,
    Occasion,
    Tokens,
)
from preflight.verdict import Outcome

PREFIX: Final = "pf:"
LONGEST: Final = 120

_JOB_LONGEST, _CHECK_LONGEST = 24, 48
_OCCASION_WORDS: Final[dict[Occasion, str]] = {"prolog": "prolog", "healthcheck": "health check"}
_NOT_IN_A_JOB = re.compile(r"[^0-9A-Za-z_+.]")
_NOT_IN_A_CHECK = re.compile(r"[^0-9a-z_.]")
_REPLACED = str.maketrans(
    {"=": ":", ",": ";", '"': "", "'": "", "`": "", "\\": "/", "\u00d7": "x", "\u00b5": "u"}
    | dict.fromkeys("\u2013\u2014\u2212", "-")
)
"""No quotes, `=` or `,`: scripts split the output of sinfo and scontrol at these."""

_REASON_FORM = re.compile(
    r"pf:[0-9a-z_]+(?:\.[0-9a-z_]+)+ .+ "
    r"\[(?:node|preflight)\] (?:job [0-9A-Za-z_+.]+|prolog|health check)"
)


def drain_reason(
    check: str, sentence: str, job: str = "", *, blame: str = "node", occasion: Occasion = "prolog"
) -> str:
    """Join check, sentence and job into at most 120 printable ASCII characters.

    `pf:gpu.count 7 of 8 GPUs answer [node] job 81723`. Where the sentence is too long, its end is
    cut: sentences begin with the number that was seen. `blame`: `node`, or `preflight` for an
    error of preflight. Without a job, the reason ends with the occasion.
    """
    start = f"{PREFIX}{_NOT_IN_A_CHECK.sub('_', check.lower())[:_CHECK_LONGEST]} "
    number = _NOT_IN_A_JOB.sub("", job)[:_JOB_LONGEST]
    end = f" [{blame}] " + (f"job {number}" if number else _OCCASION_WORDS[occasion])
    words = printable_ascii(sentence.translate(_REPLACED)) or "no detail"
    return start + _cut(words, LONGEST - len(start) - len(end)) + end


def is_own_reason(reason: str) -> bool:
    """Whether preflight wrote a reason, and no one has edited it."""
    return len(reason) <= LONGEST and _REASON_FORM.fullmatch(reason) is not None


def _cut(words: str, room: int) -> str:
    if len(words) <= room:
        return words
    start = words[: max(room - 2, 1)]
    words_kept = start.rpartition(" ")[0] if " " in start[room // 2 :] else start
    return f"{words_kept.rstrip(' ;:.')}.."


_MOST_LISTED = 4


def advice_suffix(advice: str) -> str:
    """Return the suffix that says what to do; "" without advice."""
    return f"; do: {advice}" if advice else ""


def notes(assessment: Assessment) -> str:
    """Return one line on findings that do not drain and checks that are unknown; "" if none."""
    findings = [_finding(finding) for finding in assessment.findings if finding.makes_not_ready]
    if assessment.trouble:
        # With a full disk, this line is the only record of the findings.
        text = f"could not check {assessment.node}: {assessment.trouble}"
        return f"{text}; found before: {_list_first(findings)}" if findings else text
    checks: dict[str, list[str]] = {}
    for row in assessment.unknown:
        checks.setdefault(row.why, []).append(row.check)
    unknown = [f"{_list_first(ids, ', ')} unknown: {reason}" for reason, ids in checks.items()]
    text = _list_first(findings + unknown)
    return f"{assessment.node}: {text}" if text else ""


def _list_first(texts: list[str], separator: str = "; ") -> str:
    more = f"{separator}and {len(texts) - _MOST_LISTED} more" if len(texts) > _MOST_LISTED else ""
    return f"{separator.join(texts[:_MOST_LISTED])}{more}"


def _finding(row: Finding) -> str:
    tag = " [user]" if row.user else "" if row.drains else " [drains nothing]"
    return f"{row.check} {row.outcome}{tag}: {row.sentence}{advice_suffix(row.advice)}"


Ask = Literal["state", "token"]
"""What to find out next: the node's state, or whether the breaker grants one more drain."""

OWN_FAULT: Final = "hook.trouble"
"""Takes the place of the check in the reason of a drain that `--fail-closed` requires."""

_IN_USE: Final = frozenset(
    {
        *("IDLE", "ALLOCATED", "MIXED", "COMPLETING", "RESERVED", "PLANNED", "BLOCKED"),
        *("CLOUD", "DYNAMIC_NORM", "NOT_RESPONDING"),
    }
)
"""States in which a node serves jobs. In any other (DOWN, FAIL, MAINT, REBOOT, powered down, a
state of a later Slurm) an operator or Slurm is at work on the node: the hook leaves it alone."""

_DRAIN: Final = "DRAIN"


class DecisionInput(Struct, frozen=True, kw_only=True):
    """All that a decision rests on; `decide` asks for what is still missing."""

    call: Call
    assessment: Assessment
    record: DrainRecord | None = None
    """The drain of this node that preflight recorded."""
    record_age_s: float = 0.0
    """Minimum age of that drain."""
    state: NodeState | None = None
    state_trouble: str = ""
    """Why the state could not be read; "" where it was read, or not asked for."""
    tokens: Tokens | None = None


class Cause(Struct, frozen=True, kw_only=True):
    """Why the node is to be drained."""

    check: str
    reason: str
    heals: bool
    advice: str = ""


def decide(inputs: DecisionInput, config: HookConfig) -> Decision | Ask:
    """Return what to do, or what must be known first; asks for each thing at most once.

    A node is drained only for a `fail` that blames its own hardware, while no operator has taken it
    over, and with a token of the breaker. An unknown result never drains.
    """
    cause = cause_of(inputs)
    if cause is None:
        return _resume(inputs, config)
    if why := why_observing(config):
        log = f"would drain {inputs.assessment.node}: {cause.reason} ({why})"
        return Decision("observe", log=log)
    if inputs.state is None:
        return _without_state(inputs, cause) if inputs.state_trouble else "state"
    return _drain(cause, inputs, inputs.state)


def cause_of(inputs: DecisionInput) -> Cause | None:
    """Return the one finding to drain for: a lasting one comes before one that may heal.

    An error of preflight itself, such as a check that broke, hides no other check's finding. With
    `--fail-closed` it is a cause if there is no such finding.
    """
    call, assessment = inputs.call, inputs.assessment
    faults = [
        finding
        for finding in assessment.findings
        if finding.drains and not finding.user and finding.outcome is Outcome.FAIL
    ]
    if not faults:
        trouble = call.fail_closed and (assessment.trouble or _why_no_result(assessment))
        if not trouble:
            return None
        reason = drain_reason(OWN_FAULT, trouble, call.job, blame="preflight")
        return Cause(check=OWN_FAULT, reason=reason, heals=True)
    chosen = min(faults, key=lambda finding: finding.heals)
    return Cause(
        check=chosen.check,
        reason=drain_reason(chosen.check, chosen.sentence, call.job, occasion=call.occasion),
        heals=chosen.heals,
        advice=chosen.advice,
    )


def _why_no_result(assessment: Assessment) -> str:
    """Return why no check has a result; "" where at least one has."""
    if assessment.findings or assessment.passed or not assessment.unknown:
        return ""
    return assessment.unknown[0].why


def why_observing(config: HookConfig) -> str:
    """Return why the hook only observes; "" where it enforces drains."""
    breaker = config.breaker
    if not config.enforce:
        return "observing: enforce is not set"
    if breaker is None or not (breaker.directory or breaker.slurm):
        return "observing: enforce needs a breaker, and none is configured"
    return ""


def other_holder(state: NodeState) -> str:
    """Return what else has taken the node out of service; "" if the hook may change it."""
    foreign = state.states - _IN_USE - {_DRAIN}
    if foreign or not state.states:
        return f"its state in the scheduler is {'+'.join(sorted(state.states)) or 'unknown'}"
    if state.reason and not is_own_reason(state.reason):
        return f"its reason {state.reason[:80]!a} was not set by preflight"
    return ""


def _drain(cause: Cause, inputs: DecisionInput, state: NodeState) -> Decision | Ask:
    node, holder = inputs.assessment.node, other_holder(state)
    if _DRAIN in state.states:
        return _keep_drained(cause, inputs, state, holder)
    if holder:
        return Decision("withheld", log=f"left alone {node}: {holder}; found {cause.reason}")
    if inputs.tokens is None:
        return "token"
    if not inputs.tokens.granted:
        breaker = _breaker_words(inputs.tokens)
        return Decision("withheld", log=f"not drained {node}: {breaker}; found {cause.reason}")
    share = f"drain {inputs.tokens.used} of {inputs.tokens.most} in the window"
    log = f"drain {node}: {cause.reason} ({share}){advice_suffix(cause.advice)}"
    return Decision("drain", 1, cause.reason, log)


def _keep_drained(cause: Cause, inputs: DecisionInput, state: NodeState, holder: str) -> Decision:
    """The node is drained already: the drain stays, and the prolog keeps its job away.

    A lasting cause replaces a drain by preflight that would have healed. The health check, which
    runs every few minutes, logs nothing new.
    """
    node, old = inputs.assessment.node, inputs.record
    if not holder and old is not None and has_own_drain(state, old) and old.heals > cause.heals:
        log = f"{node} is drained already, now for: {cause.reason}{advice_suffix(cause.advice)}"
        return Decision("drain", 1, cause.reason, log)
    news = inputs.call.occasion == "prolog"
    log = f"{node} is drained already: found {cause.reason}" if news else ""
    return Decision("none", 1, log=log)


def _without_state(inputs: DecisionInput, cause: Cause) -> Decision | Ask:
    """The state could not be read: an operator may hold the node, so the hook leaves it alone.

    With `--fail-closed` the prolog fails, within the breaker's limit: the scheduler itself then
    drains the node, and keeps an existing reason.
    """
    words = f"{inputs.assessment.node}: {inputs.state_trouble}; found {cause.reason}"
    if not inputs.call.fail_closed:
        return Decision("withheld", log=f"not drained {words}")
    if inputs.tokens is None:
        return "token"
    if not inputs.tokens.granted:
        return Decision("withheld", log=f"not drained {words}; {_breaker_words(inputs.tokens)}")
    return Decision("none", 1, log=f"kept the job from {words}")


def has_own_drain(state: NodeState, record: DrainRecord) -> bool:
    """Whether the node still has the drain that preflight set, unedited."""
    return _DRAIN in state.states and state.reason == record.reason and is_own_reason(record.reason)


def _resume(inputs: DecisionInput, config: HookConfig) -> Decision | Ask:
    """Undo only a drain that preflight set and whose cause has healed."""
    record, node = inputs.record, inputs.assessment.node
    unchanged = Decision("none", log=notes(inputs.assessment))
    if record is None or not _has_healed(record, inputs, config):
        return unchanged
    if why := why_observing(config):
        return Decision("observe", log=f"would resume {node}: {record.check} passes again ({why})")
    if inputs.state is None:
        return unchanged if inputs.state_trouble else "state"
    if not has_own_drain(inputs.state, record) or other_holder(inputs.state):
        return unchanged
    log = f"resume {node}: {record.check} passes again"
    return Decision("undrain", log=log)


def _has_healed(record: DrainRecord, inputs: DecisionInput, config: HookConfig) -> bool:
    assessment = inputs.assessment
    passed = assessment.passed
    passes = bool(passed) if record.check == OWN_FAULT else record.check in passed
    has_fault = any(finding.drains and finding.makes_not_ready for finding in assessment.findings)
    # A GPU that cannot be opened just now may be the faulty one: the others prove nothing.
    gpus_unknown = any(row.check == "gpu.count" for row in assessment.unknown)
    return (
        inputs.call.occasion == "healthcheck"
        and record.heals
        and passes
        and not has_fault
        and not (gpus_unknown and record.check.startswith("gpu."))
        and not assessment.trouble
        and inputs.record_age_s >= config.undrain_after_s
    )


def _breaker_words(tokens: Tokens) -> str:
    if tokens.trouble:
        return f"the breaker did not answer: {tokens.trouble}"
    return (
        f"the breaker is open, {tokens.used} nodes drained in the window and {tokens.most} allowed"
    )


def plain_code(assessment: Assessment) -> int:
    """Return 0 for ready, 1 for not ready, 2 for unknown. Findings about users do not count.

    An error of preflight itself is unknown, too; it hides no finding.
    """
    if any(finding.makes_not_ready and not finding.user for finding in assessment.findings):
        return UNHEALTHY
    return UNJUDGED if assessment.trouble or assessment.unknown else HEALTHY
