"""Reads each file system in a child of its own: a file server that is down hangs its reader."""

from __future__ import annotations

import errno
import os
import time
from typing import Any

import children

from . import guard, node_files
from .node_files import MIB, MOST, clean, words

DEADLINE_S = 5.0
"""A healthy server answers in milliseconds."""

MOST_SHARED = 24
"""Shared file systems that are read."""

_SERVED = (
    "9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
    "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs",
)  # fmt: skip
_LOCAL_FUSE = ("fuse.lxcfs", "fuse.portal", "fuse.gvfsd-fuse", "fuse.snapfuse", "fuse.overlayfs",
               "fuse.fuse-overlayfs", "fuse.squashfuse", "fuse.squashfuse_ll")  # fmt: skip
_PASSING = ("/run/user/", "/var/lib/kubelet/", "/var/lib/docker/", "/var/lib/containers/",
            "/run/containerd/", "/snap/")  # fmt: skip
"""Mounts below these belong to one login or one container."""

_HIDDEN = (errno.EACCES, errno.EPERM)
_OWN_LIMITS = (
    errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN,
)  # fmt: skip
"""Errors of this process, its caller's limits or the machine's memory: no fault of the disk."""
_NOT_TRIED = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.ENOTDIR, *_HIDDEN, *_OWN_LIMITS)
"""Errors of opening an unnamed file: the file system has none, or this login may not create one."""


class Readers:
    """The children that read a node's file systems, one each."""

    def __init__(self, mounts: list[node_files.Mount]) -> None:
        self._documents = choose(mounts, _paths())
        self._children = [guard.spawn(_look, row["mount"], row["paths"]) for row in self._documents]

    def finish(self, until: float, problems: list[str]) -> list[dict[str, Any]]:
        """Return every `FileSystem`; one that let its reader wait `DEADLINE_S` is "hung"."""
        answered = [child.listen(until, most_s=DEADLINE_S) for child in self._children]
        for child, in_time in zip(self._children, answered):  # noqa: B905 (Python 3.8)
            if not in_time:  # all first, so that their grace periods run in parallel
                children.end(child.pid)
        for document, child, in_time in zip(self._documents, self._children, answered):  # noqa: B905
            if not child.dismiss(kill=not in_time):
                problems.append(f"{document['mount']}: our reader {child.pid} cannot be killed")
            # A child that was cut short, or had no CPU, proves nothing about the file system.
            waited_s = min(round(child.waiting.seconds, 3), DEADLINE_S)
            state = "hung" if waited_s == DEADLINE_S else "hidden"
            document.update(_result(child) if in_time else {"state": state, "seconds": waited_s})
        return self._documents


def choose(mounts: list[node_files.Mount], paths: list[str]) -> list[dict[str, Any]]:
    """Return the relevant file systems, without the fields that only a child can read."""
    documents: dict[str, dict[str, Any]] = {}
    for path in paths:
        mount = node_files.mount_of(path, mounts)
        if mount is not None:
            documents.setdefault(mount.point, _describe(mount, mounts))["paths"].append(clean(path))
    by_point = {mount.point: mount for mount in mounts}
    devices = {by_point[point].device for point in documents}
    for mount in sorted(by_point.values(), key=lambda mount: len(mount.point)):
        passing = mount.point.startswith(_PASSING)
        left_out = passing or mount.fuse_user or mount.device in devices
        if is_shared(mount.kind) and not left_out:
            devices.add(mount.device)
            documents.setdefault(mount.point, _describe(mount, mounts))
    of_job = [document for document in documents.values() if document["paths"]]
    shared = [document for document in documents.values() if not document["paths"]]
    return of_job + shared[:MOST_SHARED]


def is_shared(kind: str) -> bool:
    """Whether a server or a user's daemon serves file systems of this type."""
    return kind in _SERVED or (kind.startswith("fuse") and kind not in (*_LOCAL_FUSE, "fusectl"))


def _describe(mount: node_files.Mount, mounts: list[node_files.Mount]) -> dict[str, Any]:
    shared, source = is_shared(mount.kind), ""
    if shared:
        from . import redact  # its patterns take milliseconds

        source = clean(redact.redact_words([mount.source])[0])
    automounts = [other for other in mounts if other.kind == "autofs"]
    return {
        "mount": clean(mount.point),
        "kind": clean(mount.kind),
        "source": source,
        "paths": [],
        "shared": shared,
        "automounted": any(node_files.mount_of(mount.point, [row]) for row in automounts),
        "read_only": "ro" in mount.options or "ro" in mount.super_options,
        "remounted": "emergency_ro" in mount.super_options
        or ("ro" in mount.super_options and "rw" in mount.options),
    }


def _paths() -> list[str]:
    """The folders that a job writes to, with the working directory of the login or the job."""
    try:
        work = [os.getcwd()]
    except OSError:
        work = []  # it is deleted
    return list(dict.fromkeys(["/", "/tmp", "/dev/shm", *work]))  # noqa: S108 (looked at only)


def _look(mount: str, paths: list[str]) -> dict[str, Any]:
    """In the child: read the size, and try to create an unnamed file."""
    began = time.monotonic()
    try:
        size = os.statvfs(mount)
    except OSError as error:
        state = "hidden" if error.errno in _HIDDEN else "error"
        return {"state": state, "error": words(error)}
    refused = [f"{path}: {why}" for path in paths if path != "/" for why in [_refusal(path)] if why]
    return {
        "seconds": round(time.monotonic() - began, 3),
        "size_mib": _count(size.f_blocks * size.f_frsize // MIB),
        "free_mib": _count(size.f_bavail * size.f_frsize // MIB),
        "inodes": _count(size.f_files),
        "inodes_free": _count(size.f_favail),
        "refused": refused,
    }


def _count(number: int) -> int:
    """Return a server's number within bounds: of CephFS -1 inodes are free, without a limit."""
    return min(number % 2**64, MOST)


def _refusal(path: str) -> str:
    """Why a page of data cannot be written to a new file; "" if it can, or cannot be tried.

    The file has no name (O_TMPFILE): other programs cannot see it, and closing deletes it.
    """
    try:
        file = os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return "" if error.errno in _NOT_TRIED else words(error)
    try:
        os.write(file, b"\0" * 4096)
    except OSError as error:
        return "" if error.errno in _OWN_LIMITS else words(error)
    finally:
        os.close(file)
    return ""


def _result(child: guard.Child) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = child.value()
    except guard.BrokenError as error:
        return {"state": "error", "error": str(error)}
    took_s = min(answer.get("seconds", 0.0), round(child.waiting.seconds, 3))
    return {**answer, "seconds": took_s}
