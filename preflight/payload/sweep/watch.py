"""Counters before and after each pair's load, read by a process that can hang without harm.

A NIC's firmware or a GPU's driver may never answer; the measuring process itself asks neither.
"""

from __future__ import annotations

import os
import signal

from . import counters, gpu_counters, lifeline, lines, xids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from .means import Means

PATIENCE_S = 1.0
"""For one reading; the partner may be waiting."""

MOST = 64
"""Counters told of one pair."""

_STRIKES = 2  # answers in a row that may be late before a reading process is replaced

_ENDING_S = 0.2


class Watch:
    """Asks the reading process, and compares. `read` never raises, and never waits for long."""

    def __init__(self, root: str) -> None:
        """Start two processes, of which one stands by; `root` is /sys but in tests.

        Later on a fork would take along CUDA's memory and NCCL's threads and their locks.
        """
        self._readers = [_Reader(root), _Reader(root)]
        self._readers[0].wake()
        self._number = 0
        self._late = 0
        self._why = ""

    def read(self, what: dict[str, Any]) -> dict[str, Any]:
        """Return one reading: "counters" and "throttled", or "unread", why there is none.

        `what`: "bus_id" of the GPU, "devices" for RDMA, "interface" for Ethernet; None is all of
        the first two, and none of the last.
        """
        answer = self._ask(what)
        return answer if answer is not None else {"unread": self._why}

    def bus_id(self, uuid: str) -> str | None:
        """Ask NVML for the PCI address of the GPU with this UUID."""
        answer = self._ask({"uuid": uuid})
        return None if answer is None else answer["bus_id"]

    def since(self, before: dict[str, Any], means: Means) -> dict[str, Any]:
        """What an account says of the counters: which `moved`, and what is `unread`."""
        after = before if "unread" in before else self.read(means.question())
        why = [means.unplaced, after.get("unread", "")]
        return {
            "moved": [] if "unread" in after else moved(before, after, means),
            "unread": "; ".join(filter(None, why)),
        }

    def _ask(self, what: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer; None where it is late, or where both processes have been given up."""
        if not self._readers:
            return None
        self._number += 1
        try:
            answer = self._readers[0].answer(dict(what, number=self._number))
        except TimeoutError:
            self._late += 1
            self._why = f"error counters were not read: no answer within {PATIENCE_S:g} s"
        except OSError:
            self._late = _STRIKES
            self._why = "error counters were not read: the reading process ended"
        else:
            self._late = 0
            return answer
        if self._late >= _STRIKES:
            self._replace()
        return None

    def _replace(self) -> None:
        self._readers.pop(0).end()
        self._late = 0
        if self._readers:
            self._readers[0].wake()  # the driver has until the next question to come up
        else:
            self._why += ", nor from a second process: none is asked any more"


class _Reader:
    """One reading process, forked at once; it touches no driver before it is woken."""

    def __init__(self, root: str) -> None:
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
        self._answers = lines.Reader(reading)

    def wake(self) -> None:
        """Let it load the driver's library."""
        lines.write(self._asking, {"number": 0})

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer; TimeoutError if it is late, another OSError if nobody is there."""
        lines.write(self._asking, question)
        while True:
            answer = self._answers.next(PATIENCE_S)
            if answer is None:
                raise BrokenPipeError
            if answer["number"] == question["number"]:
                return answer  # an earlier number: the late answer to an earlier question

    def end(self) -> None:
        """Kill it; one in D state is left to the kernel."""
        os.close(self._asking)
        os.close(self._answers.descriptor)
        os.kill(self._pid, signal.SIGKILL)
        lifeline.reaped(self._pid, _ENDING_S)


def moved(before: dict[str, Any], after: dict[str, Any], means: Means) -> list[dict[str, Any]]:
    """Say which counters moved, and which throttle reasons hold now, as the wire wants it.

    Those that may be another rail's come last, and are marked: they prove nothing of this one.
    """
    past = before["counters"]
    steps = {
        name: value - past.get(name, 0 if name.startswith("Xid ") else value)
        for name, value in after["counters"].items()
    }
    steps.update(dict.fromkeys(after["throttled"], 1))
    found = [(name, by) for name, by in steps.items() if by > 0]
    own = [{"name": name, "by": by} for name, by in found if means.owns(name)]
    others = [
        {"name": name, "by": by, "assigned": False} for name, by in found if not means.owns(name)
    ]
    return (own + others)[:MOST]


def _serve(asking: int, writing: int, root: str) -> None:
    """Answer until nobody asks any more."""
    questions = lines.Reader(asking)
    if questions.next(None) is None:
        return
    gpus, log = gpu_counters.Gpus(), xids.KernelLog()
    while True:
        asked = questions.next(None)
        if asked is None:
            return
        answer: dict[str, Any]
        if "uuid" in asked:
            answer = {"bus_id": gpus.bus_id(asked["uuid"])}
        else:
            found, throttled = gpus.read(asked["bus_id"])
            found.update(log.xids(asked["bus_id"]))
            found.update(_links(root, asked["devices"], asked["interface"]))
            answer = {"counters": found, "throttled": throttled}
        lines.write(writing, dict(answer, number=asked["number"]))


def _links(root: str, devices: Collection[str] | None, interface: str | None) -> dict[str, float]:
    found = counters.rdma(root, devices)
    if interface:
        found.update(counters.ethernet(root, interface))
        found.update(counters.tcp())
    return found
