"""Facts become findings: what could not be judged in time blames no node."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from preflight.check import Check
from preflight.core.registry import Registered, Registry
from preflight.core.registry import shipped_checks as checks
from preflight.facts.gpu import GpuHealth
from preflight.facts.model import Driver
from preflight.fleet.model import Expected, Fleet, Host
from preflight.hook.judging import JobGpus, job_view, judge
from preflight.verdict import Outcome, fail, ok, unknown
from tests.unit.facts.builders import facts, gpu, gpus

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from preflight.facts.model import Facts
    from preflight.facts.node import Node
    from preflight.hook.hook_values import Assessment
    from preflight.verdict import Conclude, Verdict

HOST = Host(name="h1", address="127.0.0.1", expected=Expected(gpus=8))


@pytest.fixture(scope="module")
def shipped() -> Registry:
    """All shipped checks."""
    return checks()


def _found(
    registry: Registry,
    known: Facts,
    share: JobGpus | None = None,
    in_s: float = 60,
    *,
    before: frozenset[str] = frozenset(),
) -> Assessment:
    fleet = Fleet(hosts=(HOST,), origin="here")
    seen = job_view(known, HOST.expected, share or JobGpus())
    ends = time.monotonic() + in_s
    return judge(registry, fleet, known, seen, ends, before=before)[0]


def _registry(judge: Callable[[], Verdict], folder: Path, *, drains: bool = False) -> Registry:
    def test_it(node: Node, conclude: Conclude) -> None:
        del node
        conclude(judge())

    check = Check("site.a", stage="facts", tier="prolog", drains=drains)
    return Registry([Registered(check, "node", "node", test_it, folder, "a site's")])


def test_only_passive_checks_of_this_node_are_asked(shipped: Registry) -> None:
    """Nothing of the fleet, of pairs, of the way in or under load, and nothing twice."""
    found = _found(shipped, facts(gpus=gpus(), driver=Driver("answered", counted=8)))
    asked = [*found.passed, *(one.check for one in found.findings)]
    asked += [one.check for one in found.unknown]
    assert len(asked) == len(set(asked))
    assert {shipped[one].check.stage for one in asked} == {"facts"}
    assert {shipped[one].check.tier for one in asked} == {"prolog"}
    assert {"gpu.count", "gpu.ecc"} <= set(found.passed)


@pytest.mark.parametrize(
    ("seconds", "paused_s", "before", "outcome"),
    [
        (3.0, 0.0, False, "out of time"),
        (10.0, 0.0, False, "unknown"),
        (3.0, 0.0, True, "drains"),
        (10.0, 0.0, True, "drains"),
        (10.0, 12.0, True, "unknown"),
    ],
)
def test_a_driver_is_hung_at_the_second_look(
    shipped: Registry, seconds: float, paused_s: float, outcome: str, *, before: bool
) -> None:
    """Before that, or where a pause may explain it, its silence is unknown and drains nothing."""
    silent = Driver("hung", seconds=seconds, paused_s=paused_s)
    seen = frozenset({"host.driver_hung"}) if before else frozenset[str]()
    found = _found(shipped, facts(gpus=None, driver=silent), before=seen)
    failed = [one.check for one in found.findings if one.drains]
    assert failed == ["host.driver_hung"] * (outcome == "drains")
    unjudged = {one.check: one.out_of_time for one in found.unknown}
    assert unjudged.get("host.driver_hung") is {"out of time": True, "unknown": False}.get(outcome)


@pytest.mark.parametrize("share", [None, JobGpus(()), JobGpus((0,)), JobGpus(unclear="odd")])
def test_a_cold_driver_is_so_for_every_job(shipped: Registry, share: JobGpus | None) -> None:
    """Persistence mode of one GPU is off, so opening takes long: whichever GPUs the job has."""
    odd = (*gpus(7), gpu(7, health=GpuHealth(persistence=False)))
    cold = Driver("answered", counted=8, init_s=9.0, slowest_s=0.1)
    seen = frozenset({"gpu.driver_slow"})
    found = _found(shipped, facts(gpus=odd, driver=cold), share, before=seen)
    (slow,) = (one for one in found.findings if one.check == "gpu.driver_slow")
    assert slow.outcome is Outcome.WARN


def test_unclear_gpus_are_unknown_and_the_node_is_judged(shipped: Registry) -> None:
    """A numbering that fits no GPU leaves out all checks of GPUs, and no other."""
    found = _found(shipped, facts(gpus=gpus(), driver=Driver("answered")), JobGpus(unclear="odd"))
    ids = {one.check for one in found.unknown}
    assert "gpu.ecc" in ids
    assert not [one for one in (*found.passed, *found.findings) if str(one).startswith("gpu.")]
    assert "host.driver_hung" in found.passed


@pytest.mark.parametrize(
    ("verdict", "drains"),
    [
        (fail("bent", advice="drain"), True),
        (fail("bent", advice="drain", blame="h1"), True),
        (fail("bent", advice="drain", blame="switch leaf1"), False),
        (fail("bent", advice="drain", culprits=["h1"]), True),
        (fail("bent", advice="drain", suspects=["h1"]), False),
        (fail("bent", advice="end it", user=True), False),
    ],
)
def test_only_blame_on_this_node_drains(tmp_path: Path, verdict: Verdict, *, drains: bool) -> None:
    """A failure that blames another node, only suspects, or a user, drains no node."""
    (one,) = _found(_registry(lambda: verdict, tmp_path, drains=True), facts()).findings
    assert one.drains is drains
    (undeclared,) = _found(_registry(lambda: verdict, tmp_path), facts()).findings
    assert not undeclared.drains


def test_a_broken_check_is_our_trouble(tmp_path: Path) -> None:
    """An exception in a judge is neither a finding nor a pass, and makes us a poor witness."""

    def judge() -> Verdict:
        raise ZeroDivisionError

    found = _found(_registry(judge, tmp_path, drains=True), facts())
    assert (found.findings, found.passed) == ((), ())
    assert found.trouble.startswith("site.a: ")


def test_a_judge_without_end_is_out_of_time(tmp_path: Path) -> None:
    """It is cut off by itself, and what comes after the budget is not asked at all."""

    def judge() -> Verdict:
        while True:
            pass

    (late,) = _found(_registry(judge, tmp_path), facts(), in_s=0.2).unknown
    assert (late.check, late.out_of_time) == ("site.a", True)
    (never,) = _found(_registry(lambda: ok("fine"), tmp_path), facts(), in_s=-1).unknown
    assert never.out_of_time


def test_missing_privilege_is_not_our_ignorance(tmp_path: Path) -> None:
    """A missing grant is not reported at every job; a missing reading is."""
    granted = unknown("hidden", advice="grant it", grant="group video")
    assert _found(_registry(lambda: granted, tmp_path), facts()).unknown == ()
    missing = unknown("not read: no answer in time", advice="look")
    (one,) = _found(_registry(lambda: missing, tmp_path), facts()).unknown
    assert one.out_of_time


def test_what_drains_and_heals_is_declared(shipped: Registry) -> None:
    """Whatever heals can drain, and nothing that a user left behind does."""
    every = [registered.check for registered in shipped]
    assert all(check.drains for check in every if check.heals)
    assert not [check.id for check in every if check.user and check.drains]
    users = {check.id for check in every if check.user}
    assert users >= {"host.stale_processes", "env.values"}
