"""What started the ranks, and those of its children that can no longer say which rank they are."""

from __future__ import annotations

from . import launching
from .member import bins, describe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .people import People

    Told = dict[str, Any]

_KINDS = ("torchrun", "accelerate", "deepspeed")
"""Told without a rank too: they wait for other nodes, or their ranks have ended."""

_INIT = 1
"""Whose children are orphans: what an ended rank has left, as a rule."""

_SHARED = ("job", "world_size", "local_world_size", "restarts", "master")


def launchers(people: People, ranks: list[Told]) -> list[Told]:
    """Return a `Launcher` for each parent of ranks, and for each that has none."""
    found: dict[int, Told] = {}
    for rank in ranks:
        above, kind = starter(people, rank["pid"])
        if above is not None:
            here = rank.get("local_world_size")
            told = {"pid": above, "kind": kind, "job": rank.get("job", ""), "ranks": here}
            found.setdefault(above, told)
    for pid in people.kin.stats:
        kind = people.launcher(pid)
        if kind not in _KINDS or pid in found or people.ended(pid):
            continue
        if not set(people.kin.below(pid)) & found.keys():
            found[pid] = {"pid": pid, "kind": kind, **launching.told(people.command(pid))}
    for pid, launcher in found.items():
        launcher["python"] = people.is_python(pid)
        launcher["bins"] = bins(people, pid)
        launcher["children"] = sorted(people.kin.of(pid))[:256]
    return list(found.values())


def starter(people: People, pid: int) -> tuple[int | None, str]:
    """Return the launcher of a rank and its kind; (None, "") where none is to be seen."""
    for above in people.kin.above(pid):
        if people.launcher(above):
            return above, people.launcher(above)
    parent = people.kin.parent_of_seat(pid)
    elastic = b"TORCHELASTIC_RUN_ID" in people.environs.get(pid, {})
    if elastic and parent not in (None, _INIT) and people.is_python(parent):
        # Within a program of the user's own: its command line does not show it.
        return parent, "torchrun"
    return None, ""


def silent(people: People, launcher: Told, ranks: list[Told]) -> list[Told]:
    """Return its children that have ended unnoticed, or whose memory cannot be read.

    Their environment is not to be had; where as many local ranks are missing, it is they, in order.
    """
    if launcher["kind"] != "torchrun":
        return []
    known = {rank["pid"] for rank in ranks}
    mute = [
        pid
        for pid in launcher["children"]
        if pid not in known and (people.ended(pid) or people.stuck(pid))
    ]
    seated = [
        rank
        for rank in ranks
        if "rank" in rank and starter(people, rank["pid"])[0] == launcher["pid"]
    ]
    places = _places(seated, len(mute))
    return [_told(people, pid, seated, place) for pid, place in zip(mute, places)]  # noqa: B905 (3.8)


def _places(seated: list[Told], wanted: int) -> list[int | None]:
    """Return the local ranks that nobody has, if they are exactly so many."""
    if seated and seated[0].get("local_world_size"):
        taken = {rank["local_rank"] for rank in seated}
        free = [one for one in range(seated[0]["local_world_size"]) if one not in taken]
        if len(free) == wanted:
            return list(free)
    return [None] * wanted


def _told(people: People, pid: int, seated: list[Told], place: int | None) -> Told:
    its = describe(people, pid, None)
    if seated:
        like = seated[0]
        its.update({name: like.get(name) for name in _SHARED})
        if place is not None and like.get("local_rank") is not None:
            its.update(local_rank=place, rank=like["rank"] - like["local_rank"] + place)
    return its
