"""A checkpoint that gathers shards from every rank, written by one alone: it waits for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.lint.divided import divided
from preflight.lint.job import alone_words, timeout_words
from preflight.lint.model import Found, Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.lint.model import Script


def _find(script: Script) -> Iterator[Found]:
    for one in divided(script):
        if not one.operation.saves:
            continue
        subject, waits = alone_words(one.guard.who)
        yield Found(
            one.operation.call.line,
            f"{one.operation.words} gathers from every rank, and only {subject} "
            f"{'gets' if waits == 'waits' else 'get'} to it "
            f"(`{one.guard.text}`, line {one.guard.line})",
            f"{subject} {waits} in it for the others' shards: {timeout_words(script)}, "
            "then the job dies without a checkpoint",
            "call it on every rank; it writes once by itself, or write its result on rank 0",
        )


RULE = Rule("checkpoint-on-one-rank", Severity.ERROR, _find)
