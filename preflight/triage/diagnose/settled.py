"""Of a rank that was seen in many lines: the one that all of them are within."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.triage.diagnose.places import CODE, Place, library, main_frames

if TYPE_CHECKING:
    from preflight.facts.look_model import Frame
    from preflight.triage.diagnose.seat import Seat


def settled(seat: Seat) -> Seat:
    """The same rank at the innermost of the user's functions that all looks saw it in.

    What an evaluation was doing at the last look (a file, a layer) is chance; that it evaluates is
    not. Unchanged where all looks agree, or have no function of the user's in common.
    """
    looks = _looks(seat)
    place = seat.place
    if place is None or len(looks) < 2:  # noqa: PLR2004  nothing to compare
        return seat
    user = next((one for one in reversed(_shared(looks)) if not library(one)), None)
    if user is None or user == place.user:
        return seat
    kinds = {one.kind for one in (place, seat.before, *(one for one, _ in seat.seen)) if one}
    if kinds == {place.kind} and place.kind != CODE:
        return replace(seat, place=replace(place, user=user))
    return replace(seat, place=Place(kind=CODE, waits="idle", user=user, calls=place.calls))


def _looks(seat: Seat) -> list[tuple[Frame, ...]]:
    """Its stacks, outermost call first; that of the last look first, whose lines are told."""
    look = seat.look
    sampled = [one.frames for one in look.sightings]
    stacks = [main_frames(look.later), main_frames(look.stacks), *sampled]
    return [tuple(reversed(frames)) for frames in stacks if frames]


def _shared(looks: list[tuple[Frame, ...]]) -> list[Frame]:
    """The calls that all stacks begin with; of the last of them the line may differ."""
    shared: list[Frame] = []
    for frames in zip(*looks, strict=False):
        if len({(one.file, one.function) for one in frames}) > 1:
            break
        shared.append(frames[0])
        if len({one.line for one in frames}) > 1:
            break
    return shared
