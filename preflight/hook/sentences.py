"""What the hook logs of a node that it does not drain: silent where all is well."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from preflight.hook.model import Finding, Judged

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
