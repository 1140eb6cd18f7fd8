"""Disks and shared file systems: whether they answer, and whether a job can write to them.

Pure rules over the probe's look at each file system; the gravest finding first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from preflight.check import Check
from preflight.core.text import count, first_finding, memory
from preflight.core.thresholds import Thresholds
from preflight.facts import Facts, Majority, Node
from preflight.facts.machine import FileSystem
from preflight.facts.node import decided, majority_text
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn

CHECKS = (
    Check("host.disk", stage="facts", tier="prolog", requires=("reach.answer",)),
    Check("host.mounts", stage="facts", tier="prolog", requires=("reach.answer",)),
)


_GIB: Final = 1024
SHM: Final = "/dev/shm"  # noqa: S108  (read, not written; host.shm judges it)
Usual = Majority[tuple[tuple[str, bool], ...]]
"""(mount, read-only) of the network file systems of most nodes."""

SHM_FULL: Final = f"{SHM} is full"
"""The common cause of missing memory and of a /dev/shm that takes no more data."""


def file_system_of(facts: Facts, path: str) -> FileSystem | None:
    """The file system that holds a path; None where that could not be read."""
    systems = facts.machine.file_systems if facts.machine else None
    return next((fs for fs in systems or () if path in fs.paths), None)


def network_file_systems(facts: Facts) -> tuple[FileSystem, ...] | None:
    """The network file systems; None where they could not be read."""
    systems = facts.machine.file_systems if facts.machine else None
    return None if systems is None else tuple(fs for fs in systems if fs.shared)


def permanent_mounts(facts: Facts) -> tuple[tuple[str, bool], ...] | None:
    """For the group's vote: (mount, read-only) of network file systems that are not automounted."""
    systems = network_file_systems(facts)
    if systems is None:
        return None
    return tuple(sorted((fs.mount, fs.read_only) for fs in systems if not fs.automounted))


def label(file_system: FileSystem) -> str:
    """/data (nfs4, nas1:/export)."""
    origin = ", ".join(filter(None, (file_system.kind, file_system.source)))
    return f"{file_system.mount} ({origin})"


def failure_words(file_system: FileSystem) -> str:
    """How the file system hung or failed, in words; "" if it answered."""
    if file_system.state == "hung":
        return f"{label(file_system)} gave no answer within {file_system.seconds:g} s"
    if file_system.state == "error":
        return f"{label(file_system)} answers with: {file_system.error}"
    return ""


def missing_mount(systems: tuple[FileSystem, ...], usual: Usual | None) -> tuple[str, str]:
    """The mount of its group that a node lacks or may only read, in words; "" if none."""
    mounts = {fs.mount: fs.read_only for fs in systems}
    if usual is None:
        return "", ""
    for mount, read_only in usual.value:
        if mount not in mounts:
            return mount, f"{mount} is not mounted here; {majority_text(usual, 'it')}"
        if mounts[mount] and not read_only:
            return mount, f"{mount} is read-only here; {majority_text(usual, 'it to be written')}"
    return "", ""


def write_failure(file_system: FileSystem, limit: Thresholds) -> str:
    """Why nothing can be written there, in words; "" if something can."""
    if not file_system.shared and (why := failure_words(file_system)):
        return why
    refusals = [words for words in file_system.refused if not words.startswith(SHM)]
    if file_system.remounted:
        return f"{label(file_system)} was made read-only after it had been mounted to be written"
    if refusals:
        return f"nothing can be written to {refusals[0]}{_free_words(file_system)}"
    size, free, least = file_system.size_mib or 0, file_system.free_mib, limit("disk_least_mib")
    # A file system of a few KiB never has that much: it is full if the refusals above say so.
    if free is not None and free < least < size and not file_system.read_only:
        return f"{label(file_system)} is full{_free_words(file_system)}"
    return ""


def read_only_by_choice(file_system: FileSystem) -> bool:
    """Whether it was mounted read-only on purpose, as a container's own folder may be."""
    answers = file_system.state not in ("hung", "error") and not file_system.remounted
    return answers and file_system.read_only and "/tmp" not in file_system.paths  # noqa: S108  (compared, not written)


def shortages(file_system: FileSystem, limit: Thresholds) -> Iterator[str]:
    """Space and inodes that are nearly used up, in words."""
    if file_system.read_only or file_system.size_mib is None or file_system.free_mib is None:
        return
    share = file_system.size_mib * limit("disk_free_percent") / 100
    enough = min(share, limit("disk_free_gib") * _GIB)
    if file_system.free_mib < enough:
        space = f"{memory(file_system.free_mib)} of {memory(file_system.size_mib)}"
        yield f"{space} are free on {file_system.mount}, at least {memory(enough)} should be"
    if file_system.inodes and file_system.inodes_free is not None:
        percent = 100 * file_system.inodes_free / file_system.inodes
        if percent < (least := limit("inodes_free_percent")):
            free = f"{percent:.1f} % of the inodes of {file_system.mount} are free"
            yield f"{free}, at least {least:g} % should be"


def _free_words(fs: FileSystem) -> str:
    if fs.size_mib is None or fs.free_mib is None:
        return ""
    inodes = "; no inode is free" if fs.inodes and fs.inodes_free == 0 else ""
    return f": {memory(fs.free_mib)} of {memory(fs.size_mib)} are free{inodes}"


REPAIR = "look for I/O errors in dmesg; drain, check the disk (fsck, smartctl), then remount it"
MOUNTED_READ_ONLY = (
    "mounted so from the start: see that the job writes elsewhere (a volume, --preflight-report)"
)
FREE_SPACE = "see df -h, df -i and du -xh --max-depth=1 there; remove what is not needed"


def judge_disk(facts: Facts, limit: Thresholds) -> Verdict:
    """First a disk that takes no file, then one that is nearly full; not mounts that hang."""
    file_systems = facts.machine.file_systems if facts.machine else None
    if file_systems is None:
        advice = "mount /proc; see cat /proc/self/mountinfo"
        return unknown("its file systems could not be read", advice=advice)
    systems = [fs for fs in file_systems if any(path != SHM for path in fs.paths)]
    readable = [fs for fs in systems if fs.free_mib is not None]
    evidence = {fs.mount: f"{fs.free_mib} of {fs.size_mib} MiB free" for fs in readable}
    for fs in systems:
        if why := write_failure(fs, limit):
            broken = fs.remounted or "Read-only" in why or fs.free_mib is None
            if read_only_by_choice(fs):
                return warn(why, advice=MOUNTED_READ_ONLY, file_systems=evidence)
            return fail(why, advice=REPAIR if broken else FREE_SPACE, file_systems=evidence)
    if short := [words for fs in systems for words in shortages(fs, limit)]:
        return warn(first_finding(short), advice=FREE_SPACE, findings=short, file_systems=evidence)
    hidden = [fs for fs in systems if fs.free_mib is None and not fs.shared]
    if hidden or not readable:
        names = ", ".join(fs.mount for fs in hidden) or "what a job writes to"
        return unknown(f"{names} may not be read", advice="see df there as the job's user")
    free = ", ".join(f"{memory(fs.free_mib or 0)} on {fs.mount}" for fs in readable)
    return ok(f"free: {free}", file_systems=evidence)


def test_host_disk(node: Node, conclude: Conclude) -> None:
    """A job writes to /tmp and to its own folder: a full or read-only disk ends it, often late."""
    conclude(judge_disk(node.facts, node.limit))


REMOUNT = "see whether its server answers; umount -f -l and mount it again, or reboot"
MOUNT_IT = "mount it as the others have it (mount -a), and see why it was not at boot"


def judge_mounts(  # noqa: PLR0911 (one outcome per cause)
    facts: Facts, usual: Usual | None = None, *, limit: Thresholds
) -> Verdict:
    """First a mount that does not answer, then one that the other nodes have and this one lacks."""
    systems = network_file_systems(facts)
    if systems is None:
        return unknown("its mounts could not be read", advice="see cat /proc/self/mountinfo there")
    for fs in systems:
        if why := failure_words(fs):
            return fail(why, advice=REMOUNT, mount=fs.mount)
    missing, problem = missing_mount(systems, decided(usual))
    if missing:
        return fail(problem, advice=MOUNT_IT, mount=missing)
    if unread := [fs for fs in systems if fs.state == "hidden" and not fs.error]:
        problem = f"{label(unread[0])} could not be read: this node left its reader no CPU"
        return unknown(problem, advice="check again when the node is less busy")
    if slow := [fs for fs in systems if fs.seconds > limit("mount_slow_s")]:
        problem = f"{label(slow[0])} took {slow[0].seconds:.1f} s to report its size"
        problem += f", at most {limit('mount_slow_s'):g} s are usual"
        return warn(problem, advice="look at its server's load and at the network to it")
    if not systems:
        return not_run("no shared file systems here")
    file_systems = count(sum(fs.state == "answered" for fs in systems), "shared file system")
    return ok(f"{file_systems} answered", mounts=sorted(fs.mount for fs in systems))


def test_host_mounts(node: Node, conclude: Conclude) -> None:
    """A shared file system that hangs or is missing on one node hangs or kills the whole job."""
    conclude(judge_mounts(node.facts, node.group.majority(permanent_mounts), limit=node.limit))
