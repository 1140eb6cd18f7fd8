"""A verdict on one subject: outcome, sentence, advice, evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

import msgspec

UNSEEN = "not_looked_at"
"""Key of the evidence: nodes that a verdict on the whole fleet does not cover."""

BUSY = "busy"
"""Key of the evidence: nodes that were not measured because a job or user is using them."""


class Outcome(StrEnum):
    """How a judgement ended. The words appear in the terminal, the report and exit codes."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    FLAKY = "flaky"
    UNKNOWN = "unknown"
    NOT_RUN = "not_run"
    BROKEN = "broken"
    MISSING = "missing"
    WAIVED = "waived"
    """A failure that the inventory accepts for a while: the node stays ready; always shown."""


WORST_FIRST = (
    *(Outcome.FAIL, Outcome.FLAKY, Outcome.UNKNOWN, Outcome.BROKEN, Outcome.MISSING),
    *(Outcome.WARN, Outcome.WAIVED, Outcome.OK, Outcome.NOT_RUN),
)
NOT_FINE = WORST_FIRST[:-2]
"""Outcomes that are findings."""
_NOT_READY = WORST_FIRST[:3]


def makes_not_ready(outcome: Outcome, grant: str) -> bool:
    """Whether such a verdict makes its subject not ready; `grant`: the privilege it lacks."""
    return outcome in _NOT_READY and not (grant and outcome is Outcome.UNKNOWN)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One conclusion. `cause` joins verdicts of one subject that share a culprit into one finding.

    `grant` is set on an `unknown` that only lacks a privilege, or something to compare with: it
    says what to grant, and the verdict counts as a failure only under `--preflight-strict`.
    `blame` names the subject at fault (a node, or `pair a-b`) where that is not the subject of the
    check. `culprits` names several nodes at fault, as when a whole fleet was judged. `suspects`
    names nodes one of which is at fault, where no more is known: all of them are left out, and
    none is named as the culprit.
    """

    outcome: Outcome
    sentence: str
    advice: str = ""
    evidence: dict[str, Any] = {}
    cause: str = ""
    grant: str = ""
    blame: str = ""
    culprits: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    blocks: bool = True
    """Whether checks that require this one must leave out a subject that is not ready."""

    @property
    def makes_not_ready(self) -> bool:
        """Whether this verdict makes its subject not ready."""
        return makes_not_ready(self.outcome, self.grant)


Conclude = Callable[[Verdict], None]
"""What a check's test function calls, once, with its verdict."""


def ok(sentence: str, **evidence: Any) -> Verdict:
    """The subject is as expected; the sentence still carries the number seen."""
    return Verdict(outcome=Outcome.OK, sentence=sentence, evidence=evidence)


def warn(
    sentence: str, *, advice: str, cause: str = "", culprits: Iterable[str] = (), **evidence: Any
) -> Verdict:
    """The job may start, but an operator should check the subject."""
    return _finding(Outcome.WARN, sentence, evidence, culprits, advice=advice, cause=cause)


def fail(
    sentence: str,
    *,
    advice: str,
    cause: str = "",
    blame: str = "",
    culprits: Iterable[str] = (),
    suspects: Iterable[str] = (),
    blocks: bool = True,
    **evidence: Any,
) -> Verdict:
    """The subject is not ready; the sentence gives the number seen and the number expected."""
    fields = {"advice": advice, "cause": cause, "blame": blame, "blocks": blocks}
    return _finding(Outcome.FAIL, sentence, evidence, culprits, suspects, **fields)


def flaky(
    k: int,
    n: int,
    sentence: str,
    *,
    advice: str,
    blame: str = "",
    culprits: Iterable[str] = (),
    suspects: Iterable[str] = (),
    **evidence: Any,
) -> Verdict:
    """Bad in k of n tries: kept apart from `fail`, and never averaged away.

    The sentence begins with "k of n"; it is put in front unless the sentence begins so already.
    """
    count = f"{k} of {n}"
    text = sentence if sentence.startswith(f"{count} ") else f"{count}: {sentence}"
    numbers = {"bad": k, "tries": n, **evidence}
    return _finding(Outcome.FLAKY, text, numbers, culprits, suspects, advice=advice, blame=blame)


def unknown(
    sentence: str,
    *,
    advice: str,
    grant: str = "",
    cause: str = "",
    blame: str = "",
    culprits: Iterable[str] = (),
    **evidence: Any,
) -> Verdict:
    """The check could not judge: a missing reading is never a pass."""
    fields = {"advice": advice, "grant": grant, "cause": cause, "blame": blame}
    return _finding(Outcome.UNKNOWN, sentence, evidence, culprits, **fields)


def not_run(sentence: str, **evidence: Any) -> Verdict:
    """Not applicable, or not reached; the sentence says which."""
    return Verdict(outcome=Outcome.NOT_RUN, sentence=sentence, evidence=evidence)


def _finding(
    outcome: Outcome,
    sentence: str,
    evidence: dict[str, Any],
    culprits: Iterable[str],
    suspects: Iterable[str] = (),
    **fields: Any,
) -> Verdict:
    return Verdict(
        outcome=outcome,
        sentence=sentence,
        evidence=evidence,
        culprits=_names(culprits),
        suspects=_names(suspects),
        **fields,
    )


def _names(nodes: Iterable[str]) -> tuple[str, ...]:
    """Accept a single name as a plain string: its letters are not nodes."""
    return (nodes,) if isinstance(nodes, str) else tuple(dict.fromkeys(nodes))
