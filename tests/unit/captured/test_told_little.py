# ruff: noqa: E501  lines of tools
"""Whole texts that tell little, or in other words than most: what is said of them, and advised."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preflight.captured import process_listing
from preflight.commands.cli import main
from preflight.commands.read import captured_parts, judge_captured
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.verdict import Verdict

HEAD = """\
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 535.129.03             Driver Version: 535.129.03   CUDA Version: 12.2     |
|-----------------------------------------+----------------------+----------------------+
| GPU  Name                 {model:>13} | Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. |
|                                         |                      |               MIG M. |
|=========================================+======================+======================|
"""
ROW = """\
|   {at}  NVIDIA L40S               {model:>11} | 00000000:{bus:02X}:00.0 Off | {ecc:>20} |
| N/A   31C    P0              68W / 350W |      4MiB / 46068MiB |      0%      Default |
|                                         |                      |                  N/A |
+-----------------------------------------+----------------------+----------------------+
"""
FOOT = """

+---------------------------------------------------------------------------------------+
| Processes:                                                                            |
|  GPU   GI   CI        PID   Type   Process name                            GPU Memory |
|=======================================================================================|
|  No running processes found                                                           |
+---------------------------------------------------------------------------------------+
"""
LOST = (
    "Unable to determine the device handle for GPU 0000:{:02x}:00.0: GPU is lost.  "
    "Reboot the system to recover this GPU\n"
)
LISTED = "GPU {}: NVIDIA L40S (UUID: GPU-1111111{}-2222-3333-4444-555555555555)\n"


def table(model: str = "On", ecc: str = "0") -> str:
    """Two GPUs; `model` is what stands in the column of persistence, as Windows fills it."""
    of_driver = "Persistence-M" if model == "On" else "Driver-Model"
    rows = (ROW.format(at=at, bus=16 + at, model=model, ecc=ecc) for at in range(2))
    return HEAD.format(model=of_driver) + "".join(rows) + FOOT


def verdicts(text: str) -> dict[str, Verdict]:
    """What is said of a text, by check."""
    parts = {one.kind: one for one in captured_parts(text)}
    return {each.check: each.verdict for each in judge_captured(parts)}


@pytest.mark.parametrize("model", ["WDDM", "TCC", "MCDM"])
def test_a_table_of_windows_is_read(model: str) -> None:
    """The column of persistence holds the driver's model there: no damage, and no finding."""
    said = verdicts(table(model))
    assert {one.outcome for one in said.values()} == {Outcome.OK}
    assert said["gpu.ecc"].sentence.startswith("no uncorrectable")


def test_n_is_short_for_not_available() -> None:
    """As narrow columns and scripts leave it of N/A: that reading is not there, all others are."""
    rows = "".join(f"{at}, NVIDIA L4, 00000000:{at + 16:02X}:00.0, N, P0\n" for at in range(2))
    columns = "index, name, pci.bus_id, ecc.errors.uncorrected.volatile.total, pstate\n"
    for text in (table(ecc="N"), columns + rows):
        said = verdicts(text)
        assert said["gpu.ecc"].outcome is Outcome.NOT_RUN
        assert {one.outcome for one in said.values()} == {Outcome.OK, Outcome.NOT_RUN}


def test_gpus_that_are_listed_count_beside_those_that_are_lost() -> None:
    """`nvidia-smi -L` of eight, two of them lost; where none is listed, nobody knows how many."""
    lost = LOST.format(0x12) + LOST.format(0x14)
    six = "".join(LISTED.format(at, at) for at in (0, 1, 3, 5, 6, 7))
    beside, alone = verdicts(lost + six)["gpu.count"], verdicts(lost)["gpu.count"]
    assert beside.outcome is alone.outcome is Outcome.FAIL
    assert beside.sentence.startswith("6 of 8 GPUs answer")
    assert alone.sentence.startswith("2 GPUs did not answer, and no other GPU is listed")
    assert all("0000:12:00.0" in one.sentence for one in (beside, alone))
    eight = verdicts("".join(LISTED.format(at, at) for at in range(8)))
    assert eight["gpu.count"].sentence == "8 GPUs"


@pytest.mark.parametrize(
    "line",
    [
        "Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
        "[  912.1] Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
        "Nov  3 12:00:00 gpu17 kernel: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus",
        "Nov  3 12:00:00 gpu17 kernel: [ 9.1] Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off",
    ],
)
def test_an_xid_is_read_without_the_drivers_name(line: str) -> None:
    """As monitors and short logs quote it."""
    assert verdicts(line + "\n")["gpu.xid"].sentence.startswith("GPU 0000:3b:00: Xid 79")


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (LOST.format(0x12), "capture nvidia-smi -q once the GPUs answer"),
        (table(ecc="strange"), "capture nvidia-smi -q as well, which prints each reading in full"),
        ("[ 1.5] usb 1-1: new high-speed USB device\n", "give the whole log: dmesg, or journalctl -k -b"),
        ("  PID TTY      STAT   TIME COMMAND\n   17 ?        S      0:00 python train.py\n",
         "capture ps -eo pid,ppid,user,stat,wchan:24,etime,args"),
        ("export NCCL_DEBUG=INFO\n" + "torchrun a.py\n" * 65, "give each script separately"),
        (table()[:900], "capture it again, whole and unedited"),
    ],
    ids=["lost", "a strange word", "a part of a log", "ps", "scripts", "cut"],
)  # fmt: skip
def test_only_a_cut_text_is_to_be_captured_again_whole(text: str, advice: str) -> None:
    """A text that is whole and tells too little has another way out."""
    said = {one.advice for one in verdicts(text).values() if one.outcome is Outcome.UNKNOWN}
    assert advice in said
    assert ("capture it again, whole and unedited" in said) == (len(text) == 900)


def test_one_cause_is_one_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What one damaged text leaves unknown is one finding, not sixteen."""
    (tmp_path / "lost.txt").write_text(LOST.format(0x12))
    main(["read", str(tmp_path / "lost.txt")])
    assert capsys.readouterr().out.count("too little can be read") == 1


@pytest.mark.parametrize(
    "name",
    ["nvidia-device-p", "nvidia-device-plugin", "nvidia-gpu-devi", "k8s-device-plugin", "dcgm-exporter"],
)  # fmt: skip
def test_a_device_plugin_is_not_to_be_killed(name: str) -> None:
    """What Kubernetes runs on each GPU holds it by design, under whatever name it is cut to."""
    text = f"                     USER        PID ACCESS COMMAND\n/dev/nvidia0:        root       2210 F...m {name}\n"
    (found,) = process_listing.read(text)
    (said,) = judge_captured({"fuser": found})
    assert (said.verdict.outcome, "kill" in said.verdict.advice) == (Outcome.OK, False)
