"""Each check of GPU readings: a fault that it finds, a healthy H100, a reading that is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from preflight.fleet.model import Expected
from tests.unit.checks.gpu_judges import CHECKS, judge
from tests.unit.facts.builders import facts as bare
from tests.unit.facts.gpu_builders import node
from tests.unit.facts.gpu_readings import quiet_link

if TYPE_CHECKING:
    from preflight.facts.model import Facts
    from preflight.verdict import Verdict

READINGS: dict[str, tuple[str, ...]] = {
    "gpu.ecc": ("ecc_volatile_uncorrected",),
    "gpu.fabric": ("fabric_state",),
    "gpu.inforom": ("inforom_valid",),
    "gpu.memory": ("memory_total_mib",),
    "gpu.mode": ("persistence", "compute_mode", "ecc_on", "mig_enabled"),
    "gpu.nvlink": ("link_errors",),
    "gpu.pcie": ("pcie_width",),
    "gpu.power": ("power_limit_w",),
    "gpu.recovery": ("recovery_action",),
    "gpu.remap": ("remap_pending", "retired_pending"),
    "gpu.software": ("vbios", "inforom", "gsp_version"),
    "gpu.temperature": ("margin_c", "slowdown_c"),
    "gpu.throttle": ("clock_reasons",),
}


def fault(check: str, outcome: str, words: str, finds: str, **changes: Any) -> Any:
    """One line of the table: what is wrong with GPU3, and the expected sentence."""
    return pytest.param(check, changes, outcome, words, id=f"{check}-{finds}")


FAULTS = [
    fault("gpu.ecc", "fail", "2 uncorrectable ECC errors since its driver was loaded, 0 expected",
          "uncorrectable ECC errors since the driver was loaded", ecc_volatile_uncorrected=2),
    fault("gpu.ecc", "fail", "its SRAM failed too often (7 uncorrectable)",
          "SRAM over the driver's threshold",
          sram_threshold_exceeded=True, sram_aggregate_uncorrected=7),
    fault("gpu.ecc", "fail", "5 uncorrectable SRAM errors in its life, 4 are the most",
          "SRAM errors of a driver that knows no threshold",
          sram_threshold_exceeded=None, sram_aggregate_uncorrected=5),
    fault("gpu.ecc", "warn", "480000 corrected ECC errors, 20000 an hour; at most 10000 an hour",
          "very many corrected ECC errors", ecc_volatile_corrected=480_000),
    fault("gpu.remap", "fail", "memory rows (4 after uncorrectable errors) wait to be remapped",
          "a row remapping that is pending", remap_pending=True, remapped_uncorrected=4),
    fault("gpu.remap", "fail", "remapping a bad memory row has failed",
          "a row remapping that failed", remap_failed=True),
    fault("gpu.remap", "fail", "bad memory pages wait to be retired",
          "a page retirement that is pending", remap_pending=None, retired_pending=True),
    fault("gpu.remap", "fail", "61 memory pages retired, 60 are the most",
          "too many retired pages", retired_pages=61),
    fault("gpu.remap", "fail", "513 rows remapped after uncorrectable errors, 512 are the most",
          "more remapped rows than the board has spares", remapped_uncorrected=513),
    fault("gpu.remap", "warn", "1 memory bank without a spare row",
          "a memory bank without a spare row", banks_without_spares=1),
    fault("gpu.recovery", "fail", "the driver asks for: GPU reset; none is expected",
          "a recovery action that the driver asks for", recovery_action="GPU reset"),
    fault("gpu.inforom", "fail", "its InfoROM is corrupted",
          "a corrupted InfoROM", inforom_valid=False),
    fault("gpu.throttle", "fail", "a hardware thermal slowdown holds its clocks down now",
          "a hardware thermal slowdown", clock_reasons=("hw_slowdown", "hw_thermal")),
    fault("gpu.throttle", "fail", "the hardware power brake holds its clocks down now",
          "the hardware power brake", clock_reasons=("hw_slowdown", "hw_power_brake")),
    fault("gpu.throttle", "warn", "a thermal slowdown by the driver",
          "a thermal slowdown by the driver", clock_reasons=("sw_thermal",)),
    fault("gpu.throttle", "warn", "hardware thermal slowdown for 1 h 0 min since boot, 4.2 % of",
          "heat that slowed a GPU in the past", hw_thermal_s=3600.0),
    fault("gpu.temperature", "fail", "92 C, 3 C beyond its slowdown; over 5 C below",
          "a GPU at its slowdown temperature", temperature_c=92, margin_c=None),
    fault("gpu.temperature", "warn", "4 C below its slowdown",
          "a GPU near its slowdown temperature", margin_c=4),
    fault("gpu.power", "fail", "power limit 350 W, 700 W on 7 of 8 GPUs of this node",
          "a power limit below that of the other GPUs", power_limit_w=350.0),
    fault("gpu.pcie", "fail", "PCIe x8, x16 on 7 of 8 GPUs of this node",
          "lost PCIe lanes", pcie_width=8),
    fault("gpu.pcie", "fail", "PCIe generation 1 while at work, 5 is what it can do",
          "a low PCIe generation under load",
          pcie_gen=1, clock_reasons=(), utilization_pct=97),
    fault("gpu.pcie", "fail", "PCIe generation 4 at most, 5 on 7 of 8 GPUs",
          "a PCIe generation that the slot does not reach", pcie_gen_max=4, pcie_gen=4),
    fault("gpu.pcie", "warn", "100000 PCIe replays since boot, 69 a minute; at most 8",
          "PCIe replays", pcie_replays=100_000),
    fault("gpu.nvlink", "fail", "NVLink 0: 13.3 GB/s, 26.6 GB/s on the other links of this node",
          "a slow NVLink", link_errors=(quiet_link(0, mbps=13281), quiet_link(1))),
    fault("gpu.nvlink", "warn", "NVLink 5: retrained 3 times since its driver was loaded",
          "an NVLink that retrains", link_errors=(quiet_link(5, recoveries=3),)),
    fault("gpu.nvlink", "fail", "NVLink 5: could not recover 1 times, 0 expected",
          "an NVLink that could not recover", link_errors=(quiet_link(5, failed_recoveries=1),)),
    fault("gpu.nvlink", "warn", "NVLink 5: 48000 replays, 2000 an hour; at most 1000 is usual",
          "NVLink replays", link_errors=(quiet_link(5, replays=48_000),)),
    fault("gpu.nvlink", "warn", "packets with a wrong checksum, 416667 an hour",
          "NVLink checksum errors", link_errors=(quiet_link(5, crc=10_000_000),)),
    fault("gpu.fabric", "fail", "its registration with the NVSwitch fabric is in progress",
          "a fabric manager that is not running", fabric_state="in progress", fabric_status=None),
    fault("gpu.fabric", "fail", "it joined the NVSwitch fabric with Unknown Error, not Success",
          "a GPU that failed to join the fabric", fabric_status="Unknown Error"),
    fault("gpu.fabric", "fail", "the NVSwitch fabric reports: degraded bandwidth",
          "a degraded NVSwitch fabric", fabric_trouble=("degraded bandwidth",)),
    fault("gpu.model", "fail", "is NVIDIA H100 PCIe, NVIDIA H100 80GB HBM3 on 7 of 8 GPUs",
          "a GPU of another model", name="NVIDIA H100 PCIe"),
    fault("gpu.software", "warn", "VBIOS 96.00.61.00.01, 96.00.89.00.01 on 7 of 8 GPUs",
          "another VBIOS", vbios="96.00.61.00.01"),
    fault("gpu.software", "warn", "InfoROM G520.0200.00.03, G520.0200.00.05 on 7 of 8 GPUs",
          "another InfoROM", inforom="G520.0200.00.03"),
    fault("gpu.software", "warn", "GSP firmware is off, on on 7 of 8 GPUs",
          "GSP firmware that is off", gsp_on=False, gsp_version=None),
    fault("gpu.software", "warn", "GSP firmware 535.104.05, 570.86.15 on 7 of 8 GPUs",
          "another GSP firmware", gsp_version="535.104.05"),
    fault("gpu.mode", "fail", "ECC is off, on on 7 of 8 GPUs", "ECC mode off", ecc_on=False),
    fault("gpu.mode", "fail", "MIG is on, off on 7 of 8 GPUs", "MIG mode on", mig_enabled=True),
    fault("gpu.mode", "warn", "persistence mode is off, on on 7 of 8 GPUs",
          "persistence mode off", persistence=False),
    fault("gpu.mode", "fail", "compute mode is prohibited: no job can use it",
          "compute mode prohibited", compute_mode="prohibited"),
    fault("gpu.mode", "warn", "compute mode is exclusive_process, default on 7 of 8 GPUs",
          "another compute mode", compute_mode="exclusive_process"),
    fault("gpu.mode", "warn", "ECC is on, off after the next reset",
          "a mode that will change at the next reset", ecc_pending=False),
    fault("gpu.memory", "fail", "64.0 GiB of memory, 79.6 GiB on 7 of 8 GPUs of this node",
          "less memory than the other GPUs", memory_total_mib=65536),
    fault("gpu.memory", "warn", "the driver keeps 4.9 GiB for itself, 551 MiB on 7 of 8",
          "more reserved memory", memory_reserved_mib=5000),
    fault("gpu.memory", "warn", "BAR1 of 256 MiB, 128.0 GiB on 7 of 8 GPUs of this node",
          "a small BAR1", bar1_total_mib=256),
    fault("gpu.readings", "fail", "readings fail: power_draw_w: Unknown Error",
          "a reading that fails", errors=("power_draw_w: Unknown Error",)),
    fault("gpu.readings", "warn", "readings fail: fan_pct: Unknown Error",
          "a fan that cannot be read", errors=("fan_pct: Unknown Error",)),
]  # fmt: skip


@pytest.mark.proves("gpu.ecc", finds="uncorrectable ECC errors since the driver was loaded")
@pytest.mark.proves("gpu.ecc", finds="SRAM over the driver's threshold")
@pytest.mark.proves("gpu.ecc", finds="SRAM errors of a driver that knows no threshold")
@pytest.mark.proves("gpu.ecc", finds="millions of corrected ECC errors")
@pytest.mark.proves("gpu.remap", finds="a row remapping that is pending")
@pytest.mark.proves("gpu.remap", finds="a row remapping that failed")
@pytest.mark.proves("gpu.remap", finds="a page retirement that is pending")
@pytest.mark.proves("gpu.remap", finds="too many retired pages")
@pytest.mark.proves("gpu.remap", finds="more remapped rows than the board has spares")
@pytest.mark.proves("gpu.remap", finds="a memory bank without a spare row")
@pytest.mark.proves("gpu.recovery", finds="a recovery action that the driver asks for")
@pytest.mark.proves("gpu.inforom", finds="a corrupted InfoROM")
@pytest.mark.proves("gpu.throttle", finds="a hardware thermal slowdown")
@pytest.mark.proves("gpu.throttle", finds="the hardware power brake")
@pytest.mark.proves("gpu.throttle", finds="a thermal slowdown by the driver")
@pytest.mark.proves("gpu.throttle", finds="heat that slowed a GPU in the past")
@pytest.mark.proves("gpu.temperature", finds="a GPU at its slowdown temperature")
@pytest.mark.proves("gpu.temperature", finds="a GPU near its slowdown temperature")
@pytest.mark.proves("gpu.power", finds="a power limit below that of the other GPUs")
@pytest.mark.proves("gpu.pcie", finds="lost PCIe lanes")
@pytest.mark.proves("gpu.pcie", finds="a low PCIe generation under load")
@pytest.mark.proves("gpu.pcie", finds="a PCIe generation that the slot does not reach")
@pytest.mark.proves("gpu.pcie", finds="PCIe replays")
@pytest.mark.proves("gpu.nvlink", finds="a slow NVLink")
@pytest.mark.proves("gpu.nvlink", finds="an NVLink that retrains")
@pytest.mark.proves("gpu.nvlink", finds="an NVLink that could not recover")
@pytest.mark.proves("gpu.nvlink", finds="NVLink replays")
@pytest.mark.proves("gpu.nvlink", finds="NVLink checksum errors")
@pytest.mark.proves("gpu.fabric", finds="a fabric manager that is not running")
@pytest.mark.proves("gpu.fabric", finds="a GPU that failed to join the fabric")
@pytest.mark.proves("gpu.fabric", finds="a degraded NVSwitch fabric")
@pytest.mark.proves("gpu.model", finds="a GPU of another model")
@pytest.mark.proves("gpu.software", finds="another VBIOS")
@pytest.mark.proves("gpu.software", finds="another InfoROM")
@pytest.mark.proves("gpu.software", finds="GSP firmware that is off")
@pytest.mark.proves("gpu.software", finds="another GSP firmware")
@pytest.mark.proves("gpu.mode", finds="ECC mode off")
@pytest.mark.proves("gpu.mode", finds="MIG mode on")
@pytest.mark.proves("gpu.mode", finds="persistence mode off")
@pytest.mark.proves("gpu.mode", finds="compute mode prohibited")
@pytest.mark.proves("gpu.mode", finds="another compute mode")
@pytest.mark.proves("gpu.mode", finds="a mode that will change at the next reset")
@pytest.mark.proves("gpu.memory", finds="less memory than the other GPUs")
@pytest.mark.proves("gpu.memory", finds="more reserved memory")
@pytest.mark.proves("gpu.memory", finds="a small BAR1")
@pytest.mark.proves("gpu.readings", finds="a reading that fails")
@pytest.mark.proves("gpu.readings", finds="a fan that cannot be read")
@pytest.mark.parametrize(("check", "changes", "outcome", "words"), FAULTS)
def test_a_fault_of_one_gpu(check: str, changes: dict[str, Any], outcome: str, words: str) -> None:
    """The GPU is named with what was seen and what was expected, and only this check complains."""
    ill = node(3, **changes)
    verdict = judge(check, ill)
    assert (verdict.outcome, words in verdict.sentence) == (outcome, True), verdict.sentence
    # A GSP that is off is of the node's own driver; other troubles name the GPU.
    assert "GPU3 (" in verdict.sentence
    assert verdict.advice
    others = {other for other in CHECKS if judge(other, ill).outcome != "ok"} - {check}
    assert not others


@pytest.mark.proves("gpu.software", unknown="a driver that does not report its version")
def test_a_driver_without_a_version_is_not_known() -> None:
    """Nothing says that it is the group's."""
    healthy = node()
    verdict = judge("gpu.software", replace(healthy, driver=replace(healthy.driver, version="")))
    assert verdict.outcome == "unknown"
    assert verdict.advice


@pytest.mark.proves("gpu.driver_slow", passes="eight H100, idle and at work")
@pytest.mark.proves("gpu.ecc", passes="eight H100, idle and at work")
@pytest.mark.proves("gpu.fabric", passes="eight H100, idle and at work")
@pytest.mark.proves("gpu.inforom", passes="eight H100, idle and at work")
@pytest.mark.proves("gpu.memory", passes="eight H100, idle and at work")
@pytest.mark.proves("gpu.mode", passes="eight H100, idle and at work")
@pytest.mark.proves("gpu.model", passes="eight H100, idle and at work")
@pytest.mark.proves("gpu.nvlink", passes="eight H100, idle and at work")
@pytest.mark.proves("gpu.pcie", passes="eight H100, idle and at work")
@pytest.mark.proves("gpu.power", passes="eight H100, idle and at work")
@pytest.mark.proves("gpu.readings", passes="eight H100, idle and at work")
@pytest.mark.proves("gpu.recovery", passes="eight H100, idle and at work")
@pytest.mark.proves("gpu.remap", passes="eight H100, idle and at work")
@pytest.mark.proves("gpu.software", passes="eight H100, idle and at work")
@pytest.mark.proves("gpu.temperature", passes="eight H100, idle and at work")
@pytest.mark.proves("gpu.throttle", passes="eight H100, idle and at work")
@pytest.mark.parametrize("check", CHECKS)
def test_a_healthy_node_passes(check: str) -> None:
    """Idle or at work, alone or among peers, expected or not."""
    expectation = Expected(
        gpus=8, gpu_model="H100", mig=False, ecc=True, persistence=True,
        compute_mode="default", power_limit_w=700,
    )  # fmt: skip
    work = node(clock_reasons=("power_cap",), utilization_pct=100, margin_c=20, temperature_c=70)
    for facts in (node(), work):
        for expected in (expectation, Expected(gpus=8), Expected()):
            for peers in ((), (node(), node())):
                verdict = judge(check, facts, *peers, expected=expected)
                assert verdict.outcome == "ok", verdict.sentence
                assert verdict.sentence


@pytest.mark.proves("gpu.ecc", unknown="a GPU that does not report it")
@pytest.mark.proves("gpu.fabric", unknown="a GPU that does not report it")
@pytest.mark.proves("gpu.inforom", unknown="a GPU that does not report it")
@pytest.mark.proves("gpu.memory", unknown="a GPU that does not report it")
@pytest.mark.proves("gpu.mode", unknown="a GPU that does not report it")
@pytest.mark.proves("gpu.nvlink", unknown="a GPU that does not report it")
@pytest.mark.proves("gpu.pcie", unknown="a GPU that does not report it")
@pytest.mark.proves("gpu.power", unknown="a GPU that does not report it")
@pytest.mark.proves("gpu.recovery", unknown="a GPU that does not report it")
@pytest.mark.proves("gpu.remap", unknown="a GPU that does not report it")
@pytest.mark.proves("gpu.software", unknown="a GPU that does not report it")
@pytest.mark.proves("gpu.temperature", unknown="a GPU that does not report it")
@pytest.mark.proves("gpu.throttle", unknown="a GPU that does not report it")
@pytest.mark.parametrize("check", READINGS)
def test_a_reading_that_one_gpu_does_not_report(check: str) -> None:
    """What seven GPUs tell and one does not, for no reason, is unknown; so is what none tells."""
    missing = dict.fromkeys(READINGS[check])
    one = judge(check, node(3, **missing))
    assert (one.outcome, one.makes_not_ready) == ("unknown", True)
    assert "GPU3" in one.sentence
    assert "7 others did" in one.sentence
    all_of_them = judge(check, node(None, **missing))
    assert all_of_them.outcome == "unknown"
    assert all_of_them.sentence.startswith("no GPU reports its ")


@pytest.mark.parametrize("check", sorted(set(READINGS) - {"gpu.memory", "gpu.mode"}))
def test_what_a_board_does_not_have_is_no_fault(check: str) -> None:
    """Where NVML says that no GPU has it, it is not run; where only one says so, unknown."""
    lacking = {**dict.fromkeys(READINGS[check]), "lacks": READINGS[check]}
    verdict = judge(check, node(None, **lacking))
    assert verdict.outcome == "not_run"
    assert "NVIDIA H100 80GB HBM3" in verdict.sentence
    assert judge(check, node(3, **lacking)).outcome == "unknown"


def test_a_reading_that_is_denied_says_what_to_grant() -> None:
    """Missing privilege is no fault of the node."""
    denied = {"ecc_volatile_uncorrected": None, "denied": ("ecc_volatile_uncorrected",)}
    verdict = judge("gpu.ecc", node(None, **denied))
    assert (verdict.outcome, verdict.makes_not_ready) == ("unknown", False)
    assert "as root" in verdict.grant


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.proves("gpu.driver_slow", unknown="the driver did not answer")
@pytest.mark.proves("gpu.model", unknown="the driver did not answer")
@pytest.mark.proves("gpu.readings", unknown="the driver did not answer")
def test_without_a_driver(check: str) -> None:
    """Expected GPUs of which nothing is known are unknown; a laptop without any is not judged."""
    silent = bare(gpus=None)
    silent = replace(silent, driver=replace(silent.driver, state="hung"))
    assert judge(check, silent).outcome == "unknown"
    assert judge(check, silent, expected=Expected()).outcome == "not_run"


def slow(**seconds: Any) -> Facts:
    """A healthy node whose driver takes its time."""
    one = node()
    return replace(one, driver=replace(one.driver, **seconds))


@pytest.mark.proves("gpu.driver_slow", finds="a driver that takes seconds for one answer")
@pytest.mark.parametrize(
    ("seconds", "outcome", "words"),
    [
        ({"slowest_s": 1.5}, "warn", "x took 1.5 s, under 1 s expected"),
        ({"slowest_s": 6.0}, "fail", "x took 6.0 s, under 1 s expected"),
        ({"init_s": 5.5}, "fail", "opening the driver (nvmlInit) took 5.5 s, under 1 s"),
        ({"slowest_s": 0.4}, "ok", "x took 0.4 s at the most"),
    ],
)
def test_a_slow_driver(seconds: dict[str, float], outcome: str, words: str) -> None:
    """Over a second is worth a look, over five is a driver that is about to hang."""
    verdict = judge("gpu.driver_slow", slow(**seconds))
    assert (verdict.outcome, words in verdict.sentence) == (outcome, True), verdict.sentence


def test_a_cold_driver_is_slow_to_open_and_not_ill() -> None:
    """Without persistence mode eight GPUs take seconds to wake: the setting is named."""
    cold = node(None, persistence=False)
    verdict = judge("gpu.driver_slow", replace(cold, driver=replace(cold.driver, init_s=9.0)))
    assert (verdict.outcome, "nvidia-persistenced" in verdict.advice) == ("warn", True)


def test_peers_decide_before_siblings() -> None:
    """A node that is uniformly odd is found by its group, and the sentence counts the votes."""
    odd = node(None, power_limit_w=350.0, pcie_width=8, vbios="90", compute_mode="prohibited")
    for check in ("gpu.power", "gpu.pcie", "gpu.software", "gpu.mode"):
        verdict = judge(check, odd, node(), node())
        assert verdict.outcome in ("fail", "warn")
    assert (
        "700 W on 2 of 3 nodes of group train" in judge("gpu.power", odd, node(), node()).sentence
    )
    driver = replace(node(), driver=replace(node().driver, version="535.1"))
    drift = judge("gpu.software", driver, node(), node())
    assert "driver 535.1 here, 570.86.15 on 2 of 3 nodes" in drift.sentence


def test_a_group_that_is_built_so_is_as_it_should_be() -> None:
    """Lanes of cards and modes that all nodes share are no fault; an expectation still counts."""
    same = {"power_limit_w": 350.0, "pcie_width": 8, "ecc_on": False, "ecc_pending": False}
    three = [node(None, **same) for _ in range(3)]
    cards = [
        replace(one, gpus=tuple(replace(each, name="NVIDIA H100 PCIe") for each in one.gpus or ()))
        for one in three
    ]
    assert judge("gpu.mode", *three).outcome == "ok"
    assert judge("gpu.pcie", *cards).outcome == "ok"
    expected = Expected(gpus=8, power_limit_w=700, ecc=True, gpu_model="H200")
    assert "350 W, 700 W expected" in judge("gpu.power", *three, expected=expected).sentence
    assert "ECC is off, on expected" in judge("gpu.mode", *three, expected=expected).sentence
    assert "H200 expected" in judge("gpu.model", *three, expected=expected).sentence


def test_a_rack_has_its_nvlink_manager_on_its_switches() -> None:
    """On a tray of an NVL72 no fabric manager runs that could be restarted."""
    tray = judge("gpu.fabric", node(fabric_state="in progress", name="NVIDIA GB200"))
    assert "NMX-C" in tray.advice
    assert "nvidia-fabricmanager" in judge("gpu.fabric", node(fabric_state="in progress")).advice


def test_a_limit_above_the_boards_default_is_its_owners_choice() -> None:
    """No number says that it is too high, unless the inventory or the group has a lower one."""
    one = node(name="NVIDIA GH200 480GB", power_limit_w=1000.0, power_default_w=900.0)
    alone = replace(one, gpus=(one.gpus or ())[:1])
    assert judge("gpu.power", alone).outcome == "ok"
    assert judge("gpu.power", alone, expected=Expected(power_limit_w=900)).outcome == "warn"


def test_alone_a_whole_node_with_half_its_lanes_is_worth_a_look() -> None:
    """Without other nodes the wiring is not known: a warning, with the board's own width."""
    verdict = judge("gpu.pcie", node(None, pcie_width=8))
    assert verdict.outcome == "warn"
    assert "PCIe x8, x16 is what board and slot can do (and 7 more)" in verdict.sentence


def test_an_idle_gpu_at_a_low_generation_is_no_fault() -> None:
    """It saves power: idle by its clocks, by its state, or with nothing to do."""
    low = {"pcie_gen": 1}
    busy: dict[str, Any] = {"clock_reasons": (), "utilization_pct": 50, "performance_state": "P0"}
    for idle in ({"clock_reasons": ("idle",)}, {"performance_state": "P8"}, {"utilization_pct": 0}):
        assert judge("gpu.pcie", node(None, **low, **{**busy, **idle})).outcome == "ok"
    assert judge("gpu.pcie", node(None, **low, **busy)).outcome == "fail"


def test_one_bad_memory_is_one_cause() -> None:
    """Uncorrectable errors, a pending remap and the wanted reset of one GPU share their cause."""
    ill = node(3, ecc_volatile_uncorrected=1, remap_pending=True, recovery_action="GPU reset")
    found: list[Verdict] = [judge(check, ill) for check in ("gpu.ecc", "gpu.remap", "gpu.recovery")]
    assert {verdict.cause for verdict in found} == {"memory of GPU3"}
    hot = node(3, clock_reasons=("hw_thermal",), margin_c=-1)
    assert {judge(c, hot).cause for c in ("gpu.throttle", "gpu.temperature")} == {"heat of GPU3"}


def test_want_of_memory_is_no_failing_reading() -> None:
    """NVML may lack the node's memory for an answer: what needs it is unknown, nothing fails."""
    short = ("ecc_volatile_uncorrected: Insufficient Memory", "fan_pct: Insufficient Resources")
    ill = node(3, ecc_volatile_uncorrected=None, errors=short)
    assert judge("gpu.readings", ill).outcome == "unknown"
    assert judge("gpu.ecc", ill).outcome == "unknown"
    both = node(3, errors=(*short, "power_draw_w: Unknown Error"))
    assert judge("gpu.readings", both).sentence.endswith(
        "readings fail: power_draw_w: Unknown Error"
    )


def test_a_listed_gpu_that_is_lost_is_named_beside_one_that_cannot_be_opened() -> None:
    """The address of the second is not known, so each error has the index of its GPU."""
    eight = node(3, errors=("temperature_c: GPU is lost",))
    seven = replace(eight, gpus=(eight.gpus or ())[:7], problems=("GPU 7: Unknown Error",))
    expected = "6 of 8 GPUs answer; GPU 7: Unknown Error; GPU 3: GPU is lost"
    assert judge("gpu.count", seven).sentence == expected


def test_a_lost_gpu_without_an_address_is_named_by_its_index() -> None:
    """NVML may not report the PCI address of a GPU that fell off the bus."""
    lost = node(3, errors=("bus_id: GPU is lost",), bus_id="")
    assert judge("gpu.count", lost).sentence == "7 of 8 GPUs answer; GPU 3: GPU is lost"


def test_the_advice_for_a_past_power_brake_is_about_power() -> None:
    """Air flow does not help a power supply; it does help a GPU that was too hot."""
    for reading, words in (("hw_brake_s", "power supplies"), ("hw_thermal_s", "air flow")):
        assert words in judge("gpu.throttle", node(3, **{reading: 3600.0})).advice


def test_a_failing_reading_that_a_judge_needs_has_one_cause() -> None:
    """The error is the finding; what could not be judged for it joins it."""
    ill = node(3, ecc_volatile_uncorrected=None, errors=("ecc_volatile_uncorrected: GPU is lost",))
    assert judge("gpu.readings", ill).cause == "readings of GPU3"
    unread = judge("gpu.ecc", ill)
    assert (unread.outcome, unread.cause) == ("unknown", "readings of GPU3")


def test_mig_hides_some_counters_of_its_gpu() -> None:
    """NVML tells no row remapping while instances are there: that GPU is passed over."""
    split = node(3, mig_enabled=True, remap_pending=None, retired_pending=None,
                lacks=("remap_pending", "retired_pending"))  # fmt: skip
    assert judge("gpu.remap", split).outcome == "ok"


def test_ecc_that_is_off_without_an_expected_mode() -> None:
    """A board for computing is warned of; a graphics card is sold so."""
    off: dict[str, Any] = {"ecc_on": False, "ecc_pending": False}
    two = node(None, **off)
    few = replace(two, gpus=(two.gpus or ())[:2])
    assert "ECC is off, on is what this board" in judge("gpu.mode", few).sentence
    graphics = tuple(replace(gpu, name="NVIDIA RTX A6000") for gpu in few.gpus or ())
    assert judge("gpu.mode", replace(few, gpus=graphics)).outcome == "ok"
