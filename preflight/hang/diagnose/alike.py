"""All ranks wait: for each other in different places, or in the same one for what does not come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.triage.diagnose.lost import line_of, lint_of
from preflight.triage.diagnose.model import Diagnosis, Doubt
from preflight.triage.diagnose.words import count, doing, named

if TYPE_CHECKING:
    from preflight.triage.diagnose.case import Case
    from preflight.triage.diagnose.seat import Seat


_LONGEST_S = 10
"""The longest look that `preflight diagnose` takes."""

_BETWEEN_RANKS = (
    Doubt(category="link", sentence="the data do not get through", confidence=0.4),
    Doubt(
        category="desync",
        sentence="they are at different turns of the same line, or with other shapes",
        confidence=0.25,
    ),
)
"""What it may be instead where all wait in one place."""


def judge(case: Case) -> Diagnosis | None:
    """Different places first; then the same one."""
    if not case.stuck:
        return None
    groups = case.spots(case.waiting)
    return _different(case, groups) if len(groups) > 1 else _same(case, groups[0])


def _different(case: Case, groups: list[tuple[Seat, ...]]) -> Diagnosis:
    few = tuple(seat for group in groups[1:] for seat in group)
    complete = len(case.waiting) == case.roll.world
    clear = len(few) * 2 < case.roll.world and len(groups[0]) * 2 > case.roll.world
    passing = any(one.place and one.place.kind == "p2p" for one in case.waiting)
    told = "; ".join(f"{named(group)} {doing(group[0], len(group))}" for group in groups[:4])
    both = complete and case.roll.world == 2  # noqa: PLR2004  either may be the wrong one
    blamed = few if clear else case.waiting if both else ()
    sure = 0.85 if clear and len(few) == 1 else 0.65 if clear or both else 0.4
    return Diagnosis(
        category="desync",
        culprits=tuple(f"rank {one.rank}" for one in blamed) if not passing else (),
        sentence=f"the ranks wait in different places: {told}",
        advice="compare how they came there: a branch by rank, a batch more or less, an error that "
        "one rank caught; all must call the same collectives in the same order",
        line=line_of(few) if clear else line_of(groups[0]),
        evidence=tuple(
            f"rank {group[0].rank}: {' < '.join(group[0].place.calls[:5])}"
            for group in groups[:6]
            if group[0].place
        ),
        confidence=0.4 if passing else sure,
        alternatives=(
            Doubt(
                category="link",
                sentence="they are of different groups, and the data of one do not get through",
                confidence=0.4 if passing else 0.1,
            ),
        ),
        next=lint_of(few if clear else groups[0]),
    )


def _same(case: Case, group: tuple[Seat, ...]) -> Diagnosis:
    place = group[0].place
    where = place.where if place else ""
    longer = look_longer(case)
    return Diagnosis(
        category="unknown",
        sentence=f"all {count(len(group))} that can be read wait in {where}, nothing moves, and "
        "nothing that was looked at says why",
        advice=("look longer first: one step may take more time than that; " * bool(longer))
        + "measure the paths between these nodes; start the next run under preflight watch, "
        "whose flight recorder tells whose call differs",
        line=line_of(group),
        confidence=0.0,
        alternatives=(*(_BETWEEN_RANKS if case.roll.world > 1 else ()), _long_steps(case)),
        next=longer or "pytest --preflight",
    )


def look_longer(case: Case) -> str:
    """The command that looks as long as can be; nothing where this look was that long."""
    return f"preflight diagnose --look-s={_LONGEST_S}" if _looked_s(case) < _LONGEST_S else ""


def _long_steps(case: Case) -> Doubt:
    told = f"it goes on, and no step ended within the {_looked_s(case):g} s of this look"
    sure = 0.2 if look_longer(case) else 0.1
    return Doubt(category="progresses", sentence=told, confidence=sure)


def _looked_s(case: Case) -> float:
    return round(max((one.look.look_s for one in case.seats), default=0.0), 1)
