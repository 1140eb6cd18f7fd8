"""A container hides part of the machine: what it is, and whether it hides others' processes."""

from __future__ import annotations

import os
import re

from . import mountinfo
from .host_files import attempt_lines
from .text import attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FIRST_PROCESS_TABLE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel: the machine's own, on every machine."""

_FILES = {
    "/var/run/secrets/kubernetes.io": "kubernetes",
    "/.dockerenv": "docker",
    "/run/.containerenv": "podman",
    "/.singularity.d": "apptainer",
}
_VARIABLES = {
    "KUBERNETES_SERVICE_HOST": "kubernetes",
    "APPTAINER_CONTAINER": "apptainer",
    "SINGULARITY_CONTAINER": "apptainer",
}
_INITS = ("init", "systemd")
_HIDE_PID = {"hidepid=2", "hidepid=4", "hidepid=invisible", "hidepid=ptraceable"}
_GROUPS = re.compile(r"/(kubepods|docker|libpod|lxc)\b")
_NAMES = {"kubepods": "kubernetes", "libpod": "podman"}


def read(mounts: list[mountinfo.Mount]) -> dict[str, Any]:
    """Return `Container`."""
    return {"kind": _kind(), "hidden_by": _hidden_by(mounts)}


def _hidden_by(mounts: list[mountinfo.Mount]) -> str | None:
    """Say what keeps others' processes from us; "" for nothing, None if it cannot be told.

    Who runs an init of its own is a machine of its own: nothing is missing there.
    """
    proc = mountinfo.holding("/proc", mounts)
    if proc is not None and os.geteuid() and _HIDE_PID.intersection(proc.super_options):
        return "hidepid"
    try:
        if os.readlink("/proc/self/ns/pid") == _FIRST_PROCESS_TABLE:
            return ""
    except OSError:
        return None
    return "" if attempt("/proc/1/comm") in _INITS else "process table"


def _kind() -> str:
    for variable, kind in _VARIABLES.items():
        if variable in os.environ:
            return kind
    for path, kind in _FILES.items():
        if os.path.exists(path):
            return kind
    group = _GROUPS.search("\n".join(attempt_lines("/proc/1/cgroup")))
    if group:
        return _NAMES.get(group.group(1), group.group(1))
    return attempt("/run/systemd/container")


def clock_kept() -> bool | None:
    """Whether the kernel counts its clock as kept in step; None where it may not be asked."""
    import ctypes

    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
    return None if state < 0 else state != _TIME_ERROR


_TIME_ERROR = 5
"""adjtimex(2): nobody has set it in step for long enough."""
