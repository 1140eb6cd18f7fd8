"""A collective that only some ranks reach: they wait in it for the others, who never come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.lint.divided import divided
from preflight.lint.job import alone_words, timeout_words
from preflight.lint.model import Found, Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.lint.divided import Divided
    from preflight.lint.model import Script


def _find(script: Script) -> Iterator[Found]:
    for one in divided(script):
        if not one.operation.saves:
            yield Found(one.operation.call.line, _said(one), _will(script, one), _remedy(one))


def _said(one: Divided) -> str:
    who, guard = one.guard.who, one.guard
    leads = "" if one.operation.call.line == one.operation.line else (
        f"{one.operation.call.last}(), which leads to "
    )  # fmt: skip
    more = f" and {one.more} more of its kind" if one.more else ""
    how = "the others left" if guard.left else "it stands"
    why = f"{how} under `{guard.text}` in line {guard.line}"
    if guard.text.startswith("@"):
        why = f"{guard.text} makes the function nothing on the others"
    verb = "calls" if str(who) == "rank 0" else "call"
    return f"only {who} {verb} {leads}{one.operation.words}{more}: {why}"


def _will(script: Script, one: Divided) -> str:
    subject, waits = alone_words(one.guard.who)
    return (
        f"{subject} {waits} in {one.operation.label} (line {one.operation.line}) for "
        f"{timeout_words(script)}, or in the others' next collective, then the job dies"
    )


def _remedy(one: Divided) -> str:
    if one.operation.label.startswith("new_"):
        return "make every group on every rank, also on those that are not in it"
    if "barrier" in one.operation.label or "wait_for_everyone" in one.operation.label:
        return "move it behind the condition, where every rank comes by"
    return "call it on every rank; leave only what one rank does (print, write) in the condition"


RULE = Rule("collective-on-some-ranks", Severity.ERROR, _find)
