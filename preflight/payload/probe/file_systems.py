"""A file server that is down hangs whoever asks it, so a child asks it, one per file system."""

from __future__ import annotations

import errno
import os
import time

import children

from . import guard, sysfs
from .text import clean, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEADLINE_S = 5.0
"""A healthy server answers in milliseconds."""

MOST_SHARED = 24
"""Shared file systems that are looked at."""

_SERVED = (
    "9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
    "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs",
)  # fmt: skip
_LOCAL_FUSE = ("fuse.lxcfs", "fuse.portal", "fuse.gvfsd-fuse", "fuse.snapfuse", "fuse.overlayfs",
               "fuse.fuse-overlayfs", "fuse.squashfuse", "fuse.squashfuse_ll")  # fmt: skip
_LESS_S = 0.5
"""A look begins so much later than its deadline, at the most."""

_PASSING = ("/run/user/", "/var/lib/kubelet/", "/var/lib/docker/", "/var/lib/containers/",
            "/run/containerd/", "/snap/")  # fmt: skip
"""Below these, mounts belong to one login or one container."""

_MIB = 1 << 20
_HIDDEN = (errno.EACCES, errno.EPERM)
_NOT_TRIED = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.ENOTDIR, *_HIDDEN)
"""Of an open for a nameless file: its file system has none such, or it is not for us."""


class Asked:
    """The file systems of a node, each being looked at by a child of its own."""

    def __init__(self, mounts: list[sysfs.Mount], began: float) -> None:
        self._until = began + DEADLINE_S
        self._told = chosen(mounts, _paths())
        self._children = [guard.spawn(_look, one["mount"], one["paths"]) for one in self._told]

    def finish(self, until: float, problems: list[str]) -> list[dict[str, Any]]:
        """Return every `FileSystem`; one that did not answer is "hung"."""
        until = min(until, self._until)
        answered = [child.listen(until) for child in self._children]
        for child, done in zip(self._children, answered):  # noqa: B905 (Python 3.8)
            if not done:  # all at once, so that the patience for each passes for all
                children.end(child.pid)
        for one, child, done in zip(self._told, self._children, answered):  # noqa: B905
            if not child.dismiss(kill=not done):
                problems.append(f"{one['mount']}: our reader {child.pid} cannot be killed")
            # Cut short, or without a CPU, a look says nothing of who did not answer yet.
            state = "hung" if child.waiting.seconds > DEADLINE_S - _LESS_S else "hidden"
            one.update(_said(child) if done else {"state": state, "seconds": DEADLINE_S})
        return self._told


def chosen(mounts: list[sysfs.Mount], paths: list[str]) -> list[dict[str, Any]]:
    """Return the file systems that matter, without what only a look can tell."""
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        mount = sysfs.holding(path, mounts)
        if mount is not None:
            found.setdefault(mount.point, _told(mount, mounts))["paths"].append(clean(path))
    shown = {mount.point: mount for mount in mounts}
    devices = {shown[point].device for point in found}
    for mount in sorted(shown.values(), key=lambda one: len(one.point)):
        passing = mount.point.startswith(_PASSING)
        left_out = passing or mount.stranger or mount.device in devices
        if is_shared(mount.kind) and not left_out:
            devices.add(mount.device)
            found.setdefault(mount.point, _told(mount, mounts))
    few = [one for one in found.values() if one["paths"]]
    shared = [one for one in found.values() if not one["paths"]]
    return few + shared[:MOST_SHARED]


def is_shared(kind: str) -> bool:
    """Whether a server or a user's daemon serves it."""
    return kind in _SERVED or (kind.startswith("fuse") and kind not in (*_LOCAL_FUSE, "fusectl"))


def _told(mount: sysfs.Mount, mounts: list[sysfs.Mount]) -> dict[str, Any]:
    shared, source = is_shared(mount.kind), ""
    if shared:
        from . import redact  # its patterns take milliseconds

        source = clean(redact.redacted([mount.source])[0])
    above = [one for one in mounts if one.kind == "autofs"]
    return {
        "mount": clean(mount.point),
        "kind": clean(mount.kind),
        "source": source,
        "paths": [],
        "shared": shared,
        "automounted": any(sysfs.holding(mount.point, [one]) for one in above),
        "read_only": "ro" in mount.options or "ro" in mount.super_options,
        "remounted": "emergency_ro" in mount.super_options
        or ("ro" in mount.super_options and "rw" in mount.options),
    }


def _paths() -> list[str]:
    """The places that a job writes to: `cwd` is where a login starts, or the job itself did."""
    try:
        work = [os.getcwd()]
    except OSError:
        work = []  # it is gone: nobody can miss it
    return list(dict.fromkeys(["/", "/tmp", "/dev/shm", *work]))  # noqa: S108 (looked at only)


def _look(mount: str, paths: list[str]) -> dict[str, Any]:
    """In the child: its size, and whether it takes a file that nobody ever sees."""
    began = time.monotonic()
    try:
        size = os.statvfs(mount)
    except OSError as error:
        state = "hidden" if error.errno in _HIDDEN else "error"
        return {"state": state, "error": words(error)}
    refused = [f"{path}: {why}" for path in paths if path != "/" for why in [_refusal(path)] if why]
    return {
        "seconds": round(time.monotonic() - began, 3),
        "size_mib": size.f_blocks * size.f_frsize // _MIB,
        "free_mib": size.f_bavail * size.f_frsize // _MIB,
        "inodes": size.f_files,
        "inodes_free": size.f_favail,
        "refused": refused,
    }


def _refusal(path: str) -> str:
    """Say why a new file in a folder takes no page of data; "" if it does, or cannot be tried.

    It has no name (O_TMPFILE), so nobody meets it, and it is gone when it is closed.
    """
    try:
        file = os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return "" if error.errno in _NOT_TRIED else words(error)
    try:
        os.write(file, b"\0" * 4096)
    except OSError as error:
        return words(error)
    finally:
        os.close(file)
    return ""


def _said(child: guard.Child) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = child.value()
    except guard.BrokenError as error:
        return {"state": "error", "error": str(error)}
    took_s = min(answer.get("seconds", 0.0), round(child.waiting.seconds, 3))
    return {**answer, "seconds": took_s}
