"""A control group may grant less than the machine has: CPUs, memory, processes."""

from __future__ import annotations

import os

from . import host_files, mountinfo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NO_LIMIT = 1 << 60
"""Bytes: version 1 writes "none" as the largest number of pages."""

_MIB = 1 << 20


def read(mounts: list[mountinfo.Mount]) -> dict[str, Any]:
    """Return `Cgroup`: the least that any group on the way down to ours grants."""
    cpus, memory, pids = [], [], []
    for folder in _folders(host_files.lines("/proc/self/cgroup"), mounts):
        cpus += [quota_v2(_first(folder, "cpu.max")), _quota_v1(folder)]
        memory += [_bytes(_first(folder, name)) for name in ("memory.max", "memory.limit_in_bytes")]
        pids += [_whole(_first(folder, "pids.max"))]
    least = _least(memory)
    return {
        "cpus": _least(cpus),
        "memory_mib": None if least is None else int(least) // _MIB,
        "pids": _least(pids),
    }


def _folders(own: list[str], mounts: list[mountinfo.Mount]) -> list[str]:
    """Return the folders of our groups and of all above them, for both versions."""
    found: list[str] = []
    for line in own:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for mount in mounts:
            if mount.kind == ("cgroup" if controllers else "cgroup2") and (
                not controllers or set(controllers.split(",")) & set(mount.super_options)
            ):
                found += _upwards(mount, path)
                break
    return found


def _upwards(mount: mountinfo.Mount, path: str) -> list[str]:
    """Our group in this mount, and those above it that the mount shows."""
    below = path[len(mount.root) :] if path.startswith(mount.root.rstrip("/") + "/") else path
    parts = [part for part in below.split("/") if part and part != ".."]
    folders = [
        "/".join([mount.point.rstrip("/"), *parts[:depth]]) for depth in range(len(parts) + 1)
    ]
    return [folder for folder in folders if os.path.isdir(folder)]


def _first(folder: str, name: str) -> str:
    found = host_files.attempt_lines(f"{folder}/{name}")
    return found[0] if found else ""


def quota_v2(text: str) -> float | None:
    """Read cpu.max, "200000 100000" or "max 100000": CPUs; None for no limit."""
    quota, _, period = text.partition(" ")
    try:
        return round(int(quota) / int(period), 3)
    except (ValueError, ZeroDivisionError):
        return None


def _quota_v1(folder: str) -> float | None:
    quota = _whole(_first(folder, "cpu.cfs_quota_us"))
    period = _whole(_first(folder, "cpu.cfs_period_us"))
    return round(quota / period, 3) if quota and period and quota > 0 else None


def _bytes(text: str) -> int | None:
    number = _whole(text)
    return None if number is None or number >= _NO_LIMIT else number


def _whole(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _least(found: list[Any]) -> Any:
    return min((each for each in found if each is not None), default=None)
