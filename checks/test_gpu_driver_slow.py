"""The NVIDIA driver answers at once: an answer that takes seconds is how a wedged one begins."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Driver, Facts, Node
from preflight.facts.gpu_verdict import healths
from preflight.facts.limits import limit
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn

CHECK = Check(
    "gpu.driver_slow",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung"),
    drains=True,
    heals=True,
)
PERSISTENCE = "systemctl enable --now nvidia-persistenced"


def judge(promised: int | None, facts: Facts) -> Verdict:
    """Tell an answer that took too long; opening a driver without persistence mode may."""
    driver = facts.driver
    answered = driver.state == "answered"
    if not answered and not promised:
        return not_run("no GPUs promised, no NVIDIA driver that answers here")
    if not answered or driver.slowest_s is None or driver.init_s is None:
        return unknown("the driver did not answer, so nobody timed it", advice="recheck")
    cold = any(health.persistence is False for _, health in healths(facts))
    slow = limit("driver_slow_s")
    what, took = _slowest(driver, cold=cold)
    seen = f"{what} took {took:.1f} s"
    if took > slow:
        return _late(f"{seen}, under {slow:g} s expected", took)
    if driver.init_s > slow:
        opened = f"opening the driver took {driver.init_s:.1f} s: persistence mode is off"
        return warn(f"{opened}, under {slow:g} s expected with it", advice=PERSISTENCE)
    return ok(f"{seen} at the most", seconds=took)


def _late(seen: str, took: float) -> Verdict:
    if took > limit("driver_wedged_s"):
        advice = "look for NVRM and Xid in dmesg; drain and reboot"
        return fail(seen, advice=advice, seconds=took)
    advice = "look for NVRM and Xid in dmesg, and for load on this node; recheck"
    return warn(seen, advice=advice, seconds=took)


def _slowest(driver: Driver, *, cold: bool) -> tuple[str, float]:
    """The slowest answer that says something of the driver's health."""
    answer = (driver.slowest_call or "an answer", driver.slowest_s or 0.0)
    opening = ("opening the driver (nvmlInit)", 0.0 if cold else driver.init_s or 0.0)
    return max(answer, opening, key=lambda one: one[1])


def test_gpu_driver_slow(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.promised.gpus, node.facts))
