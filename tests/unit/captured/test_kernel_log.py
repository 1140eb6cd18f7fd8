"""A captured kernel log is judged by the live checks, and every label of the corpus is met."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.captured.dmesg import CHECKS, read
from preflight.checks.gpu.test_kernel_log import judge_sxid as sxid
from preflight.checks.gpu.test_kernel_log import judge_xid
from preflight.checks.host.test_host_log import judge_hardware_errors as hardware
from preflight.checks.host.test_host_log import judge_kernel_log as host
from preflight.checks.net.test_nic_log import judge as nic
from preflight.checks.rdma.test_slots import judge_pcie as pcie
from preflight.commands.read import judge_captured
from preflight.core.thresholds import SHIPPED
from preflight.facts import Group
from preflight.fleet.model import Expected
from preflight.verdict import Outcome, Verdict
from tests.unit.captured.sound import sound

CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus" / "dmesg_xid"
CASES = sorted(CORPUS.glob("*.json"))
GRAVE = ("gpu_hardware", "nvlink", "reset/power cycle", "nic firmware", "nic driver")
CALM = ("application", "driver", "warning", "nvlink warning", "nic pcie")


def verdicts(text: str) -> dict[str, Verdict]:
    """What the five checks say of a text; and ib.pcie, where it tells of a NIC's slot."""
    captured = read(text)
    assert captured is not None
    facts = captured.facts
    judges = {"net": nic, "hardware": hardware, "host": host}
    said = {"gpu": judge_xid(Expected(), facts, SHIPPED), "switch": sxid(facts)}
    said |= {name: judge(facts, SHIPPED) for name, judge in judges.items()}
    if "ib.pcie" in captured.checks:
        said["slot"] = pcie(facts, Group("captured", {"it": facts}))
    return said


@pytest.mark.corpus
@pytest.mark.skipif(not CASES, reason="the corpus of real outputs is not beside the project")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_every_label_is_met(case: Path) -> None:
    """Its Xids are seen, its GPUs named, the decoy not, and it is as grave as the label says."""
    label: dict[str, Any] = json.loads(case.read_text())
    text = case.with_suffix(".txt").read_text(errors="replace")
    captured = read(text)
    assert captured is not None
    assert bool(captured.damaged) == label.get("damaged", False)
    assert set(captured.checks) < {*CHECKS, "ib.pcie"} or captured.damaged
    said = verdicts(text)
    gpu = said["gpu"]
    troubles = gpu.evidence["troubles"]
    assert {each["xid"] for each in troubles if isinstance(each["xid"], int)} == set(label["xids"])
    assert all(slot in gpu.sentence for slot in label.get("gpus", ()))
    assert label.get("decoy", "no decoy") not in gpu.sentence
    sxids = {each["sxid"] for each in said["switch"].evidence["sxids"]}
    assert sxids == set(label.get("sxids", ()))
    severity = label.get("severity", "")
    worst = [each.outcome for each in said.values()]
    if severity.startswith(CALM):
        assert Outcome.FAIL not in worst
        assert Outcome.WARN in worst
    elif severity.startswith(GRAVE):
        assert Outcome.FAIL in worst
    if severity == "harmless":
        assert set(worst) == {Outcome.OK}


@pytest.mark.parametrize(
    "text",
    [
        "dmesg: read kernel buffer failed: Operation not permitted\n",
        "-- No entries --\n",
        "Hint: You are currently not seeing messages from other users.\n-- No entries --\n",
    ],
)
def test_an_output_that_only_says_why_there_is_none_is_unknown(text: str) -> None:
    """No check passes on it."""
    assert {each.outcome for each in verdicts(text).values()} == {Outcome.UNKNOWN}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "Hello\n",
        "[0] NCCL INFO Bootstrap : Using eth0\n" * 9,
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n",
        "export NCCL_DEBUG=INFO\ndmesg | grep -q 'NVRM: Xid' && exit 1\n",
    ],
)
def test_other_texts_are_none_of_its_kind(text: str) -> None:
    """Somebody else reads them, or nobody can."""
    assert read(text) is None


def test_an_excerpt_is_judged_by_what_it_tells_of() -> None:
    """Who greps for NVRM hides the DIMM: only the check of what is there may pass or fail."""
    xid = "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n"
    excerpt = read(xid)
    assert excerpt is not None
    assert excerpt.checks == ("gpu.xid",)
    nothing = read("[    4.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07\n")
    assert nothing is not None
    assert nothing.damaged == "it is an excerpt of a log without any event"
    lines = "".join(f"[{n:12.6f}] pci 0000:00:{n:02x}.0: enabling device\n" for n in range(2, 30))
    whole = read("[    0.000000] Linux version 6.1.0-28-amd64\n" + lines)
    assert whole is not None
    assert (len(whole.checks), whole.damaged) == (5, "")


def test_a_short_part_of_a_log_with_several_flaps_is_a_warning() -> None:
    """Three within the minute that is shown: nobody can say that it was under five in that day."""
    line = "Nov  2 06:07:{:02} node7 kernel: mlx5_core 0000:1a:00.1 ens1f1np1: Link up\n"
    said = verdicts("".join(line.format(second) for second in (8, 13, 30, 48)))["net"]
    assert said.outcome is Outcome.WARN
    assert "0000:1a:00.1 3 times" in said.sentence
    assert verdicts(line.format(8))["net"].outcome is Outcome.OK


def test_what_pdsh_gathered_is_read_and_of_several_nodes_proves_nothing() -> None:
    """The kernel's stamp comes after the node's name; two nodes' lines are nobody's log."""
    line = "{}: [ 120.25] mlx5_core 0000:4b:00.0: wait_func:7: X timeout. Will cause a leak\n"
    assert verdicts(line.format("n042"))["net"].outcome is Outcome.WARN
    both = read(line.format("n042") + line.format("n043"))
    assert both is not None
    assert both.damaged == "it has lines of several nodes (n042, n043)"
    assert read("n042: [12:30] step 7\nn042: loss [0.25] of 9\n") is None


def test_a_log_whose_lines_are_all_comments_is_judged() -> None:
    """So it stands in a runbook or a script's head: an Xid 154 there still asks for a reset."""
    line = (
        "NVRM: Xid (PCI:0000:2c:00): 154, GPU recovery action changed to 0x1 (GPU Reset Required)"
    )
    said = verdicts(f"#   NVRM: GPU1 heartbeat timed out\n#   {line}\n")
    assert said["gpu"].outcome is Outcome.FAIL


@pytest.mark.parametrize("of", ["Out of memory", "Memory cgroup out of memory"])
def test_a_killed_process_alone_is_a_kernel_log(of: str) -> None:
    """Who asks why a worker died has just that line."""
    said = verdicts(f"{of}: Killed process 4711 (trainer) total-vm:900kB, anon-rss:800kB\n")
    assert said["host"].outcome is Outcome.WARN
    assert "trainer" in said["host"].sentence


def test_a_log_that_is_cut_or_garbled_says_so() -> None:
    """Whoever judges it knows that silence proves nothing."""
    whole = "[    1.000000] NVRM: Xid (PCI:0000:1b:00): 31, pid=7, name=x, MMU Fault\n"
    cut = whole[: whole.index("31") + 2]
    said = [read(text) for text in (whole, cut, whole + "\0\0\0")]
    assert [bool(each and each.damaged) for each in said] == [False, True, True]


def test_a_fault_behind_a_long_log_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much harmless comes before it: a log is read to its end."""
    monkeypatch.setattr("preflight.captured.dmesg.MOST_LINES", 100)
    text = "".join(f"[{n}.000000] usb 1-1: harmless {n}\n" for n in range(400))
    said = verdicts(f"{text}[600.1] NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus\n")
    assert said["gpu"].outcome is Outcome.FAIL
    assert "0000:1b:00" in said["gpu"].sentence


def test_a_storm_is_one_line_with_its_number() -> None:
    """Programs that come and go draw the same Xid a thousand times: it is told once."""
    lines = (
        f"[{n}.5] NVRM: Xid (PCI:0000:1b:00): 31, pid={n}, name=python3, MMU Fault\n"
        for n in range(1_000)
    )
    captured = read("".join(lines))
    assert captured is not None
    assert captured.facts.kernel_log is not None
    (line,) = captured.facts.kernel_log.lines
    assert (line.times, line.at_s, line.last_s) == (1_000, 0.5, 999.5)
    assert not captured.damaged


def test_a_log_with_more_kinds_of_lines_than_are_kept_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was not read may be the fault: unknown, with how much was read."""
    monkeypatch.setattr("preflight.captured.dmesg.MOST_LINES", 100)
    text = "".join(f"[{n}.0] mlx5_core 0000:1b:00.0: note {n}\n" for n in range(300))
    captured = read(text)
    assert captured is not None
    assert captured.damaged == "only 100 of its 300 or more lines could be read"
    sound(captured)


@given(st.text(max_size=500) | st.binary(max_size=500).map(lambda raw: raw.decode("latin-1")))
def test_nothing_breaks_the_reader(noise: str) -> None:
    """Bytes of any kind after a line of the kernel give verdicts; facts that can travel."""
    text = "[    1.000000] Linux version 6.1\n" + noise
    assert len(verdicts(text)) == 5
    sound(read(text))


@pytest.mark.parametrize("before", ["", "[  912.1] "])
def test_an_xid_that_a_monitor_quotes_without_the_drivers_name(before: str) -> None:
    """The line begins with "Xid", behind the log's stamp or without one."""
    text = f"{before}Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.\n"
    (said,) = (one for one in judge_captured({"log": read(text)}) if one.check == "gpu.xid")
    assert said.verdict.outcome is Outcome.FAIL
