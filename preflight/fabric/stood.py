"""A host that was late in the words of a report: it began late, or it was frozen in the middle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.fabric.words import time_us

if TYPE_CHECKING:
    from preflight.fabric.culprit import Found
    from preflight.fabric.observed import Observed


def late_words(one: Found, where: str, observed: Observed) -> str:
    """What is said of it."""
    often = f"{one.events} of {one.operations} operations"
    if still := _explaining(one, observed):
        return (
            f"{where} stood still in {often}, for up to {time_us(one.worst_us)}, and its partners "
            f"waited: {still.words}; the network was as fast as elsewhere"
        )
    return (
        f"{where} began {often} late, by up to {time_us(one.worst_us)} by its own clock, and its "
        "partners waited; the network was as fast as elsewhere"
    )


def late_advice(one: Found, observed: Observed) -> str:
    """Where to look: never at the cable."""
    name = one.among[0].nodes[0]
    if still := _explaining(one, observed):
        return f"look at what {still.suspects} on {name}, not at its link"
    return f"look at what else runs on {name} (load, IRQs, throttling), not at its link"


def _explaining(one: Found, observed: Observed) -> Stillness | None:
    """What froze it, where that is behind most of its events."""
    part = one.among[0]
    still = stillness(observed, part.nodes[0], part.rail)
    return still if still is not None and 2 * still.times >= one.events else None


class Stillness(Struct, frozen=True, kw_only=True):
    """All the times that one node, or one rail of it, stood still during its pairs."""

    stopped: int = 0
    """How often its measuring process was stopped."""
    unrun: int = 0
    """How often its supervisor did not run, and did not wait for a CPU either."""
    most_ms: float

    @property
    def times(self) -> int:
        """Of either kind."""
        return self.stopped + self.unrun

    @property
    def words(self) -> str:
        """What stood still: "its measuring process was stopped 9 times, for up to 152 ms"."""
        what = "its measuring process was stopped" if self._by_signal else "the host did not run"
        times = f"{self.times} times" if self.times > 1 else "once"
        return f"{what} {times}, for up to {time_us(self.most_ms * 1e3)}"

    @property
    def suspects(self) -> str:
        """What does that."""
        if self._by_signal:
            return "stops processes (SIGSTOP, a debugger or profiler, a job scheduler's suspend)"
        return (
            "freezes processes (swapping, stolen CPU or a paused VM, a cgroup's freezer or quota, "
            "soft lockups in dmesg)"
        )

    @property
    def _by_signal(self) -> bool:
        return self.stopped >= self.unrun


def stillness(observed: Observed, name: str, rail: int | None) -> Stillness | None:
    """Sum it up; None where it never stood still."""
    stood = [
        stood
        for each in observed.tried
        if rail in (None, each.rail) and name in (each.a, each.b)
        for stood in (each.stood_a if each.a == name else each.stood_b)
    ]
    stood = [one for one in stood if one.what != "starved"]
    if not stood:
        return None
    stopped = sum(one.times for one in stood if one.what == "stopped")
    unrun = sum(one.times for one in stood if one.what == "host")
    most_ms = max(one.most_ms for one in stood)
    return Stillness(stopped=stopped, unrun=unrun, most_ms=most_ms)
