"""The kernel log's checks: the part at fault is named once, and what only looks guilty is not."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.checks.gpu.driver_log import missing_slots
from preflight.checks.gpu.test_answers import judge_count
from preflight.checks.gpu.test_kernel_log import judge_sxid as sxid
from preflight.checks.gpu.test_kernel_log import judge_xid
from preflight.checks.host.test_host_log import judge_hardware_errors as hardware
from preflight.checks.host.test_host_log import judge_kernel_log as host
from preflight.checks.net.test_nic_log import judge as nic
from preflight.core.thresholds import SHIPPED
from preflight.facts import Driver, Facts, GpuHealth, KernelLog, LogLine
from preflight.fleet.model import Expected
from preflight.verdict import Outcome, Verdict
from tests.unit.checks.gpu_judges import judge as judge_check
from tests.unit.facts import builders as b
from tests.unit.facts.gpu_builders import node as gpu_node

if TYPE_CHECKING:
    from collections.abc import Callable

NOW_S = 7 * 86400.0
HOUR_S = 3600.0
RELOAD = "nvidia-nvlink: Nvlink Core is being initialized, major device number 235"
LOADED = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07"
HGX = Expected(gpus=8)
JUDGES: tuple[Callable[[Facts], Verdict], ...] = (
    lambda facts: judge_xid(HGX, facts, SHIPPED),
    sxid,
    *(partial(judge, limit=SHIPPED) for judge in (nic, hardware, host)),
)


def node(*logged: str | LogLine, gpus: bool = True, **changes: object) -> Facts:
    """A healthy node whose kernel logged these lines, an hour ago unless a line has times."""
    lines = (LogLine("Linux version 6.1", 0.0, 0.0), LogLine(RELOAD, 3.0, 3.0))
    more = (
        line if isinstance(line, LogLine) else LogLine(line, NOW_S - HOUR_S, NOW_S - HOUR_S)
        for line in logged
    )
    log = KernelLog("kmsg", 5000, 0.0, 0.0, (*lines, *more))
    older = tuple(replace(each, health=None) for each in b.gpus())  # tells no recovery action
    facts = b.facts(boot_s=1e9, time_s=1e9 + NOW_S, kernel_log=log, gpus=older)
    return replace(facts if gpus else replace(facts, gpus=None, nics=None), **changes)


def xid(code: int, slot: str = "0000:1b:00", text: str = "pid=7, name=python3, said") -> str:
    """A line of the NVIDIA driver."""
    return f"NVRM: Xid (PCI:{slot}): {code}, {text}"


def aer(severity: str, where: str = "0000:02:00.0", times: int = 1) -> LogLine:
    """A line of the kernel's PCIe error reporting."""
    text = f"pcieport {where}: PCIe Bus Error: severity={severity}, type=Data Link Layer"
    return LogLine(text, 100.0, NOW_S - 60, times)


def judge(*lines: str | LogLine, expected: Expected = HGX) -> Verdict:
    """What gpu.xid says of a node of eight H100."""
    return judge_xid(expected, node(*lines), limit=SHIPPED)


@pytest.mark.proves("gpu.xid", passes="a healthy H100 node")
@pytest.mark.proves("gpu.sxid", passes="a healthy HGX board")
@pytest.mark.proves("net.kernel_log", passes="cables plugged and links up")
@pytest.mark.proves("host.hardware_errors", passes="a log without hardware errors")
@pytest.mark.proves("host.kernel_log", passes="a quiet kernel")
def test_a_quiet_log_is_fine() -> None:
    """Start-up lines, cables plugged and links that came up are no fault."""
    facts = node(
        "mlx5_core 0000:1b:00.0: Port module event: module 0, Cable plugged",
        "mlx5_core 0000:1b:00.0 ens1f0np0: Link up",
        "mlx5_core 0000:1b:00.0: 126.016 Gb/s available PCIe bandwidth (8.0 GT/s PCIe x16 link)",
        LOADED,
    )
    verdicts = [check(facts) for check in JUDGES]
    assert [each.outcome for each in verdicts] == [Outcome.OK] * 5
    assert verdicts[0].sentence == "no Xid since boot asks for a reset"


@pytest.mark.proves("gpu.xid", unknown="a login that may not read the kernel log")
@pytest.mark.proves("gpu.sxid", unknown="a login that may not read the kernel log")
@pytest.mark.proves("net.kernel_log", unknown="a login that may not read the kernel log")
@pytest.mark.proves("host.hardware_errors", unknown="a login that may not read the kernel log")
@pytest.mark.proves("host.kernel_log", unknown="a login that may not read the kernel log")
def test_a_log_that_may_not_be_read_is_unknown_and_says_what_to_grant() -> None:
    """Missing privilege is no health; all five share one cause."""
    facts = b.facts(kernel_log=None, problems=("kernel log: Operation not permitted",))
    verdicts = [check(facts) for check in JUDGES]
    assert {each.outcome for each in verdicts} == {Outcome.UNKNOWN}
    assert {"dmesg_restrict=0" in each.grant for each in verdicts} == {True}
    assert len({each.cause for each in verdicts}) == 1
    timeout = b.facts(kernel_log=None, problems=("kernel log: no answer in time",))
    assert {(check(timeout).outcome, check(timeout).grant) for check in JUDGES} == {("unknown", "")}


def test_a_node_without_gpus_is_not_judged_for_xids() -> None:
    """No GPU expected, none there: gpu.xid and gpu.sxid are not run, readable log or not."""
    for facts in (node(gpus=False), replace(b.facts(), gpus=None, kernel_log=None)):
        assert judge_xid(Expected(), facts, limit=SHIPPED).outcome is Outcome.NOT_RUN
        assert sxid(facts).outcome is Outcome.NOT_RUN


@pytest.mark.proves("gpu.xid", finds="the GPU that logged Xid 79, 48, 95, 62, 64, 119 or 74")
@pytest.mark.parametrize("code", [48, 62, 64, 74, 79, 95, 119, 120])
def test_an_xid_that_needs_a_reset_names_the_gpu(code: int) -> None:
    """By index and PCI address, with when; the node fails and may be drained."""
    verdict = judge(xid(code, "0000:3b:00"))
    assert verdict.outcome is Outcome.FAIL
    assert f"GPU 2 (0000:3b:00): Xid {code} (" in verdict.sentence
    assert "1 h 0 min ago; expected no Xid that needs a reset since boot" in verdict.sentence
    assert verdict.cause == "memory of GPU2"


@pytest.mark.proves("gpu.xid", finds="a program's own Xid (13, 31, 43, 45): a warning, no drain")
@pytest.mark.parametrize("code", [13, 31, 43, 45, 94])
def test_a_programs_own_fault_drains_nothing(code: int) -> None:
    """It is reported for a day, with the program; afterwards it is a note of a healthy node."""
    assert judge(xid(code)).outcome is Outcome.WARN
    old = LogLine(xid(code), 100.0, NOW_S - 30 * HOUR_S, 40)
    verdict = judge(old)
    assert verdict.outcome is Outcome.OK
    assert "1 older note" in verdict.sentence


def sm(hours_ago: float, tpc: int = 5, pid: int | None = None, slot: str = "0000:1b:00") -> LogLine:
    """An exception of a program on one TPC of a GPU."""
    who = f"pid={pid}, name=python3" if pid else "pid='<unknown>', name=<unknown>"
    text = f"{who}, Graphics SM Warp Exception on (GPC 2, TPC {tpc}, SM 1): Illegal Instruction"
    at_s = NOW_S - hours_ago * HOUR_S
    return LogLine(xid(13, slot, text), at_s, at_s)


@pytest.mark.proves("gpu.xid", finds="Xid 13 of several processes on one TPC: a warning, no drain")
def test_a_programs_exception_that_comes_back_to_one_tpc_is_suspected_of_the_hardware() -> None:
    """NVIDIA's workflow: the same GPC and TPC again wants diagnostics, whatever the program."""
    verdict = judge(sm(30, pid=7), sm(20, pid=8), sm(19, pid=9))
    assert verdict.outcome is Outcome.WARN
    assert "GPU 0 (0000:1b:00): Xid 13 (3 times apart on GPC 2, TPC 5 alone" in verdict.sentence
    assert "from 2 on its hardware may be at fault" in verdict.sentence
    assert "dcgmi diag" in verdict.advice
    assert verdict.evidence["places"] == {"0000:1b:00": "GPC 2, TPC 5"}
    elsewhere = sm(20, tpc=1, slot="0000:2b:00")
    assert "TPC 5 alone" in judge(sm(3), sm(2), elsewhere).sentence


@pytest.mark.parametrize(
    "lines",
    [
        [sm(2)],
        [sm(2), sm(2 - 14 / 3600)],
        [sm(2, pid=7), sm(1, pid=7)],
        [sm(2), sm(2, tpc=6), sm(1), sm(1, tpc=6)],
        [sm(3), sm(2), sm(1, tpc=0), sm(0.5, tpc=1)],
        [sm(2, slot="0000:1b:00"), sm(1, slot="0000:2b:00")],
        [sm(28), sm(2)],
        [xid(13), xid(13)],
    ],
    ids=[
        "once",
        "one crash",
        "one process",
        "all over",
        "moves about",
        "two GPUs",
        "rare",
        "where",
    ],
)
def test_exceptions_that_prove_nothing_of_a_part_stay_the_programs(
    lines: list[str | LogLine],
) -> None:
    """Once, in one burst, by one process, at several places or far apart: the program's own."""
    verdict = judge(*lines)
    assert verdict.outcome is Outcome.WARN
    assert "a program's exception on the GPU" in verdict.sentence
    assert "places" not in verdict.evidence


def test_beside_a_real_fault_or_where_the_site_tolerates_it_no_part_is_suspected() -> None:
    """A GPU with a double bit error throws exceptions too; and the site's own word counts."""
    verdict = judge(sm(3), xid(48), sm(2))
    assert verdict.outcome is Outcome.FAIL
    assert "TPC" not in verdict.sentence
    tolerant = Expected(gpus=8, tolerated_xids=(13,))
    assert "TPC" not in judge(sm(3), sm(2), expected=tolerant).sentence


def test_what_vendors_judge_differently_is_a_warning_until_the_site_says() -> None:
    """63, 68, 92 and 109; the inventory makes them faults, or a fault of ours a note."""
    for code in (63, 68, 92, 109):
        assert judge(xid(code)).outcome is Outcome.WARN
    strict = Expected(gpus=8, fatal_xids=(63, 13))
    assert judge(xid(63), expected=strict).outcome is Outcome.FAIL
    lax = Expected(gpus=8, tolerated_xids=(74,))
    assert judge(xid(74), expected=lax).outcome is not Outcome.FAIL


def test_an_unknown_xid_is_a_warning() -> None:
    """A code of a newer driver is neither passed over nor drained for."""
    verdict = judge(xid(987))
    assert (verdict.outcome, "not in preflight's catalog" in verdict.sentence) == ("warn", True)


@pytest.mark.parametrize("of", [" GPU-I:02", " GPU-I:02 GPU-CI:03", ".0 GPU-I:02"])
def test_an_xid_of_a_mig_instance_is_its_gpus(of: str) -> None:
    """The driver puts the instance behind the address; the GPU is what is drained."""
    verdict = judge(xid(95, "0000:1b:00" + of))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence.startswith("GPU 0 (0000:1b:00): Xid 95")


def test_one_fault_and_its_echoes_are_one_gpu() -> None:
    """A GPU off the bus draws 154 on all GPUs, 119 on its own, NVLink errors on its peers."""
    verdict = judge(
        xid(79, "0000:2b:00"),
        xid(154, "0000:1b:00", "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot)"),
        xid(154, "0000:2b:00", "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot)"),
        xid(119, "0000:2b:00"),
        xid(74, "0000:3b:00", "NVLink: fatal error detected on link 4"),
        xid(45, "0000:2b:00"),
    )
    assert "GPU 1 (0000:2b:00): Xid 79 (the GPU has fallen off the bus), then" in verdict.sentence
    assert "1b:00" not in verdict.sentence.replace("0000:2b:00", "")
    assert "3b:00" not in verdict.sentence
    assert verdict.cause == "memory of GPU1"


def test_a_double_bit_error_and_what_follows_it_is_one_finding() -> None:
    """48 leads; 63, 94, 95 and 45 of that GPU are its consequences, another GPU's are not."""
    verdict = judge(xid(48), xid(63), xid(95), xid(45), xid(95, "0000:2b:00"))
    assert "Xid 48 (a double bit ECC error), then Xid 63, 95, 45" in verdict.sentence
    assert "GPU 1 (0000:2b:00): Xid 95" in verdict.sentence


def test_what_the_driver_recommends_counts_where_its_cause_is_gone() -> None:
    """Xid 154 alone, after older lines were overwritten, says itself what the GPU needs."""
    wants = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    assert judge(xid(154, text=wants)).outcome is Outcome.FAIL
    over = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    assert judge(xid(154, text=over)).outcome is not Outcome.FAIL


def test_blackwells_nvlink_errors_say_themselves_how_grave_they_are() -> None:
    """Xid 144 to 150: Fatal fails, Nonfatal warns."""
    assert judge(xid(149, text="NETIR_LINK_EVT Fatal XC0 i0 Link 05")).outcome is Outcome.FAIL
    assert judge(xid(149, text="NETIR_LINK_EVT Nonfatal XC0 i0 Link 05")).outcome is Outcome.WARN


CAUSED = "pid=71, name=python3, Ch 00000004 caused by previous Xid {}"


@pytest.mark.parametrize(
    ("root", "outcome"), [(149, "fail"), (79, "fail"), (48, "fail"), (31, "warn")]
)
def test_an_xid_that_names_its_cause_is_as_grave_as_that(root: int, outcome: str) -> None:
    """The line of the cause may be overwritten or grepped away: the cause leads all the same."""
    verdict = judge(xid(45, text=CAUSED.format(root)), xid(45, text=CAUSED.format(root)))
    assert verdict.outcome == outcome
    assert verdict.sentence.startswith(f"GPU 0 (0000:1b:00): Xid {root} (")
    assert "; Xid 45 names it), then Xid 45" in verdict.sentence


def test_a_cause_with_a_line_of_its_own_is_reported_by_that_line() -> None:
    """Its own line knows whether it was fatal, and what it led to is no finding beside it."""
    mild = xid(149, text="NETIR_LINK_EVT Nonfatal XC0 i0 Link 05")
    for lines in (
        [mild, xid(45, text=CAUSED.format(149))],
        [xid(45, text=CAUSED.format(149)), mild],
    ):
        verdict = judge(*lines)
        assert verdict.outcome is Outcome.WARN
        assert "Xid 149 (an NVLink error), then Xid 45" in verdict.sentence
        assert "names it" not in verdict.sentence
    both = judge(xid(45, text=CAUSED.format(43)), xid(43, text=CAUSED.format(45)))
    assert both.outcome is Outcome.WARN
    assert judge(xid(45, text=CAUSED.format(149)), RELOAD).outcome is Outcome.WARN


def test_a_warning_asks_for_no_reset_that_it_says_is_not_needed() -> None:
    """An NVLink error that mended itself is looked at; a marked row waits until the GPU is idle."""
    mended = judge(xid(145, text="RLW_RXPIPE Nonfatal XC0 i0 Link 05"))
    marked = judge(xid(63, text="Row Remapper: New row marked for remapping"))
    for verdict in (mended, marked):
        assert verdict.sentence.endswith("none needs a reset at once")
    assert mended.advice.startswith("look at nvidia-smi nvlink -e")
    assert "when it is idle" in marked.advice


@pytest.mark.parametrize("since", [RELOAD, LOADED])
def test_an_xid_from_before_the_driver_was_loaded_anew_is_a_warning(since: str) -> None:
    """It was reset with the driver; the same Xid afterwards fails again."""
    verdict = judge(xid(48), since)
    assert verdict.outcome is Outcome.WARN
    assert "before the GPU was reset; none needs a reset at once" in verdict.sentence
    assert verdict.advice.startswith("watch it; if it comes again: drain, reset the GPU")
    assert judge(xid(48), since, xid(48)).outcome is Outcome.FAIL


def test_an_xid_is_settled_when_the_driver_needs_no_recovery_any_more() -> None:
    """Xid 154 to None is of that GPU only."""
    none = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    assert judge(xid(48), xid(154, text=none)).outcome is Outcome.WARN
    assert judge(xid(48), xid(154, "0000:2b:00", none)).outcome is Outcome.FAIL


def test_the_drivers_own_word_that_nothing_is_to_be_done_settles_an_xid() -> None:
    """NVML's recovery action knows of 48, not of 119: that one still fails."""

    def at(code: int, action: str | None) -> Outcome:
        facts = b.with_gpu(0, node(xid(code)), health=GpuHealth(recovery_action=action))
        return judge_xid(HGX, facts, limit=SHIPPED).outcome

    assert [at(48, action) for action in ("none", "GPU reset", None)] == ["warn", "fail", "fail"]
    assert at(119, "none") is Outcome.FAIL


@pytest.mark.parametrize("driver", [Driver("error"), Driver("hung"), Driver("absent")])
def test_an_xid_is_not_live_while_the_driver_cannot_tell_that_it_is_settled(
    driver: Driver,
) -> None:
    """What was settled a moment ago is unknown; 119 and 79, of which it says nothing, fail."""

    def at(*codes: int, **changes: object) -> Outcome:
        facts = replace(node(*map(xid, codes)), **changes)
        return judge_xid(HGX, facts, limit=SHIPPED).outcome

    healths = [GpuHealth(errors=(f"recovery_action: {why}",)) for why in ("Timeout", "No data")]
    for health in healths:
        gpus = tuple(replace(each, health=health) for each in b.gpus())
        assert [at(code, gpus=gpus) for code in (95, 119, 79)] == ["unknown", "fail", "fail"]
        assert at(95, 119, gpus=gpus) is Outcome.FAIL
    assert at(95, gpus=None, driver=driver) == ("fail" if driver.state == "absent" else "unknown")
    assert at(119, gpus=None, driver=driver) is Outcome.FAIL


@pytest.mark.parametrize(
    ("judge", "line"),
    [
        (partial(judge_xid, HGX, limit=SHIPPED), "NVRM: Xid (PCI:0000:1b:00): 79, said"),
        (sxid, "nvidia-nvswitch2: SXid (PCI:0000:05:00.0): 22013, Fatal, Link 17 said"),
        (partial(nic, limit=SHIPPED), "mlx5_core 0000:1a:00.0: probe with driver mlx5_core failed"),
    ],
)
def test_what_a_later_line_may_end_is_unknown_where_later_lines_were_not_read(
    judge: Callable[[Facts], Verdict], line: str
) -> None:
    """Its driver may have come anew there."""
    facts = node(line)
    assert judge(facts).outcome is Outcome.FAIL
    assert facts.kernel_log is not None
    half = replace(facts.kernel_log, dropped_of={"any": 9, "later": 9})
    verdict = judge(replace(facts, kernel_log=half))
    assert (verdict.outcome, "later lines" in verdict.sentence) == (Outcome.UNKNOWN, True)


def test_a_lost_gpu_that_is_missing_is_one_finding_with_its_address() -> None:
    """gpu.count names it too, and both share a cause."""
    facts = node(xid(79, "0000:8b:00"))
    facts = replace(facts, gpus=(facts.gpus or ())[:7])
    assert judge_xid(HGX, facts, limit=SHIPPED).cause == "gpu.count"
    counted = judge_count(8, facts.gpus, missing=missing_slots(facts))
    assert counted.sentence == "7 of 8 GPUs answer; missing: 0000:8b:00"


def test_a_gpu_that_is_missing_and_a_listed_one_that_is_lost_are_both_named() -> None:
    """The kernel log has the address of one, NVML that of the other."""
    eight = gpu_node(3, errors=("temperature_c: GPU is lost",))
    log = node(xid(79, "0000:8b:00")).kernel_log
    six_answer = replace(eight, gpus=(eight.gpus or ())[:7], kernel_log=log)
    sentence = judge_check("gpu.count", six_answer).sentence
    assert sentence == "6 of 8 GPUs answer; missing: 0000:8b:00, 00000000:4B:00.0"


@pytest.mark.proves("gpu.xid", finds="a GPU that the driver could not start, without any Xid")
def test_a_gpu_that_did_not_start_fails_although_the_driver_is_new() -> None:
    """The driver says "loading" after it has started the GPUs: what failed then is not old."""
    fell = "NVRM: The NVIDIA GPU 0000:5d:00.0 (PCI ID: 10de:2330) has fallen off the bus"
    verdict = judge(RELOAD, fell, LOADED)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence.startswith("GPU 0000:5d:00: fell off the bus")
    failed = "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x26:0x56:1474)"
    assert "GPU 0 (0000:1b:00): the driver could not start it" in judge(failed).sentence


def test_links_that_do_not_train_are_a_fault_without_an_xid() -> None:
    """The driver tells its own number of the GPU, no address."""
    verdict = judge("NVRM: GPU1 knvlinkCoreSetTxSublinkModeCallback: Error setting TX sublink mode")
    assert (verdict.outcome, verdict.sentence[:4]) == ("fail", "GPU1")


SXID = "nvidia-nvswitch{}: SXid (PCI:0000:85:00.0): {}, {}, Link {} {}"


@pytest.mark.proves("gpu.sxid", finds="a fatal SXid: the NVSwitch and its link")
def test_a_fatal_sxid_names_switch_and_link() -> None:
    """The line's own word decides: the same number as Non-fatal is no finding."""
    verdict = sxid(node(SXID.format(2, 19084, "Fatal", 61, "AN1 Heartbeat Timeout Error")))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence.startswith("nvidia-nvswitch2 (0000:85:00.0) link 61: fatal SXid 19084")
    calm = sxid(node(SXID.format(2, 19084, "Non-fatal", 61, "AN1 Heartbeat Timeout Error")))
    assert calm.outcome is Outcome.OK


def test_an_sxid_whose_grade_is_not_in_the_log_is_unknown_and_named() -> None:
    """Its data alone proves that it came; beside the line with its grade it is nothing more."""
    bare = "nvidia-nvswitch1: SXid (PCI:0000:85:00.0): {}, {}"
    data, severity = "Data {0x000000c1, 0x00000007}", "Severity 1 Engine instance 61"
    verdict = sxid(node(bare.format(14017, data), bare.format(14017, severity)))
    assert verdict.outcome is Outcome.UNKNOWN
    assert verdict.sentence.startswith(
        "nvidia-nvswitch1 (0000:85:00.0): SXid 14017 (an NVLink port of the switch)"
    )
    assert len(verdict.evidence["sxids"]) == 1
    calm = SXID.format(1, 14017, "Non-fatal", 61, "AN1 Heartbeat Timeout Error")
    assert sxid(node(calm, bare.format(14017, severity), bare.format(14017, data))).outcome == "ok"
    other = sxid(node(calm, bare.format(98765, data)))
    assert (other.outcome, "SXid 98765 (not in preflight's" in other.sentence) == ("unknown", True)
    assert sxid(node(bare.format(14017, data), RELOAD)).outcome is Outcome.WARN


def test_a_link_that_a_lost_gpu_took_down_is_the_gpus_fault() -> None:
    """SXid 20034 beside Xid 79 is one finding, gpu.xid's; alone it is the switch's own."""
    down = SXID.format(0, 20034, "Fatal", 28, "LTSSM Fault Up")
    assert sxid(node(xid(79), down)).outcome is Outcome.WARN
    assert sxid(node(down)).outcome is Outcome.FAIL
    assert sxid(node(down, RELOAD)).outcome is Outcome.WARN


MLX = "mlx5_core 0000:1a:00.0: "
SICK = MLX + "poll_health:801:(pid 0): device's health compromised - reached miss count"


@pytest.mark.proves("net.kernel_log", finds="NIC firmware that stopped; a NIC that did not start")
@pytest.mark.parametrize(
    "line",
    [
        SICK,
        MLX + "print_health_info:431:(pid 0): Health issue observed, x, severity(3) ERROR:",
        MLX + "init_one:1371:(pid 803): mlx5_load_one failed with error code -22",
        "mlx5_core: probe of 0000:1a:00.0 failed with error -22",
    ],
)
def test_a_nic_that_is_sick_or_did_not_start_fails(line: str) -> None:
    """By its PCI address; once its driver has started it again, it is well."""
    verdict = nic(node(line), limit=SHIPPED)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence.startswith("0000:1a:00.0: its ")
    assert (
        nic(node(line, MLX + "firmware version: 28.39.1002"), limit=SHIPPED).outcome is Outcome.OK
    )


@pytest.mark.proves("net.kernel_log", finds="a failure of a NIC's driver that is in no table")
@pytest.mark.parametrize(
    ("line", "who"),
    [
        (MLX + "cmd_work_handler:1003:(pid 9): failed to allocate command entry", "0000:1a:00.0"),
        ("infiniband mlx5_5: reg_mr_callback:108:(pid 0): async reg mr failed. status", "mlx5_5"),
    ],
)  # fmt: skip
def test_a_trouble_that_is_in_no_table_is_a_warning_with_its_line(line: str, who: str) -> None:
    """In doubt the line is shown; what a program's own command was refused is none."""
    verdict = nic(node(line), limit=SHIPPED)
    assert verdict.outcome is Outcome.WARN
    assert verdict.sentence.startswith(f"{who}: its driver reports an error")
    assert line.partition(": ")[2][:40] in verdict.sentence
    refused = MLX + "mlx5_cmd_out_err:808:(pid 7): CREATE_QP(0x500) op_mod(0x0) failed, status 3"
    assert nic(node(refused), limit=SHIPPED).outcome is Outcome.OK


def test_a_nic_that_healed_itself_is_a_warning() -> None:
    """The driver's own recovery settles the fault."""
    assert nic(node(SICK, MLX + "health recovery succeeded"), limit=SHIPPED).outcome is Outcome.WARN


@pytest.mark.proves("net.kernel_log", finds="a link that went down six times in a day")
def test_flaps_are_counted_by_the_day() -> None:
    """Six times within the day warns; once, or six times in a month, does not."""
    down = "mlx5_core 0000:1a:00.0 ens1f0np0: Link down"
    assert (
        nic(node(LogLine(down, NOW_S - 90, NOW_S - 60, 42)), limit=SHIPPED).outcome is Outcome.WARN
    )
    verdict = nic(node(LogLine(down, 9.0, NOW_S - 60, 6)), limit=SHIPPED)
    assert verdict.outcome is Outcome.OK
    assert "links went down 6 times" in verdict.sentence


def test_a_link_that_comes_up_again_and_again_was_down_between() -> None:
    """Some drivers say only `Link up`: the first is its start, each further one a flap."""
    up = "mlx5_core 0000:1a:00.0 ens1f0np0: Link up"
    verdict = nic(node(LogLine(up, NOW_S - 90, NOW_S - 60, 43)), limit=SHIPPED)
    assert verdict.outcome is Outcome.WARN
    assert verdict.sentence.startswith("link down: 0000:1a:00.0 42 times (it came up again)")
    few = nic(node(LogLine(up, NOW_S - 90, NOW_S - 60, 4)), limit=SHIPPED)
    assert few.outcome is Outcome.OK
    assert few.sentence == "links went down 3 times since boot, under 5 in a day"
    assert "no NIC with errors" in nic(node(up), limit=SHIPPED).sentence
    down = up.replace("up", "down")
    paired = node(LogLine(up, 90.0, NOW_S - 60, 4), LogLine(down, 95.0, NOW_S - 70, 3))
    assert [each["times"] for each in nic(paired, limit=SHIPPED).evidence["events"]] == [3]
    after = node(LogLine(down, 90.0, NOW_S - 70, 1), LogLine(up, 95.0, NOW_S - 60, 3))
    assert [each["times"] for each in nic(after, limit=SHIPPED).evidence["events"]] == [1, 2]
    anew = MLX + "firmware version: 28.39.1002"
    assert nic(node(up, anew, up, anew, up), limit=SHIPPED).evidence["events"] == []


def test_ups_after_a_restart_of_the_driver_are_not_offset_by_downs_before_it() -> None:
    """20 logged downs, a restart, 20 ups without a down: the link went down 39 times."""
    up = "mlx5_core 0000:1a:00.0 ens1f0np0: Link up"
    lines = (
        LogLine(up.replace("up", "down"), NOW_S - 900, NOW_S - 600, 20),
        LogLine(MLX + "firmware version: 28.39.1002", NOW_S - 500, NOW_S - 500),
        LogLine(up, NOW_S - 400, NOW_S - 60, 20),
    )
    verdict = nic(node(*lines), limit=SHIPPED)
    assert verdict.outcome is Outcome.WARN
    assert verdict.sentence.startswith("link down: 0000:1a:00.0 39 times (it came up again)")
    assert nic(node(*lines[:2], LogLine(up)), limit=SHIPPED).outcome is Outcome.OK


def test_a_narrow_slot_is_not_this_checks() -> None:
    """ib.pcie tells of it, from the link as it is now."""
    line = (
        "mlx5_core 0000:2c:00.0: 252.056 Gb/s available PCIe bandwidth, limited by 32.0 GT/s PCIe "
        "x8 link at 0000:97:01.0 (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)"
    )
    assert nic(node(line), limit=SHIPPED).outcome is Outcome.OK


@pytest.mark.proves("host.hardware_errors", finds="fatal PCIe, CPU and memory errors")
@pytest.mark.parametrize(
    ("line", "part"),
    [
        (aer("Uncorrected (Fatal)").text, "PCIe errors of 0000:02:00.0"),
        (aer("Uncorrectable (Fatal)").text, "PCIe errors of 0000:02:00.0"),
        ("pcieport 0000:30:03.0: DPC: containment event, status:0x0005 source:0x3400", "30:03.0"),
        (
            "mce: [Hardware Error]: CPU 17: Machine Check: 0 Bank 9: be00000000800400",
            "machine checks of CPU 17 bank 9",
        ),
        ("{2}[Hardware Error]: event severity: fatal", "machine checks"),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (page:0x1)", "DIMM#0"),
        ("Memory failure: 0x7740c0: recovery action for dirty page: Recovered", "memory errors"),
    ],
)
def test_uncorrected_errors_fail_with_their_part(line: str, part: str) -> None:
    """A device, a CPU, a DIMM."""
    verdict = hardware(node(line), limit=SHIPPED)
    assert verdict.outcome is Outcome.FAIL
    assert part in verdict.sentence


CANNOT = "{} 0000:4a:00.{}: AER: can't recover (no error_detected callback)"
ENDED = "pcieport 0000:49:01.0: AER: device recovery {}"


@pytest.mark.proves("host.hardware_errors", finds="a GPU that could not recover from a PCIe error")
@pytest.mark.parametrize(
    "after",
    [
        (CANNOT.format("nvidia", 0),),
        (CANNOT.format("mlx5_core", 0), CANNOT.format("xhci_hcd", 1)),
        (CANNOT.format("xhci_hcd", 1), CANNOT.format("nvidia", 0), ENDED.format("failed")),
        ("nvidia 0000:4a:00.0: device has no AER-aware driver",),
        (ENDED.format("failed"),),
    ],
)
def test_an_error_from_which_a_jobs_device_did_not_recover_is_fatal(after: tuple[str, ...]) -> None:
    """Non-fatal is the word for the link; the GPU or NIC behind it may answer nothing any more."""
    verdict = hardware(
        node(aer("Uncorrectable (Non-Fatal)", "0000:4a:00.1"), *after), limit=SHIPPED
    )
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence.startswith("uncorrected PCIe errors of 0000:4a:00.1")


def test_an_error_from_which_another_device_did_not_recover_is_a_warning() -> None:
    """No job needs USB or sound; but no line says that they recovered."""
    error = aer("Uncorrectable (Non-Fatal)", "0000:49:01.0")
    usb = CANNOT.format("xhci_hcd", 1)
    for after in ((usb,), (usb, ENDED.format("failed"))):
        verdict = hardware(node(error, *after), limit=SHIPPED)
        assert verdict.outcome is Outcome.WARN
        assert verdict.sentence.startswith("uncorrected, not recovered PCIe errors")
    well = hardware(node(error, ENDED.format("successful")), limit=SHIPPED)
    assert well.outcome is Outcome.WARN
    assert well.sentence.startswith("uncorrected, non-fatal PCIe errors")


def test_a_recovery_is_that_of_the_errors_before_it() -> None:
    """An error of another device, an hour or a recovery earlier, is not made graver by it."""
    usb = LogLine(aer("Uncorrectable (Non-Fatal)", "0000:05:00.0").text, 50.0, 50.0)
    error, failed = aer("Uncorrectable (Non-Fatal)", "0000:4a:00.0"), CANNOT.format("nvidia", 0)
    faults = hardware(node(usb, error, failed), limit=SHIPPED).evidence["faults"]
    assert [each["grade"] for each in faults] == ["uncorrected", "fatal"]
    ended = LogLine(ENDED.format("successful"), 100.0, 100.0)
    faults = hardware(
        node(error, ended, aer("Uncorrected (Non-Fatal)", "0000:05:00.0"), failed), limit=SHIPPED
    )
    assert [each["grade"] for each in faults.evidence["faults"]] == ["uncorrected", "fatal"]
    alone = hardware(node(failed), limit=SHIPPED)
    assert alone.outcome is Outcome.WARN
    assert "0000:4a:00.0" in alone.sentence


def test_what_was_corrected_matters_only_in_storms() -> None:
    """A few replays are normal; thousands in a day are worth a look, and drain nothing."""
    assert hardware(node(aer("Corrected", times=200)), limit=SHIPPED).outcome is Outcome.OK
    assert hardware(node(aer("Corrected", times=50_000)), limit=SHIPPED).outcome is Outcome.WARN
    corrected = "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: 8c00004000010090"
    assert hardware(node(corrected), limit=SHIPPED).outcome is Outcome.OK
    dimm = "EDAC MC1: {} CE memory read error on CPU_SrcID#1_MC#0_Chan#0_DIMM#1 (page:0x1)"
    assert hardware(node(dimm.format(3)), limit=SHIPPED).outcome is Outcome.OK
    verdict = hardware(node(dimm.format(900)), limit=SHIPPED)
    assert (verdict.outcome, "DIMM#1" in verdict.sentence) == ("warn", True)
    assert hardware(node(aer("Uncorrected (Non-Fatal)")), limit=SHIPPED).outcome is Outcome.WARN


def test_a_lost_gpus_pcie_errors_are_not_a_second_finding() -> None:
    """Neither its own nor those of the ports above it; another device's still are."""
    ports = b.gpu(0).pci_path or ()
    lost = replace(b.gpu(0), bus_id="0000:1b:00.0")
    gpus = (lost, *b.gpus()[1:])
    for where in ("0000:1b:00.0", ports[1]):
        echo = node(xid(79), aer("Uncorrected (Fatal)", where), gpus=True)
        assert hardware(replace(echo, gpus=gpus), limit=SHIPPED).outcome is Outcome.OK
    other = node(xid(79), aer("Uncorrected (Fatal)", "0000:c1:00.0"))
    assert hardware(replace(other, gpus=gpus), limit=SHIPPED).outcome is Outcome.FAIL


def test_a_fatal_error_of_the_boot_before_is_a_warning() -> None:
    """The firmware hands it over after the reset: it says why the node rebooted."""
    verdict = hardware(node("BERT: Total records found: 1"), limit=SHIPPED)
    assert (verdict.outcome, "the boot before" in verdict.sentence) == ("warn", True)


@pytest.mark.proves("host.kernel_log", finds="a file system that turned read-only")
def test_a_file_system_that_turned_read_only_fails() -> None:
    """With its device; it drains nothing by itself."""
    verdict = host(node("EXT4-fs (nvme0n1p2): Remounting filesystem read-only"), limit=SHIPPED)
    assert verdict.outcome is Outcome.FAIL
    assert "made a file system read-only (nvme0n1p2)" in verdict.sentence


@pytest.mark.proves("host.kernel_log", finds="killed processes, I/O errors and lock-ups of one day")
@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("Out of memory: Killed process 4711 (python3) total-vm:1kB, UID:1000", "out of memory"),
        ("Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB", "memory limit"),
        ("I/O error, dev nvme0n1, sector 71364664 op 0x1:(WRITE)", "nvme0n1"),
        ("nvme nvme1: controller is down; will reset: CSTS=0xffffffff", "nvme1"),
        ("INFO: task kworker/3:1:812 blocked for more than 120 seconds.", "D state"),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 23s! [python3:4711]", "CPU#3"),
        ("nfs: server filer1 not responding, still trying", "filer1"),
    ],
)
def test_what_slowed_the_host_is_reported_for_a_day(line: str, word: str) -> None:
    """The job may start, and an operator should look."""
    verdict = host(node(line), limit=SHIPPED)
    assert (verdict.outcome, word in verdict.sentence) == (Outcome.WARN, True)
    old = host(node(LogLine(line, 60.0, 60.0)), limit=SHIPPED)
    assert old.outcome is Outcome.OK


def test_an_empty_drive_is_no_disk_error() -> None:
    """Loop images and empty drives fail to read all the time."""
    assert (
        host(node("I/O error, dev loop3, sector 0 op 0x0:(READ)"), limit=SHIPPED).outcome
        is Outcome.OK
    )


@pytest.mark.parametrize(
    "line",
    [
        "EXT4-fs (loop0): Remounting filesystem read-only",
        "EXT4-fs error (device loop0): ext4_lookup:1785: inode #2: comm ls: bad entry",
        "BTRFS info (device loop0: state E): forced readonly",
        "XFS (loop0): Filesystem has been shut down due to log error (0x2).",
        "XFS (loop0): Metadata corruption detected at xfs_agi_verify, xfs_agi block 0x2",
    ],
)
def test_a_damaged_image_is_no_damaged_host(line: str) -> None:
    """A user's image is broken, not the node; the same words of a disk are not passed over."""
    assert host(node(line), limit=SHIPPED).outcome is Outcome.OK
    assert host(node(line.replace("loop0", "sda1")), limit=SHIPPED).outcome is not Outcome.OK


def test_a_log_that_forgot_its_beginning_says_so() -> None:
    """`ok` is only about what is still there, or what was asked for."""
    facts = node()
    assert facts.kernel_log
    late = replace(facts, kernel_log=replace(facts.kernel_log, begins_s=NOW_S - 2 * HOUR_S))
    assert (
        "in the last 2 h 0 min (older lines are overwritten)"
        in judge_xid(HGX, late, limit=SHIPPED).sentence
    )
    asked = replace(facts, kernel_log=replace(facts.kernel_log, after_s=NOW_S - HOUR_S))
    assert "in the last 1 h 0 min asks" in judge_xid(HGX, asked, limit=SHIPPED).sentence
