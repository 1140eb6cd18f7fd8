"""All ranks wait: for each other in different places, or in the same one for what does not come.

Ranks that wait in one collective sleep in one kernel function. It names no line, so little is sure.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from preflight.hang.answer_text import Alternative
from preflight.hang.diagnose.lost import line_of, lint_of
from preflight.hang.diagnose.model import IDLE, Diagnosis, count, doing, named, verb
from preflight.hang.diagnose.places import channel_words

if TYPE_CHECKING:
    from preflight.hang.diagnose.case import Case
    from preflight.hang.diagnose.model import Seat


_LONGEST_S = 10
"""The longest look that `preflight diagnose` takes."""

_BETWEEN_RANKS = (
    Alternative("link", "the data do not get through", 0.4),
    Alternative(
        "desync", "they are at different turns of the same line, or with other shapes", 0.25
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
            Alternative(
                "link",
                "they are of different groups, and the data of one do not get through",
                0.4 if passing else 0.1,
            ),
        ),
        next=lint_of(few if clear else groups[0]),
    )


def _same(case: Case, group: tuple[Seat, ...]) -> Diagnosis:
    place = group[0].place
    where = place.where if place else ""
    longer = look_longer(case)
    return Diagnosis(
        sentence=f"all {count(len(group))} that can be read wait in {where}, nothing moves, and "
        "nothing that was looked at says why",
        advice=("look longer first: one step may take more time than that; " * bool(longer))
        + "measure the paths between these nodes; start the next run under preflight watch, "
        "whose flight recorder tells whose call differs",
        line=line_of(group),
        alternatives=(*(_BETWEEN_RANKS if case.roll.world > 1 else ()), _long_steps(case)),
        next=longer or "pytest --preflight",
    )


def look_longer(case: Case) -> str:
    """The command that looks as long as can be; nothing where this look was that long."""
    return f"preflight diagnose --look-s={_LONGEST_S}" if _looked_s(case) < _LONGEST_S else ""


def _long_steps(case: Case) -> Alternative:
    told = f"it goes on, and no step ended within the {_looked_s(case):g} s of this look"
    sure = 0.2 if look_longer(case) else 0.1
    return Alternative("progresses", told, sure)


def _looked_s(case: Case) -> float:
    return round(max((one.look.look_s for one in case.seats), default=0.0), 1)


_MOST, _FEW = 0.75, 0.25
"""Of the job's ranks: those in one sleep, and those that are not."""


def judge_blind(case: Case) -> Diagnosis | None:
    """Unread ranks that compute, or sleep in something else than the rest, which is at rest."""
    if not case.unread or case.elsewhere or case.ended or (case.read and not case.stuck):
        return None
    if any(one.fed for one in case.seats):
        return None
    resting = [one for one in case.seats if _rests(one)]
    channel, number = _usual(case, resting)
    odd = tuple(one for one in case.unread if _differs(one, channel))
    if not channel or not odd or number < _MOST * case.roll.world:
        return None
    if len(odd) > _FEW * case.roll.world or number + len(odd) < len(case.seats):
        return None
    told = "; ".join(f"{one.name} {_words(one)}" for one in odd[:3])
    return Diagnosis(
        category="odd_rank",
        culprits=tuple(f"rank {one.rank}" for one in odd),
        sentence=f"{told}, while {count(number)} {verb(number, 'sleeps', 'sleep')} in {channel}; "
        f"no stack of {named(odd)} could be read, so its line is not known",
        advice="let its stack be read (below), and look again",
        evidence=tuple(
            f"rank {one.rank}: {one.cpu:.0%} of a core, state {one.look.state}, "
            f"in {one.look.wait_channel or 'no sleep'}"
            for one in odd[:6]
        ),
        confidence=0.55 if case.read else 0.45,
        alternatives=(Alternative("unknown", "it sleeps elsewhere by chance", 0.3),),
        next="preflight diagnose",
    )


def _usual(case: Case, resting: list[Seat]) -> tuple[str, int]:
    """The sleep of those that are known to wait, else of most; and of how many it is."""
    known = [one for one in resting if one in case.stuck] or resting
    counts = Counter(one.look.wait_channel for one in known if one.look.wait_channel)
    channel = max(counts, key=lambda name: (counts[name], name), default="")
    return channel, sum(one.look.wait_channel == channel for one in resting)


def _rests(seat: Seat) -> bool:
    return seat.look.state == "sleeping" and seat.cpu < IDLE


def _differs(seat: Seat, channel: str) -> bool:
    if seat.computes:
        return True
    return _rests(seat) and seat.look.wait_channel not in ("", channel)


def _words(seat: Seat) -> str:
    if seat.computes:
        return f"computes ({seat.cpu:.0%} of a core)"
    channel = seat.look.wait_channel
    known = channel_words(channel)
    return f"sleeps in {channel}{f' ({known})' if known else ''}"
