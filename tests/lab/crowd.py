"""Some processes have a CPU next to never, as beside a crowd of others."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_GROUPS = Path("/sys/fs/cgroup/cpu")
"""Of cgroup v1. A group there may have a CPU for a millisecond of each second."""
_PERIOD_US, _QUOTA_US = 1_000_000, 1_000


def crowd(pids: list[int], seconds: float) -> None:
    """Let these wait for a CPU, ready to run: next to never do they have one.

    The kernel counts the same wait where their group has used up its share, which costs nothing,
    and where another process takes the CPU.
    """
    can_limit = (_GROUPS / "cpu.cfs_period_us").exists() and os.access(_GROUPS, os.W_OK)
    with _limited(pids) if can_limit else _outweighed(pids):
        time.sleep(seconds)


@contextmanager
def _limited(pids: list[int]) -> Iterator[None]:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    ours = {line.split(":")[1]: line.split(":", 2)[2] for line in lines}
    home = _GROUPS / next(ours[name] for name in ours if "cpu" in name.split(",")).lstrip("/")
    group = home / f"preflight-test-{os.getpid()}-{pids[0]}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(_QUOTA_US))
        _move(pids, group)
        yield
    finally:
        _move([int(pid) for pid in (group / "cgroup.procs").read_text().split()], home)
        group.rmdir()


def _move(pids: list[int], group: Path) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            (group / "cgroup.procs").write_text(str(pid))


@contextmanager
def _outweighed(pids: list[int]) -> Iterator[None]:
    """A process of the highest priority has their CPU."""
    loop = ["/bin/sh", "-c", "while :; do :; done"]
    with subprocess.Popen(loop, start_new_session=True) as busy:
        try:
            for pid in (busy.pid, *pids):
                os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})
                _weigh(pid, -20 if pid == busy.pid else 19)
            yield
        finally:
            busy.kill()
    for pid in pids:
        _weigh(pid, 0)


def _weigh(pid: int, nice: int) -> None:
    """Give a process, and its session where the kernel weighs those, this much of a CPU."""
    with suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, pid, nice)
    with suppress(FileNotFoundError, ProcessLookupError):
        Path(f"/proc/{pid}/autogroup").write_text(f"{nice}\n")
