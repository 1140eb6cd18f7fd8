"""No time-out of one's own: the default is the limit of every collective, not of start-up alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.lint.job import init_calls, timeout_words
from preflight.lint.model import Found, Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.lint.model import Script


def _find(script: Script) -> Iterator[Found]:
    for call in init_calls(script):
        if call.keyword("timeout") is None and not call.open_ended:
            yield Found(
                call.line,
                "init_process_group sets no timeout: the default holds for every collective",
                f"a rank that is busy alone for {timeout_words(script)} ends the job",
                "timeout=timedelta(minutes=...): longer than what one rank ever does alone",
            )


RULE = Rule("init-timeout", Severity.HINT, _find)
