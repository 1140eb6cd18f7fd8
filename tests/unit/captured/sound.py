"""What holds of any text that a reader takes: its facts can travel, and its verdicts are clean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import json

from preflight.commands.read import judge_captured
from preflight.core.registry import load_folder, shipped_folder
from preflight.facts.model import Facts
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from preflight.captured import Captured
    from preflight.verdict import Verdict

LONGEST = 2000
"""Characters of a sentence, or of an advice."""

PROVES = (Outcome.OK, Outcome.WARN)
_IDS = frozenset(one.check.id for one in load_folder(shipped_folder()))


def sound(found: Captured | None) -> dict[str, Verdict]:
    """Hold what was read, if anything, against what is expected of it; its verdicts by check."""
    if found is None:
        return {}
    assert found.kind
    assert found.checks
    assert set(found.checks) <= _IDS
    assert json.decode(json.encode(found.facts), type=Facts) == found.facts
    entries = judge_captured({"it": found})
    assert {entry.check for entry in entries} == set(found.checks)
    for entry in entries:
        _clean(entry.verdict)
        assert not (found.damaged and entry.verdict.outcome in PROVES), entry
    return {entry.check: entry.verdict for entry in entries}


def _clean(verdict: Verdict) -> None:
    """A judgement, not a crash, in words for a terminal, with what to do where that is needed."""
    assert verdict.outcome not in (Outcome.BROKEN, Outcome.MISSING), verdict
    assert 0 < len(verdict.sentence) <= LONGEST
    assert verdict.sentence.isprintable(), verdict
    assert len(verdict.advice) <= LONGEST
    assert verdict.advice.isprintable(), verdict
    assert verdict.advice or verdict.outcome in (Outcome.OK, Outcome.NOT_RUN), verdict
