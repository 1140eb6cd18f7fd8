"""What the probe makes of a GPU's readings: read, lacking, denied, failing, and how fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.unit.checks.gpu_judges import CHECKS, judge

from .test_driver import facts_of

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.facts.gpu import GpuHealth
    from preflight.facts.model import Facts
    from tests.lab.nvml.scenario import Scenario

    from .conftest import Machine

pytestmark = pytest.mark.slow


@pytest.fixture
def healthy() -> Scenario:
    """Return a machine of eight H100."""
    from tests.lab.nvml.scenario import h100

    return h100("h1")


def health(facts: Facts, index: int) -> GpuHealth:
    """The readings of one GPU of the answer."""
    assert facts.gpus is not None
    found = facts.gpus[index].health
    assert found is not None
    return found


def test_a_healthy_machine_tells_every_reading(
    machine: Machine, healthy: Scenario, tmp_path: Path
) -> None:
    """Only what an SXM board does not have is missing, and every check passes on it."""
    facts = facts_of(machine, healthy, tmp_path)
    assert facts.problems == ()
    first = health(facts, 0)
    assert first.lacks == ("repair_pending", "fan_pct")
    assert (first.denied, first.errors) == ((), ())
    missing = {name for name, value in msgspec.structs.asdict(first).items() if value is None}
    of_others = {"uncorrected_seen", "unrepairable"}
    assert missing == {"repair_pending", "fan_pct", "fabric_domain", *of_others}
    assert first.clock_reasons == ("idle",)
    assert (first.margin_c, first.power_limit_w, first.recovery_action) == (57, 700.0, "none")
    assert first.link_errors is not None
    assert len(first.link_errors) == 18
    assert (first.link_errors[17].mbps, first.link_errors[17].crc) == (26562, 0)
    assert (facts.driver.counted, facts.driver.slowest_s is not None) == (8, True)
    outcomes = {check: judge(check, facts).outcome for check in CHECKS}
    assert set(outcomes.values()) == {"ok"}, outcomes


def test_a_gpu_of_an_nvlink_domain_names_it(
    machine: Machine, healthy: Scenario, tmp_path: Path
) -> None:
    """Cluster UUID and clique, once it is registered; zeros, as within one node, are none."""
    rack = healthy.counted(0, "fabric_cluster", 0x5A).counted(0, "fabric_clique", 3)
    rack = rack.counted(1, "fabric_cluster", 0x5A).counted(1, "fabric_state", 2)
    facts = facts_of(machine, rack, tmp_path)
    assert health(facts, 0).fabric_domain == "5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a/3"
    assert health(facts, 1).fabric_domain is health(facts, 2).fabric_domain is None


FAULTS = {
    "gpu.ecc": ("ecc_uncorrected", 1),
    "gpu.remap": ("remap_pending", 1),
    "gpu.recovery": ("recovery_action", 4),
    "gpu.throttle": ("reasons", 0x80),
    "gpu.power": ("power_limit_mw", 350_000),
    "gpu.temperature": ("margin_c", 1),
    "gpu.pcie": ("pcie_width", 4),
    "gpu.nvlink": ("nvlink7_dl_recovery", 9),
    "gpu.fabric": ("fabric_state", 2),
}


def test_each_fault_reaches_its_check(machine: Machine, healthy: Scenario, tmp_path: Path) -> None:
    """One machine with a fault on each GPU: NVML, the wire and the judges agree on all of them."""
    ill = healthy.refused(7, "inforom_valid", 14).worded(6, "vbios", "96.00.61.00.01")
    for index, (name, value) in enumerate(FAULTS.values()):
        ill = ill.counted(index % 8, name, value)
    facts = facts_of(machine, ill.counted(5, "compute_mode", 2), tmp_path)
    for index, check in enumerate(FAULTS):
        verdict = judge(check, facts)
        assert verdict.outcome in ("fail", "warn"), check
        assert f"GPU{index % 8} (" in verdict.sentence
    assert "drain and reset" in judge("gpu.recovery", facts).sentence
    for check, index in (("gpu.inforom", 7), ("gpu.software", 6), ("gpu.mode", 5)):
        assert f"GPU{index} (" in judge(check, facts).sentence
    for check in ("gpu.model", "gpu.memory", "gpu.driver_slow"):
        assert judge(check, facts).outcome == "ok"


def test_refusals_are_distinguished(machine: Machine, healthy: Scenario, tmp_path: Path) -> None:
    """Not there, not for this login, broken, and absurd are four things; none hides the others."""
    from tests.lab.nvml.scenario import NO_PERMISSION, NOT_SUPPORTED, UNKNOWN_ERROR

    ill = healthy.refused(0, "ecc_uncorrected", NOT_SUPPORTED)
    ill = ill.refused(1, "ecc_uncorrected", NO_PERMISSION)
    ill = ill.refused(2, "ecc_uncorrected", UNKNOWN_ERROR).counted(3, "ecc_uncorrected", 2**64 - 1)
    ill = ill.refused(4, "link_errors", NOT_SUPPORTED).refused(5, "fan_pct", UNKNOWN_ERROR)
    ill = ill.counted(6, "pcie_width", 0).counted(7, "temperature_c", 999)
    facts = facts_of(machine, ill, tmp_path)
    name = "ecc_volatile_uncorrected"
    assert name in health(facts, 0).lacks
    assert health(facts, 1).denied == (name,)
    assert health(facts, 2).errors == (f"{name}: Unknown Error",)
    assert health(facts, 3).errors == (f"{name}: absurd value {2**64 - 1}",)
    assert "link_errors" in health(facts, 4).lacks
    assert health(facts, 5).errors == ("fan_pct: Unknown Error",)
    assert "pcie_width" in health(facts, 6).lacks
    assert health(facts, 7).errors == ("temperature_c: absurd value 999",)
    assert [health(facts, index).temperature_c for index in range(7)] == [31] * 7
    assert judge("gpu.pcie", facts).outcome == "unknown"
    assert judge("gpu.readings", facts).outcome == "fail"
    assert judge("gpu.ecc", facts).outcome == "unknown"


def test_a_reading_that_the_driver_gave_up_is_no_fault(
    machine: Machine, healthy: Scenario, tmp_path: Path
) -> None:
    """A new driver answers "deprecated" for it (26): it lacks the reading, and fails in nothing."""
    newer = healthy
    for index in range(8):
        newer = newer.refused(index, "ecc_uncorrected", 26)
    facts = facts_of(machine, newer, tmp_path)
    assert "ecc_volatile_uncorrected" in health(facts, 0).lacks
    assert judge("gpu.readings", facts).outcome == "ok"
    assert judge("gpu.ecc", facts).outcome == "not_run"


def test_links_that_are_all_down_are_no_missing_reading(
    machine: Machine, healthy: Scenario, tmp_path: Path
) -> None:
    """A GPU without a live link has nothing to count; that they are down is gpu.topology's."""
    ill = healthy
    for link in range(18):
        ill = ill.link_down(2, link)
    facts = facts_of(machine, ill, tmp_path)
    assert health(facts, 2).link_errors == ()
    assert judge("gpu.nvlink", facts).outcome == "ok"


def test_a_lost_gpu_is_counted_and_a_slow_driver_timed(
    machine: Machine, healthy: Scenario, tmp_path: Path
) -> None:
    """NVML counts what it cannot open; the slowest question is named."""
    from dataclasses import replace

    slow = replace(healthy.gpu_lost(3), gpus=healthy.gpu_lost(3).gpus[:4], slow_call_ms=1100)
    facts = facts_of(machine, slow, tmp_path)
    assert facts.gpus is not None
    assert (len(facts.gpus), facts.driver.counted) == (3, 4)
    verdict = judge("gpu.driver_slow", facts)
    assert verdict.outcome == "warn"
    assert "nvmlDeviceGetPciInfo of GPU" in verdict.sentence
