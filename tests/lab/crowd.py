"""Other processes want every CPU that some have: they run next to never."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path


def crowd(pids: list[int], seconds: float) -> None:
    """Let these run where a process of the highest priority leaves them a CPU: next to never."""
    loop = ["/bin/sh", "-c", "while :; do :; done"]
    with subprocess.Popen(loop, start_new_session=True) as busy:
        try:
            for pid in (busy.pid, *pids):
                os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})
                weigh(pid, -20 if pid == busy.pid else 19)
            time.sleep(seconds)
        finally:
            busy.kill()
    for pid in pids:
        weigh(pid, 0)


def weigh(pid: int, nice: int) -> None:
    """Give a process, and its session where the kernel weighs those, this much of a CPU."""
    with suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, pid, nice)
    with suppress(FileNotFoundError, ProcessLookupError):
        Path(f"/proc/{pid}/autogroup").write_text(f"{nice}\n")
