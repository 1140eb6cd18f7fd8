"""A text with several things in it: each is read and judged, none hides another."""

from __future__ import annotations

import json
import os
import random
from functools import cache
from pathlib import Path

import pytest

from preflight.commands.cli import main
from preflight.commands.read import captured_parts, judge_captured
from tests.unit.captured.test_nvidia_smi_text import QUERY, SICK, TABLE
from tests.unit.captured.test_rdma_text import UP, ibstat
from tests.unit.captured.test_topology_text import both, matrix

CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus"
FOLDERS = ("nvidia_smi", "topo", "ib", "dmesg_xid", "ps", "env")
SUFFIXES = (".txt", ".env", ".sh")
"""Not JSON and XML: a document is closed, and nobody pastes text into it."""
XID = "[  912.1] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"


def one_kind() -> dict[str, str]:
    """Texts of the corpus that are of one kind each."""
    paths = (path for folder in FOLDERS for path in sorted((CORPUS / folder).glob("*")))
    texts = {
        str(path.relative_to(CORPUS)): path.read_text(errors="replace")
        for path in paths
        if path.suffix in SUFFIXES
    }
    return {name: text for name, text in texts.items() if len(captured_parts(text)) == 1}


@cache
def _faults(text: str) -> set[tuple[str, str]]:
    parts = {one.kind: one for one in captured_parts(text)}
    return {
        (entry.nodes[0], entry.check)
        for entry in judge_captured(parts)
        if entry.verdict.outcome in ("fail", "warn", "flaky")
    }


@pytest.mark.slow
@pytest.mark.skipif(not CORPUS.exists(), reason="the corpus is not here")
def test_what_follows_another_tools_output_is_read_as_well() -> None:
    """In either order, every kind of the two is found, and every fault of the second is judged."""
    texts = one_kind()
    assert len(texts) > 100
    pick = random.Random(20261124)  # noqa: S311
    tried, unread, hidden = 0, [], []
    while tried < int(os.environ.get("PREFLIGHT_CASES", "100")):
        first, second = pick.sample(sorted(texts), 2)
        kinds = [captured_parts(texts[name])[0].kind for name in (first, second)]
        if len(set(kinds)) < 2:
            continue
        tried += 1
        both = texts[first] + "\n" + texts[second]
        found = {one.kind for one in captured_parts(both)}
        unread += [(first, second, kind) for kind in kinds if kind not in found]
        damaged = {one.kind for one in captured_parts(both) if one.damaged}
        lost = {
            (kind, check)
            for name in (first, second)
            for kind, check in _faults(texts[name]) - _faults(both)
            if kind not in damaged and kind in found
        }
        hidden += [(first, second, one) for one in sorted(lost)]
    assert (unread, hidden) == ([], [])


def test_a_kernel_log_below_a_table_is_no_proof_of_a_quiet_log() -> None:
    """The lines of the table are none of the log's: only what it tells of is judged."""
    table = "\n".join(f"CA 'mlx5_{at}'\n\tCA type: MT4129\n" for at in range(40))
    parts = captured_parts(table + XID)
    (log,) = (one for one in parts if one.kind == "kernel log")
    assert log.checks == ("gpu.xid",)
    (said,) = (each for each in judge_captured({"log": log}) if each.check == "gpu.xid")
    assert said.verdict.outcome == "fail"


def read(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """The outcomes of the parts of a file, by their names in it."""
    (folder / "t").write_text(text)
    main(["read", str(folder / "t"), "--json"])
    files = json.loads(capsys.readouterr().out)["files"]
    return {
        one["file"].removeprefix(f"{folder}/t"): sorted(
            f"{each['check']} {each['outcome']}"
            for each in one["verdicts"]
            if each["outcome"] != "ok"
        )
        for one in files
    }


def _table(errors: str) -> str:
    return TABLE.format(ecc=errors, watts="70W / 700W")


def _p2p(code: str) -> str:
    return f"\tGPU0\tGPU1\nGPU0\tX\t{code}\nGPU1\t{code}\tX\n\n"


def _xml(pending: str) -> str:
    return (
        '<?xml version="1.0" ?>\n<nvidia_smi_log>\n<gpu id="00000000:1B:00.0"><remapped_rows>\n'
        f"<remapped_row_pending>{pending}</remapped_row_pending></remapped_rows></gpu>\n"
        "</nvidia_smi_log>\n"
    )


WELL = QUERY.format(action="None", idle="Active", slow="Not Active", ecc="0")


@pytest.mark.parametrize(
    ("first", "second", "fault"),
    [
        (_table("0"), _table("7"), "gpu.ecc fail"),
        (matrix({}, 8), matrix(both(0, 1, "NV17"), 8), "gpu.topology fail"),
        (_p2p("OK"), _p2p("DR"), "gpu.topology warn"),
        (_xml("No"), _xml("Yes"), "gpu.remap fail"),
        (WELL, SICK, "gpu.recovery fail"),
    ],
    ids=["table", "matrix", "p2p", "xml", "-q"],
)
def test_the_same_output_again_is_read_as_well(
    first: str, second: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two nodes or two times, in either order: a reader takes the first one of a text."""
    for text, sick in ((f"{first}\n{second}", 2), (f"{second}\ngpu02:\n{first}", 1)):
        outcomes = read(tmp_path, text, capsys)
        assert list(outcomes) == [" (output 1)", " (output 2)"]
        assert [number for number in (1, 2) if fault in outcomes[f" (output {number})"]] == [sick]


def test_what_follows_many_outputs_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log of `nvidia-smi -l` may have any number of tables."""
    outcomes = read(tmp_path, _table("0") * 66 + XID, capsys)
    assert len(outcomes) == 65
    assert list(outcomes)[-1] == " (after output 64)"
    assert main(["read", str(tmp_path / "t")]) == 3


CSV = "index, name, remapped_rows.failure\n0, NVIDIA H100, No\n1, NVIDIA H100, Yes\n"
STATISTICS = """Settings for eth0:
\tSupported link modes:   200000baseSR4/Full
\tSpeed: 200000Mb/s
\tLink detected: yes
NIC statistics:
     rx_packets: 1000000
     tx_packets: 1000000
     rx_crc_errors_phy: 500000
"""


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"{matrix({}, 8)}\n" + "\n".join(["Legend:"] * 60) + f"\n{CSV}", "gpu.remap fail"),
        (STATISTICS, "net.ethernet warn"),
        (
            matrix(both(0, 1, "NV17"), 8).replace("\n", "\\n").replace("\t", "\\t"),
            "gpu.topology fail",
        ),
    ],
    ids=["csv far below", "ethtool -S below ethtool", "line ends as a log's field has them"],
)
def test_a_fault_in_a_later_part_is_found(
    text: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Columns below the fiftieth line, statistics below settings, line ends that are escaped."""
    assert fault in [one for each in read(tmp_path, text, capsys).values() for one in each]


PREFIX = "Nov 24 10:12:01 gpu-node-0123.cluster kernel: "
LOG = [f"{PREFIX}usb 1-{at % 9}: new high-speed USB device number {at}" for at in range(250)]
FAULT = (
    f"{PREFIX}mlx5_core 0000:1a:00.0: poll_health:801:(pid 0): device's health compromised - "
    "reached miss count"
)


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 72, 80, 100, 115])
def test_a_wrapped_log_is_never_ok(
    width: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A terminal wraps its lines, and a fault is torn in two; whole, the log is ok or a fault."""
    lines = [*LOG[:100], FAULT, *LOG[100:]]
    torn = [line[at : at + width] for line in lines for at in range(0, len(line), width)]
    assert any("fail" in each for each in read(tmp_path, "\n".join(lines), capsys)[""])
    assert any("unknown" in each for each in read(tmp_path, "\n".join(torn), capsys)[""])
    noted = "\n".join(["-- Boot 3f5 --", *LOG, "-- Reboot --", *LOG, "   and more", "root@h:~# "])
    assert read(tmp_path, noted, capsys) == {"": []}


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(" ".join(line.split()) for line in WELL.splitlines()),
        WELL[WELL.index("    Temperature") :],
        TABLE.replace(TABLE.splitlines()[5] + "\n", "").format(ecc="0", watts="70W / 700W"),
        "\n".join(ibstat(*[UP] * 8).splitlines()[5:]),
        "\n".join([*ibstat(*[UP] * 8).splitlines()[:12], *ibstat(*[UP] * 8).splitlines()[31:]]),
    ],
    ids=["-q without indents", "the end of -q", "a table without a row", "ibstat without its head",
         "ibstat without lines between"],
)  # fmt: skip
def test_a_cut_text_is_never_ok(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was in the missing part is unknown."""
    read(tmp_path, text, capsys)
    assert main(["read", str(tmp_path / "t"), "--json"]) in (1, 3)
    (one,) = json.loads(capsys.readouterr().out)["files"]
    assert not [each for each in one["verdicts"] if each["outcome"] == "ok"]


def test_two_environments_in_one_text_are_never_ok(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last value of each setting would win, and hide the first."""
    first = "NCCL_IB_TIMEOUT=1000\nNCCL_DEBUG=WARN\nPATH=/bin\nHOME=/root\n"
    outcomes = read(tmp_path, first + "\n" + first.replace("1000", "20"), capsys)[""]
    assert "env.values unknown" in outcomes
    same = first.replace("1000", "20")
    assert read(tmp_path, same + "\n" + same, capsys) == {"": ["env.debugging not_run"]}


@pytest.mark.parametrize("stamp", ["[Mo Nov 24 10:12:01 2025]", "[lun. nov. 24 10:12:01 2025]"])
def test_the_times_of_dmesg_may_be_in_any_language(
    stamp: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`dmesg -T` prints days and months in the language of the shell."""
    whole = "\n".join([f"{stamp} usb 1-1: new device {at}" for at in range(250)])
    assert read(tmp_path, whole, capsys) == {"": []}
    assert read(tmp_path, f"{whole}\n{stamp} {XID.partition('] ')[2]}", capsys) == {
        "": ["gpu.xid fail"]
    }
