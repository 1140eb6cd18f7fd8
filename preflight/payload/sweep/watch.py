"""Counters before and after each pair's load, read by a process that can hang without harm.

A NIC's firmware or a GPU's driver may never answer; the measuring process itself asks neither.
"""

from __future__ import annotations

import os
import signal
import time

from . import counters, gpu_counters, lifeline, lines, xids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

PATIENCE_S = 1.0
"""For one reading; the partner may be waiting."""

MOST = 64
"""Counters told of one pair."""

_STRIKES = 2  # readings in a row that may be late before none is asked for any more

_ENDING_S = 0.01


class Watch:
    """Asks the reading process, and compares."""

    def __init__(self, root: str) -> None:
        """Start the process; `root` is /sys but in tests."""
        asking, self._asking = os.pipe()
        reading, writing = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            try:
                lifeline.die_with_parent(parent, "preflight-count")
                lifeline.close_all_but({asking, writing})
                _serve(asking, writing, root)
            finally:
                os._exit(0)
        os.close(asking)
        os.close(writing)
        self._reader = lines.Reader(reading)
        self._number = 0
        self._late = 0

    def close(self) -> None:
        """End the process; one in D state is left to the kernel."""
        os.close(self._asking)
        os.close(self._reader.descriptor)
        os.kill(self._pid, signal.SIGKILL)
        time.sleep(_ENDING_S)
        os.waitpid(self._pid, os.WNOHANG)

    def read(self, what: dict[str, Any]) -> dict[str, Any] | None:
        """Return one reading; None when it did not come in time, or nothing comes any more.

        `what`: "bus_id" of the GPU, "devices" for RDMA, "interface" for Ethernet; None is all of
        the first two, and none of the last.
        """
        if self._late >= _STRIKES:
            return None
        self._number += 1
        try:
            lines.write(self._asking, dict(what, number=self._number))
            while True:
                answer = self._reader.next(PATIENCE_S)
                if answer is None or answer["number"] == self._number:
                    break  # an earlier number: the late answer to an earlier question
        except (TimeoutError, OSError):
            self._late += 1
            return None
        self._late = 0 if answer is not None else _STRIKES
        return answer


def moved(before: dict[str, Any] | None, after: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Say which counters moved, and which throttle reasons hold now, as the wire wants it."""
    if before is None or after is None:
        return []
    past = before["counters"]
    steps = {
        name: value - past.get(name, 0 if name.startswith("Xid ") else value)
        for name, value in after["counters"].items()
    }
    steps.update(dict.fromkeys(after["throttled"], 1))
    return [{"name": name, "by": by} for name, by in steps.items() if by > 0][:MOST]


def _serve(asking: int, writing: int, root: str) -> None:
    """Answer until nobody asks any more."""
    questions = lines.Reader(asking)
    gpus, log = gpu_counters.Gpus(), xids.KernelLog()
    while True:
        asked = questions.next(None)
        if asked is None:
            return
        found, throttled = gpus.read(asked["bus_id"])
        found.update(log.xids(asked["bus_id"]))
        found.update(_links(root, asked["devices"], asked["interface"]))
        lines.write(writing, {"number": asked["number"], "counters": found, "throttled": throttled})


def _links(root: str, devices: Collection[str] | None, interface: str | None) -> dict[str, float]:
    found = counters.rdma(root, devices)
    if interface:
        found.update(counters.ethernet(root, interface))
        found.update(counters.tcp())
    return found
