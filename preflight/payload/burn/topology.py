"""Which CPUs stand on which side of the machine: a buffer on the far side costs bandwidth."""

from __future__ import annotations

import os
import re

from probe.text import attempt

_NODE = re.compile(r"node(\d{1,4})$")


def sides(sysfs: str) -> list[tuple[int, list[int]]]:
    """Each NUMA node with those of its CPUs that this process may use; one side without sysfs."""
    allowed = os.sched_getaffinity(0)
    folder = sysfs + "/devices/system/node"
    found = []
    for name in _names(folder):
        match = _NODE.match(name)
        cpus = expand(attempt(f"{folder}/{name}/cpulist")) if match else []
        usable = [cpu for cpu in cpus if cpu in allowed]
        if match and usable:
            found.append((int(match.group(1)), usable))
    return sorted(found) or [(0, sorted(allowed))]


def expand(cpulist: str) -> list[int]:
    """The CPUs of a list as sysfs writes it, "0-31,64-95"; none for what is no such list."""
    cpus: list[int] = []
    for part in cpulist.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            cpus += range(int(first), min(int(last or first), int(first) + 65535) + 1)
    return cpus


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
