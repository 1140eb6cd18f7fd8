"""What was concluded about one subject: outcome, sentence, advice, evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

import msgspec

UNSEEN = "not_looked_at"
"""Key of the evidence that names the nodes which a verdict on the whole fleet is not about."""

BUSY = "busy"
"""Key of the evidence that names the nodes which were not measured, since somebody uses them."""


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
    """Bad, and the inventory accepts that for a while; it condemns nobody and is always shown."""


WORST_FIRST = (
    *(Outcome.FAIL, Outcome.FLAKY, Outcome.UNKNOWN, Outcome.BROKEN, Outcome.MISSING),
    *(Outcome.WARN, Outcome.WAIVED, Outcome.OK, Outcome.NOT_RUN),
)
NOT_FINE = WORST_FIRST[:-2]
"""What is a finding."""


def condemns(outcome: Outcome, grant: str) -> bool:
    """Whether a verdict of that kind makes its subject not ready; `grant`: what it lacks, if so."""
    if outcome is Outcome.UNKNOWN:
        return not grant
    return outcome in (Outcome.FAIL, Outcome.FLAKY)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One conclusion. `cause` joins verdicts of one subject that share a culprit into one finding.

    `grant` is set on an `unknown` that only lacks a privilege, or something to compare with, and
    says what to grant; such a verdict counts as failure only under `--preflight-strict`. `blame`
    names the subject (node, or `pair a-b`) to condemn where that is not the one the check was
    judged on; `culprits` names the nodes where they are several, as when a whole fleet was judged;
    `suspects` those among which one is, where no more is known: they are left out too, and none is
    said to be the one.
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
    """Whether a condemned subject must be left out by the checks that require this one."""

    @property
    def condemns(self) -> bool:
        """Whether this verdict makes its subject not ready."""
        return condemns(self.outcome, self.grant)


Conclude = Callable[[Verdict], None]
"""What a check's test function calls, once, with its verdict."""


def ok(sentence: str, **evidence: Any) -> Verdict:
    """The subject is as promised; the sentence still carries the number seen."""
    return Verdict(outcome=Outcome.OK, sentence=sentence, evidence=evidence)


def warn(
    sentence: str, *, advice: str, cause: str = "", culprits: Iterable[str] = (), **evidence: Any
) -> Verdict:
    """Worth a person's look, but the job may start."""
    return _bad(Outcome.WARN, sentence, evidence, culprits, advice=advice, cause=cause)


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
    """The subject is unfit; the sentence says the number seen and the number expected."""
    own = {"advice": advice, "cause": cause, "blame": blame, "blocks": blocks}
    return _bad(Outcome.FAIL, sentence, evidence, culprits, suspects, **own)


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

    The count leads the sentence, once: also where the sentence begins with it by itself.
    """
    counted = f"{k} of {n}"
    said = sentence if sentence.startswith(f"{counted} ") else f"{counted}: {sentence}"
    seen = {"bad": k, "tries": n, **evidence}
    return _bad(Outcome.FLAKY, said, seen, culprits, suspects, advice=advice, blame=blame)


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
    """Could not judge: a missing reading is never a pass."""
    own = {"advice": advice, "grant": grant, "cause": cause, "blame": blame}
    return _bad(Outcome.UNKNOWN, sentence, evidence, culprits, **own)


def not_run(sentence: str, **evidence: Any) -> Verdict:
    """Not applicable, or not reached: the sentence says which."""
    return Verdict(outcome=Outcome.NOT_RUN, sentence=sentence, evidence=evidence)


def _bad(
    outcome: Outcome,
    sentence: str,
    evidence: dict[str, Any],
    culprits: Iterable[str],
    suspects: Iterable[str] = (),
    **own: Any,
) -> Verdict:
    return Verdict(
        outcome=outcome,
        sentence=sentence,
        evidence=evidence,
        culprits=_names(culprits),
        suspects=_names(suspects),
        **own,
    )


def _names(culprits: Iterable[str]) -> tuple[str, ...]:
    """One name may be given bare: its letters are no nodes."""
    return (culprits,) if isinstance(culprits, str) else tuple(dict.fromkeys(culprits))
