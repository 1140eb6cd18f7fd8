"""What a job writes to must take it, and a file server that hangs takes the job with it.

Pure rules over the probe's look at each file system; the gravest finding first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from preflight.facts.limits import limit
from preflight.facts.peers import others
from preflight.facts.words import memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.facts.machine_model import FileSystem
    from preflight.facts.model import Facts
    from preflight.facts.node import Majority

    Lasting = Majority[tuple[tuple[str, bool], ...]]

_GIB: Final = 1024
SHM: Final = "/dev/shm"  # noqa: S108  (looked at; a check of its own judges it)
SHM_FULL: Final = f"{SHM} is full"
"""The cause that memory which is missing, and /dev/shm that takes nothing more, have in common."""


def lying_on(facts: Facts, path: str) -> FileSystem | None:
    """The file system that holds a path; None where that could not be read."""
    found = facts.machine.file_systems if facts.machine else None
    return next((one for one in found or () if path in one.paths), None)


def written_to(facts: Facts) -> tuple[FileSystem, ...] | None:
    """Those that a job writes to, without /dev/shm; None where they could not be read."""
    if facts.machine is None or facts.machine.file_systems is None:
        return None
    return tuple(
        one for one in facts.machine.file_systems if any(path != SHM for path in one.paths)
    )


def shared(facts: Facts) -> tuple[FileSystem, ...] | None:
    """Those that servers serve; None where they could not be read."""
    if facts.machine is None or facts.machine.file_systems is None:
        return None
    return tuple(one for one in facts.machine.file_systems if one.shared)


def lasting(facts: Facts) -> tuple[tuple[str, bool], ...] | None:
    """For the vote of a group: (mount, read-only) of the shared ones that are always there."""
    found = shared(facts)
    if found is None:
        return None
    return tuple(sorted((one.mount, one.read_only) for one in found if not one.automounted))


def named(one: FileSystem) -> str:
    """/data (nfs4, nas1:/export)."""
    return f"{one.mount} ({', '.join(filter(None, [one.kind, one.source]))})"


def unanswered(found: tuple[FileSystem, ...]) -> tuple[str, str]:
    """Which mount hung or failed when it was looked at, and in words how; "" if none."""
    for one in found:
        if one.state == "hung":
            return one.mount, f"{named(one)} gave no answer within {one.seconds:g} s"
        if one.state == "error":
            return one.mount, f"{named(one)} answers with: {one.error}"
    return "", ""


def missing(found: tuple[FileSystem, ...], usual: Lasting | None) -> tuple[str, str]:
    """Which mount of its group a node lacks, or may only read, and in words how; "" if none."""
    mine = {one.mount: one.read_only for one in found}
    for mount, read_only in usual.value if usual is not None else ():
        if usual is not None and mount not in mine:
            return mount, f"{mount} is not mounted here; {others(usual, 'it')}"
        if usual is not None and mine[mount] and not read_only:
            return mount, f"{mount} is read-only here; {others(usual, 'it to be written')}"
    return "", ""


def unwritable(one: FileSystem) -> str:
    """Why nothing can be written there, in words; nothing if it can."""
    if one.state == "hung" and not one.shared:
        return f"{named(one)} gave no answer within {one.seconds:g} s"
    if one.state == "error" and not one.shared:
        return f"{named(one)} answers with: {one.error}"
    refused = [words for words in one.refused if not words.startswith(SHM)]
    if one.remounted:
        return f"{named(one)} was made read-only after it had been mounted to be written"
    if refused:
        return f"nothing can be written to {refused[0]}{_left(one)}"
    if one.free_mib is not None and one.free_mib < limit("disk_least_mib") and not one.read_only:
        return f"{named(one)} is full{_left(one)}"
    return ""


def made_so(one: FileSystem) -> bool:
    """Whether it was mounted read-only on purpose, as a container's own folder may be."""
    answers = one.state not in ("hung", "error") and not one.remounted
    return answers and one.read_only and "/tmp" not in one.paths  # noqa: S108  (a path that is told)


def scarce(one: FileSystem) -> Iterator[str]:
    """What is nearly used up."""
    if one.read_only or one.size_mib is None or one.free_mib is None:
        return
    share = one.size_mib * limit("disk_free_percent") / 100
    wanted = min(share, limit("disk_free_gib") * _GIB)
    if one.free_mib < wanted:
        free = f"{memory(one.free_mib)} of {memory(one.size_mib)} are free on {one.mount}"
        yield f"{free}, at least {memory(wanted)} should be"
    if one.inodes and one.inodes_free is not None:
        percent, least = 100 * one.inodes_free / one.inodes, limit("inodes_free_percent")
        if percent < least:
            free = f"{percent:.1f} % of the inodes of {one.mount} are free"
            yield f"{free}, at least {least:g} % should be"


def _left(one: FileSystem) -> str:
    if one.size_mib is None or one.free_mib is None:
        return ""
    inodes = "; no inode is free" if one.inodes and one.inodes_free == 0 else ""
    return f": {memory(one.free_mib)} of {memory(one.size_mib)} are free{inodes}"
