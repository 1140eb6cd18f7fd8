"""Ranks, nodes and places in the words of who reads them at night."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.triage.diagnose.places import CODE, OTHERS, channel_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from preflight.triage.diagnose.seat import Seat

_FEW = 3


def folded(ranks: Iterable[int]) -> str:
    """`0-15,18-31`."""
    parts: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def ranks(some: Iterable[int]) -> str:
    """`rank 3`, or `ranks 0-2,5`."""
    every = sorted(set(some))
    return f"rank{'s' * (len(every) > 1)} {folded(every)}"


def named(seats: Sequence[Seat]) -> str:
    """`rank 17 (gpu003, GPU 1)`; many are folded, with their nodes where these are few."""
    if len(seats) == 1:
        return seats[0].name
    if len(seats) <= _FEW:
        return " and ".join(filter(None, (", ".join(s.name for s in seats[:-1]), seats[-1].name)))
    nodes = list(dict.fromkeys(one.node for one in seats))
    on = f" ({', '.join(nodes)})" if len(nodes) <= _FEW else f" (on {len(nodes)} nodes)"
    return ranks(one.rank for one in seats) + on


def count(number: int, thing: str = "rank") -> str:
    """`1 rank`, `31 ranks`, `3 processes`."""
    plural = "es" if thing.endswith("s") else "s"
    return f"{number} {thing}{plural * (number != 1)}"


def verb(number: int, one: str, many: str) -> str:
    """The form that fits the number."""
    return one if number == 1 else many


_MANY = {"waits": "wait", "is": "are", "has": "have", "computes": "compute", "runs": "run"}


def doing(seat: Seat, number: int = 1) -> str:
    """`is in its DataLoader at train.py:88`, of so many ranks as stand there."""
    told = _doing(seat)
    if number > 1:
        first, blank, rest = told.partition(" ")
        rest = rest.replace(" and sleeps", " and sleep").replace(" and waits", " and wait")
        told = _MANY.get(first, first) + blank + rest.replace("in its ", "in their ")
    return told


def _doing(seat: Seat) -> str:
    if seat.look.state != "disk":
        return _at_work(seat)
    channel = f" in {seat.look.wait_channel}" if seat.look.wait_channel else ""
    if seat.place is None:
        return f"is held by the kernel (D state{channel})"
    return f"{_at_work(seat)}, held by the kernel (D state{channel})"


def _at_work(seat: Seat) -> str:
    place = seat.place
    if place is None:
        return "cannot be read"
    at = f" at {place.at}" if place.at else ""
    if place.kind in OTHERS:
        return f"waits in {place.where}"
    if place.kind == "backward":
        return f"{'waits' if seat.waits else 'computes'} in {place.where}"
    if place.kind not in (CODE, "sleep"):
        return f"{place.words}{at}"
    inside = f"is in {place.user.function}{at}" if place.user else "runs"
    rest = channel_words(seat.look.wait_channel) if seat.look.state == "sleeping" else ""
    return f"{inside}{f' and {rest}' if rest else ''}"
