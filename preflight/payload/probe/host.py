"""The machine around the GPUs, asked at once from children: limits, memory, file systems, load."""

from __future__ import annotations

import os
import time

from . import (
    file_systems,
    guard,
    host_cgroup,
    host_container,
    host_limits,
    host_load,
    host_memory,
    host_stack,
    mountinfo,
)
from .text import words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LOOK_S = 0.2
"""For who computes here, two looks this far apart."""


class Machine:
    """Asks for all of it at once; `finish` collects what came."""

    def __init__(self, root: str, began: float) -> None:
        self._problems: list[str] = []
        self._began = began
        self._files: file_systems.Asked | None = None
        self._asked = guard.spawn(read, root, os.getpid())
        try:
            self._files = file_systems.Asked(mountinfo.read(), began)
        except OSError as error:
            self._problems.append(f"file systems: {words(error)}")

    def finish(self, until: float, problems: list[str]) -> dict[str, Any]:
        """Return the document's `Machine`; a part that could not be read is None."""
        until = max(until, guard.clock.now())
        machine = self._read(until)
        files = self._files and self._files.finish(until, self._problems)
        machine["file_systems"] = files
        problems += self._problems
        return machine

    def _read(self, until: float) -> dict[str, Any]:
        answered = self._asked.listen(until)
        if not self._asked.dismiss(kill=not answered):
            self._problems.append(f"machine: its reader {self._asked.pid} cannot be killed")
        try:
            if answered:
                answer = self._asked.value()
                self._problems += answer["problems"]
                machine: dict[str, Any] = answer["machine"]
                return machine
            self._problems.append("machine: no answer in time")
        except guard.BrokenError as error:
            self._problems.append(f"machine: {error}")
        return {}


def read(root: str, run_pid: int) -> dict[str, Any]:
    """Return every part but the file systems, and what went wrong with which."""
    problems: list[str] = []
    before = host_load.Look()
    parts: dict[str, Callable[[], Any]] = {
        "limits": host_limits.own,
        "locks_any": host_limits.locks_any,
        "launchers": host_limits.launchers,
        "stack": lambda: host_stack.read(root),
        "serial": lambda: host_stack.serial(root),
        "governors": lambda: host_stack.governors(root),
        "memory": host_memory.read,
        "edac": lambda: host_memory.edac(root),
        "cgroup": lambda: host_cgroup.read(mountinfo.read()),
        "container": lambda: host_container.read(mountinfo.read()),
        "clock_kept": host_container.clock_kept,
    }
    machine = {name: _part(name, part, problems) for name, part in parts.items()}
    time.sleep(max(0.0, before.at_s + LOOK_S - time.monotonic()))
    machine["load"] = _part("load", lambda: host_load.read(before, run_pid), problems)
    return {"machine": machine, "problems": problems}


def _part(name: str, part: Callable[[], Any], problems: list[str]) -> Any:
    try:
        return part()
    except (OSError, ValueError, LookupError, AttributeError) as error:
        problems.append(f"{name}: {words(error)}")
        return None
