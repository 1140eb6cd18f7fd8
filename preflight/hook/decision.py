"""All rules that decide whether this node is drained, resumed or left alone.

Pure: from what is known, `decide` returns what to do or what it must know first.
`sinfo -R` prints 20 characters of a drain's reason, and other tools recognize drains by its prefix.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct

from preflight.hook.child import HEALTHY, UNHEALTHY, UNJUDGED
from preflight.hook.hook_values import (
    Assessment,
    Call,
    Decision,
    DrainRecord,
    HookConfig,
    NodeState,
    Tokens,
)
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from preflight.hook.hook_values import Finding, Occasion


PREFIX: Final = "pf:"
LONGEST: Final = 120

_JOB_LONGEST, _CHECK_LONGEST = 24, 48
_ASKED: Final[dict[Occasion, str]] = {"prolog": "prolog", "healthcheck": "health check"}
_NOT_IN_A_JOB = re.compile(r"[^0-9A-Za-z_+.]")
_NOT_IN_A_CHECK = re.compile(r"[^0-9a-z_.]")
_PLAINER = str.maketrans(
    {"=": ":", ",": ";", '"': "", "'": "", "`": "", "\\": "/", "\u00d7": "x", "\u00b5": "u"}
    | dict.fromkeys("\u2013\u2014\u2212", "-")
)
"""No quotes, `=` or `,`: scripts split the output of sinfo and scontrol at these."""

_OURS = re.compile(
    r"pf:[0-9a-z_]+(?:\.[0-9a-z_]+)+ .+ "
    r"\[(?:node|preflight)\] (?:job [0-9A-Za-z_+.]+|prolog|health check)"
)


def compose(
    check: str, sentence: str, job: str = "", *, whose: str = "node", occasion: Occasion = "prolog"
) -> str:
    """Join check, sentence and job into at most 120 printable ASCII characters.

    `pf:gpu.count 7 of 8 GPUs answer [node] job 81723`. Where the sentence is too long, its end is
    cut: sentences begin with the number that was seen. `whose`: `node`, or `preflight` for its own
    error. Without a job, the reason ends with the occasion.
    """
    start = f"{PREFIX}{_NOT_IN_A_CHECK.sub('_', check.lower())[:_CHECK_LONGEST]} "
    number = _NOT_IN_A_JOB.sub("", job)[:_JOB_LONGEST]
    end = f" [{whose}] " + (f"job {number}" if number else _ASKED[occasion])
    return start + _cut(_plain(sentence), LONGEST - len(start) - len(end)) + end


def is_ours(reason: str) -> bool:
    """Whether preflight wrote a reason, and no one has edited it."""
    return len(reason) <= LONGEST and _OURS.fullmatch(reason) is not None


def _plain(sentence: str) -> str:
    ascii_only = sentence.translate(_PLAINER).encode("ascii", "replace").decode()
    shown = "".join(char if char.isprintable() else " " for char in ascii_only)
    return " ".join(shown.split()) or "no detail"


def _cut(words: str, room: int) -> str:
    if len(words) <= room:
        return words
    short = words[: max(room - 2, 1)]
    whole = short.rpartition(" ")[0] if " " in short[room // 2 :] else short
    return f"{whole.rstrip(' ;:.')}.."


_SHOWN = 4


def advice_suffix(advice: str) -> str:
    """Return the suffix that says what to do; "" without advice."""
    return f"; do: {advice}" if advice else ""


def notes(assessment: Assessment) -> str:
    """Return one line on findings that do not drain and checks that are unknown; "" if none."""
    findings = [_finding(finding) for finding in assessment.findings if finding.makes_not_ready]
    if assessment.trouble:
        # With a full disk, this line is the only record of the findings.
        text = f"could not check {assessment.node}: {assessment.trouble}"
        return f"{text}; found before: {_some(findings)}" if findings else text
    checks: dict[str, list[str]] = {}
    for row in assessment.unknown:
        checks.setdefault(row.why, []).append(row.check)
    unknown = [f"{_some(check_ids, ', ')} unknown: {why}" for why, check_ids in checks.items()]
    text = _some(findings + unknown)
    return f"{assessment.node}: {text}" if text else ""


def _some(texts: list[str], between: str = "; ") -> str:
    more = f"{between}and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return f"{between.join(texts[:_SHOWN])}{more}"


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
    drained: DrainRecord | None = None
    """The drain of this node that preflight recorded."""
    stood_s: float = 0.0
    """Minimum age of that drain."""
    state: NodeState | None = None
    unread: str = ""
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
    if why := only_observing(config):
        return _leave_alone(
            "observe", f"would drain {inputs.assessment.node}: {cause.reason} ({why})"
        )
    if inputs.state is None:
        return _drain_unread(inputs, cause) if inputs.unread else "state"
    return _drain(cause, inputs, inputs.state)


def cause_of(inputs: DecisionInput) -> Cause | None:
    """Return the one finding to drain for: a lasting one comes before one that may heal.

    An error of preflight itself, such as a check that broke, hides no other check's finding. With
    `--fail-closed` it is a cause if there is no such finding.
    """
    call, assessment = inputs.call, inputs.assessment
    blamed = [
        finding
        for finding in assessment.findings
        if finding.drains and not finding.user and finding.outcome is Outcome.FAIL
    ]
    if not blamed:
        why = call.fail_closed and (assessment.trouble or _silence(assessment))
        if not why:
            return None
        reason = compose(OWN_FAULT, why, call.job, whose="preflight")
        return Cause(check=OWN_FAULT, reason=reason, heals=True)
    first = min(blamed, key=lambda finding: finding.heals)
    return Cause(
        check=first.check,
        reason=compose(first.check, first.sentence, call.job, occasion=call.occasion),
        heals=first.heals,
        advice=first.advice,
    )


def _silence(assessment: Assessment) -> str:
    """Return why no check has a result; "" where at least one has."""
    if assessment.findings or assessment.passed or not assessment.unknown:
        return ""
    return assessment.unknown[0].why


def only_observing(config: HookConfig) -> str:
    """Return why the hook only observes; "" where it enforces drains."""
    breaker = config.breaker
    if not config.enforce:
        return "observing: enforce is not set"
    if breaker is None or not (breaker.directory or breaker.slurm):
        return "observing: enforce needs a breaker, and none is configured"
    return ""


def held_by(state: NodeState) -> str:
    """Return what else has taken the node out of service; "" if the hook may change it."""
    strange = state.states - _IN_USE - {_DRAIN}
    if strange or not state.states:
        return f"its state in the scheduler is {'+'.join(sorted(state.states)) or 'unknown'}"
    if state.reason and not is_ours(state.reason):
        return f"its reason {state.reason[:80]!a} was not set by preflight"
    return ""


def _drain(cause: Cause, inputs: DecisionInput, state: NodeState) -> Decision | Ask:
    node, holder = inputs.assessment.node, held_by(state)
    if _DRAIN in state.states:
        return _already_out(cause, inputs, state, holder)
    if holder:
        return _leave_alone("withheld", f"left alone {node}: {holder}; found {cause.reason}")
    if inputs.tokens is None:
        return "token"
    if not inputs.tokens.granted:
        closed = _closed(inputs.tokens)
        return _leave_alone("withheld", f"not drained {node}: {closed}; found {cause.reason}")
    share = f"drain {inputs.tokens.used} of {inputs.tokens.most} in the window"
    return Decision(
        action="drain",
        exit_code=1,
        reason=cause.reason,
        log=f"drain {node}: {cause.reason} ({share}){advice_suffix(cause.advice)}",
    )


def _already_out(cause: Cause, inputs: DecisionInput, state: NodeState, holder: str) -> Decision:
    """The node is drained already: the drain stays, and the prolog keeps its job away.

    A lasting cause replaces a drain by preflight that would have healed. The health check, which
    runs every few minutes, logs nothing new.
    """
    node, own = inputs.assessment.node, inputs.drained
    if not holder and own is not None and has_own_drain(state, own) and own.heals > cause.heals:
        return Decision(
            action="drain",
            exit_code=1,
            reason=cause.reason,
            log=f"{node} is drained already, now for: {cause.reason}{advice_suffix(cause.advice)}",
        )
    news = inputs.call.occasion == "prolog"
    return _leave_alone(
        "none", f"{node} is drained already: found {cause.reason}" * news, exit_code=1
    )


def _drain_unread(inputs: DecisionInput, cause: Cause) -> Decision | Ask:
    """The state could not be read: an operator may hold the node, so the hook leaves it alone.

    With `--fail-closed` the prolog fails, within the breaker's limit: the scheduler itself then
    drains the node, and keeps an existing reason.
    """
    outcome = f"{inputs.assessment.node}: {inputs.unread}; found {cause.reason}"
    if not inputs.call.fail_closed:
        return _leave_alone("withheld", f"not drained {outcome}")
    if inputs.tokens is None:
        return "token"
    if not inputs.tokens.granted:
        return _leave_alone("withheld", f"not drained {outcome}; {_closed(inputs.tokens)}")
    return _leave_alone("none", f"kept the job from {outcome}", exit_code=1)


def has_own_drain(state: NodeState, own: DrainRecord) -> bool:
    """Whether the node still has the drain that preflight set, unedited."""
    return _DRAIN in state.states and state.reason == own.reason and is_ours(own.reason)


def _resume(inputs: DecisionInput, config: HookConfig) -> Decision | Ask:
    """Undo only a drain that preflight set and whose cause has healed."""
    own, node = inputs.drained, inputs.assessment.node
    quiet = _leave_alone("none", notes(inputs.assessment))
    if own is None or not _healed(own, inputs, config):
        return quiet
    if why := only_observing(config):
        return _leave_alone("observe", f"would resume {node}: {own.check} passes again ({why})")
    if inputs.state is None:
        return quiet if inputs.unread else "state"
    if not has_own_drain(inputs.state, own) or held_by(inputs.state):
        return quiet
    return Decision(action="undrain", exit_code=0, log=f"resume {node}: {own.check} passes again")


def _healed(own: DrainRecord, inputs: DecisionInput, config: HookConfig) -> bool:
    assessment = inputs.assessment
    again = bool(assessment.passed) if own.check == OWN_FAULT else own.check in assessment.passed
    bad = any(finding.drains and finding.makes_not_ready for finding in assessment.findings)
    # A GPU that cannot be opened just now may be the faulty one: the others prove nothing.
    gpus_unknown = any(row.check == "gpu.count" for row in assessment.unknown)
    return (
        inputs.call.occasion == "healthcheck"
        and own.heals
        and again
        and not bad
        and not (gpus_unknown and own.check.startswith("gpu."))
        and not assessment.trouble
        and inputs.stood_s >= config.undrain_after_s
    )


def _closed(tokens: Tokens) -> str:
    if tokens.trouble:
        return f"the breaker did not answer: {tokens.trouble}"
    return (
        f"the breaker is open, {tokens.used} nodes drained in the window and {tokens.most} allowed"
    )


def _leave_alone(
    action: Literal["none", "withheld", "observe"], log: str, exit_code: int = 0
) -> Decision:
    return Decision(action=action, exit_code=exit_code, log=log)


def plain_code(assessment: Assessment) -> int:
    """Return 0 for ready, 1 for not ready, 2 for unknown. Findings about users do not count.

    An error of preflight itself is unknown, too; it hides no finding.
    """
    if any(finding.makes_not_ready and not finding.user for finding in assessment.findings):
        return UNHEALTHY
    return UNJUDGED if assessment.trouble or assessment.unknown else HEALTHY
