# ruff: noqa: T201  # its output is how the lab knows what it did
"""Strikes at a sweep's measuring process from inside its host, while it measures a pair.

Run by `tests.lab.planted` as `striker.py watch|KILL|STOP|stall DELAY_S`; says "sighted PID" when a
measuring process is connected to its partner, and DELAY_S later "struck". `watch` does nothing
more, KILL and STOP send the signal once, `stall` stops and continues it until this process ends.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_WORKER = "preflight-pair"
_ESTABLISHED = "01"
_STORE_AND_PARTNER = 2
_LOOK_S = 0.005
_STALL_S = (0.1, 0.15)
_BETWEEN_S = (0.03, 0.06)


def main(action: str, delay_s: float) -> None:
    """Wait for a pair, then strike."""
    pid = _in_a_pair()
    print(f"sighted {pid}", flush=True)
    time.sleep(delay_s)
    if action in ("KILL", "STOP"):
        os.kill(pid, signal.Signals[f"SIG{action}"])
    print(f"struck {pid}", flush=True)
    while action == "stall":
        _stall()


def _in_a_pair() -> int:
    """Return the first measuring process that talks to its partner, besides the store."""
    while True:
        found = next((pid for pid in _workers() if _connections(pid) >= _STORE_AND_PARTNER), 0)
        if found:
            return found
        time.sleep(_LOOK_S)


def _stall() -> None:
    """Hold every measuring process up for a moment, as memory pressure does."""
    held = _workers()
    for pid in held:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    time.sleep(random.uniform(*_STALL_S))  # noqa: S311  # chance, not a secret
    for pid in held:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    time.sleep(random.uniform(*_BETWEEN_S))  # noqa: S311  # the same


def _workers() -> list[int]:
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return [pid for pid in pids if _text(pid, "comm").strip() == _WORKER]


def _connections(pid: int) -> int:
    """How many TCP connections a process has open."""
    rows = [line.split() for line in (_text(pid, "net/tcp") + _text(pid, "net/tcp6")).splitlines()]
    inodes = {f"socket:[{row[9]}]" for row in rows if row[3] == _ESTABLISHED}
    with suppress(OSError):
        opened = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()]
        return len(inodes.intersection(opened))
    return 0


def _text(pid: int, name: str) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text()
    return ""


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
