"""Nothing in the training script will hang its ranks, as far as its text tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import to_builtins

from preflight.check import Check
from preflight.facts.words import count
from preflight.lint.model import Severity
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn
from preflight.view import FleetView

if TYPE_CHECKING:
    from preflight.lint.lint import Linted

CHECK = Check("launch.script", stage="facts", tier="quick", requires=("reach.answer",), user=True)


def judge(script: Linted | None) -> Verdict:
    """The gravest finding speaks; the others are counted here and told by `preflight lint`."""
    if script is None:
        return not_run("no training script known; give --preflight-script")
    if script.unread is not None:
        said = f"{script.path} was not judged: {script.unread.reason}"
        return unknown(said, advice=script.unread.remedy)
    errors, warnings = script.of(Severity.ERROR), script.of(Severity.WARNING)
    hints = len(script.of(Severity.HINT))
    evidence = {"findings": to_builtins(script.findings), "ignored": script.ignored}
    if not errors and not warnings:
        if not script.distributed:
            return ok(f"{script.path}: nothing in it is for several ranks", **evidence)
        see = f", {count(hints, 'hint')} (preflight lint)" if hints else ""
        return ok(f"{script.path}: nothing found{see}", **evidence)
    first = (errors or warnings)[0]
    rest = len(errors) + len(warnings) - 1
    said = f"{script.path} line {first.line}: {first.sentence}; {first.will}"
    more = f"; {count(rest, 'more finding')}: preflight lint {script.path}" if rest else ""
    conclude = fail if errors else warn
    return conclude(said, advice=first.remedy + more, **evidence)


def test_launch_script(fleet: FleetView, conclude: Conclude) -> None:
    """Joins the job's script and the judgement; the frame does the rest."""
    conclude(judge(next(iter(fleet.nodes.values())).job.script))
