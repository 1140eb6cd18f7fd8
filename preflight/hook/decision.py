"""Whether this node is drained, resumed or left alone: every rule of that lives here.

Pure: it is told what is known, and says either what to do or what it must know first.

`sinfo -R` prints twenty characters of them, and other tools tell drains apart by how they begin.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct

from preflight.hook.model import Call, Decision, Drained, HookConfig, Judged, NodeState, Tokens
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from preflight.hook.model import Finding, Occasion


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
"""No quotes, `=` or `,`: scripts cut what sinfo and scontrol print at these."""

_OURS = re.compile(
    r"pf:(?P<check>[0-9a-z_]+(?:\.[0-9a-z_]+)+) (?P<words>.+) "
    r"\[(?:node|preflight)\] (?:job (?P<job>[0-9A-Za-z_+.]+)|prolog|health check)"
)


class Ours(Struct, frozen=True, kw_only=True):
    """What a reason of ours says."""

    check: str
    words: str
    job: str = ""


def compose(
    check: str, sentence: str, job: str = "", *, whose: str = "node", occasion: Occasion = "prolog"
) -> str:
    """Join check, number and job into at most 120 printable ASCII characters.

    `pf:gpu.count 7 of 8 GPUs answer [node] job 81723`. Where the sentence is too long, its end is
    cut: sentences begin with the number that was seen. `whose`: `node`, or `preflight` for a fault
    of our own. Without a job it ends in what asked.
    """
    start = f"{PREFIX}{_NOT_IN_A_CHECK.sub('_', check.lower())[:_CHECK_LONGEST]} "
    number = _NOT_IN_A_JOB.sub("", job)[:_JOB_LONGEST]
    end = f" [{whose}] " + (f"job {number}" if number else _ASKED[occasion])
    return start + _cut(_plain(sentence), LONGEST - len(start) - len(end)) + end


def parse(reason: str) -> Ours | None:
    """Read a reason back; None for what anybody else wrote, or added something to."""
    found = _OURS.fullmatch(reason)
    if found is None or len(reason) > LONGEST:
        return None
    return Ours(check=found["check"], words=found["words"], job=found["job"] or "")


def _plain(sentence: str) -> str:
    ascii_only = sentence.translate(_PLAINER).encode("ascii", "replace").decode()
    shown = "".join(char if char.isprintable() else " " for char in ascii_only)
    return " ".join(shown.split()) or "no word"


def _cut(words: str, room: int) -> str:
    if len(words) <= room:
        return words
    short = words[: max(room - 2, 1)]
    whole = short.rpartition(" ")[0] if " " in short[room // 2 :] else short
    return f"{whole.rstrip(' ;:.')}.."


_SHOWN = 4


def advised(advice: str) -> str:
    """Append what to do, where a check says so."""
    return f"; do: {advice}" if advice else ""


def notes(judged: Judged) -> str:
    """One line on findings that drain nothing and on what could not be judged; "" if none."""
    found = [_finding(each) for each in judged.findings if each.condemns]
    if judged.trouble:
        # The line may be all that is left of them: the disk may be full.
        said = f"could not judge {judged.node}: {judged.trouble}"
        return f"{said}; found before: {_some(found)}" if found else said
    said = _some(found + [f"{each.check} unknown: {each.why}" for each in judged.unknown])
    return f"{judged.node}: {said}" if said else ""


def _some(told: list[str]) -> str:
    more = f"; and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    return f"{'; '.join(told[:_SHOWN])}{more}"


def _finding(one: Finding) -> str:
    whose = " [user]" if one.user else "" if one.drains else " [drains nothing]"
    return f"{one.check} {one.outcome}{whose}: {one.sentence}{advised(one.advice)}"


Ask = Literal["state", "token"]
"""What to find out next: the node's state, or whether the breaker grants one more drain."""

OWN_FAULT: Final = "hook.trouble"
"""Stands for a check in the reason of a drain that `--fail-closed` asked for."""

_IN_USE: Final = frozenset(
    {
        *("IDLE", "ALLOCATED", "MIXED", "COMPLETING", "RESERVED", "PLANNED", "BLOCKED"),
        *("CLOUD", "DYNAMIC_NORM", "NOT_RESPONDING"),
    }
)
"""States in which a node serves jobs. In any other (DOWN, FAIL, MAINT, REBOOT, powered down, a word
of a later Slurm) somebody else is at work on it, and it is left alone."""

_DRAIN: Final = "DRAIN"


class Known(Struct, frozen=True, kw_only=True):
    """All that a decision goes by; `decide` asks for what is still missing."""

    call: Call
    judged: Judged
    drained: Drained | None = None
    """The drain of this node that we remember."""
    stood_s: float = 0.0
    """For how long that has stood at least."""
    state: NodeState | None = None
    unread: str = ""
    """Why the scheduler did not tell the state; "" where it did, or was not asked."""
    tokens: Tokens | None = None


class Cause(Struct, frozen=True, kw_only=True):
    """What the node is to be drained for."""

    check: str
    reason: str
    heals: bool
    advice: str = ""


def decide(known: Known, config: HookConfig) -> Decision | Ask:
    """Say what to do, or what must be known first; asks for each thing at most once.

    A node is drained only for a `fail` that blames its own hardware, while nobody else holds it,
    and with a token of the breaker. Whatever could not be judged drains nothing.
    """
    cause = cause_of(known)
    if cause is None:
        return _resume(known, config)
    if why := only_observing(config):
        return _say("observe", f"would drain {known.judged.node}: {cause.reason} ({why})")
    if known.state is None:
        return _unread(known, cause) if known.unread else "state"
    return _drain(cause, known, known.state)


def cause_of(known: Known) -> Cause | None:
    """The one finding to drain for: one that stays comes before one that may heal.

    Nothing where a fault of ours makes us a poor witness, unless that alone is to keep jobs away.
    """
    call, judged = known.call, known.judged
    if why := judged.trouble or _silence(judged):
        if not call.fail_closed:
            return None
        reason = compose(OWN_FAULT, why, call.job, whose="preflight")
        return Cause(check=OWN_FAULT, reason=reason, heals=True)
    blamed = [
        each
        for each in judged.findings
        if each.drains and not each.user and each.outcome is Outcome.FAIL
    ]
    if not blamed:
        return None
    first = min(blamed, key=lambda each: each.heals)
    return Cause(
        check=first.check,
        reason=compose(first.check, first.sentence, call.job, occasion=call.occasion),
        heals=first.heals,
        advice=first.advice,
    )


def _silence(judged: Judged) -> str:
    """Say why nothing at all could be judged; "" where something was."""
    if judged.findings or judged.passed or not judged.unknown:
        return ""
    return judged.unknown[0].why


def only_observing(config: HookConfig) -> str:
    """Say why nothing is drained at all; "" where drains are enforced."""
    breaker = config.breaker
    if not config.enforce:
        return "observing: enforce is not set"
    if breaker is None or not (breaker.directory or breaker.slurm):
        return "observing: enforce needs a breaker, and none is configured"
    return ""


def held_by(state: NodeState) -> str:
    """Say who or what else holds the node, so that it is not ours to touch; "" if nobody does."""
    strange = state.states - _IN_USE - {_DRAIN}
    if strange or not state.states:
        return f"the scheduler has it as {'+'.join(sorted(state.states)) or 'nothing known'}"
    if state.reason and parse(state.reason) is None:
        return f"it carries the reason {state.reason[:80]!a}, which is not ours"
    return ""


def _drain(cause: Cause, known: Known, state: NodeState) -> Decision | Ask:
    node, held = known.judged.node, held_by(state)
    if _DRAIN in state.states:
        return _already_out(cause, known, state, held)
    if held:
        return _say("withheld", f"left alone {node}: {held}; found {cause.reason}")
    if known.tokens is None:
        return "token"
    if not known.tokens.granted:
        closed = _closed(known.tokens)
        return _say("withheld", f"not drained {node}: {closed}; found {cause.reason}")
    counted = f"drain {known.tokens.used} of {known.tokens.most} in the window"
    return Decision(
        action="drain",
        exit_code=1,
        reason=cause.reason,
        log=f"drain {node}: {cause.reason} ({counted}){advised(cause.advice)}",
    )


def _already_out(cause: Cause, known: Known, state: NodeState, held: str) -> Decision:
    """Drained, by whomever: that stands. A job that was about to start is kept away from it.

    A drain of ours that would have healed gives way to a cause that does not. The health check,
    which comes by every few minutes, has nothing new to say.
    """
    node, mine = known.judged.node, known.drained
    if not held and mine is not None and is_mine(state, mine) and mine.heals > cause.heals:
        return Decision(
            action="drain",
            exit_code=1,
            reason=cause.reason,
            log=f"drained already {node}, now for: {cause.reason}{advised(cause.advice)}",
        )
    news = known.call.occasion == "prolog"
    return _say("none", f"drained already {node}: found {cause.reason}" * news, exit_code=1)


def _unread(known: Known, cause: Cause) -> Decision | Ask:
    """Nobody told who holds the node: its reason may be somebody's, so it is not touched.

    With `--fail-closed` the prolog fails within the breaker's number: the scheduler itself then
    drains the node, and keeps a reason that is there.
    """
    said = f"{known.judged.node}: {known.unread}; found {cause.reason}"
    if not known.call.fail_closed:
        return _say("withheld", f"not drained {said}")
    if known.tokens is None:
        return "token"
    if not known.tokens.granted:
        return _say("withheld", f"not drained {said}; {_closed(known.tokens)}")
    return _say("none", f"kept the job from {said}", exit_code=1)


def is_mine(state: NodeState, mine: Drained) -> bool:
    """Whether the node still carries the drain that we set, unedited."""
    return _DRAIN in state.states and state.reason == mine.reason and parse(mine.reason) is not None


def _resume(known: Known, config: HookConfig) -> Decision | Ask:
    """Undo a drain of ours whose cause has healed, and nothing else."""
    mine, node = known.drained, known.judged.node
    quiet = _say("none", notes(known.judged))
    if mine is None or not _healed(mine, known, config):
        return quiet
    if why := only_observing(config):
        return _say("observe", f"would resume {node}: {mine.check} passes again ({why})")
    if known.state is None:
        return quiet if known.unread else "state"
    if not is_mine(known.state, mine) or held_by(known.state):
        return quiet
    return Decision(action="undrain", exit_code=0, log=f"resume {node}: {mine.check} passes again")


def _healed(mine: Drained, known: Known, config: HookConfig) -> bool:
    judged = known.judged
    again = bool(judged.passed) if mine.check == OWN_FAULT else mine.check in judged.passed
    bad = any(each.drains and each.condemns for each in judged.findings)
    # The others say nothing of a GPU that cannot be opened just now: maybe it is the one.
    untold = any(each.check == "gpu.count" for each in judged.unknown)
    return (
        known.call.occasion == "healthcheck"
        and mine.heals
        and again
        and not bad
        and not (untold and mine.check.startswith("gpu."))
        and not judged.trouble
        and known.stood_s >= config.undrain_after_s
    )


def _closed(tokens: Tokens) -> str:
    if tokens.trouble:
        return f"the breaker could not be asked: {tokens.trouble}"
    return (
        f"the breaker is open, {tokens.used} nodes drained in the window and {tokens.most} allowed"
    )


def _say(action: Literal["none", "withheld", "observe"], log: str, exit_code: int = 0) -> Decision:
    return Decision(action=action, exit_code=exit_code, log=log)
