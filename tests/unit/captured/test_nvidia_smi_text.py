"""What nvidia-smi printed is judged by the rules of live nodes; a damaged text clears nobody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from preflight.captured import nvidia_smi
from preflight.commands.read import judge_captured
from preflight.verdict import Outcome
from tests.cases import draws
from tests.unit.captured.sound import sound

if TYPE_CHECKING:
    from preflight.captured import Captured
    from preflight.facts.gpu import GpuHealth
    from preflight.verdict import Verdict


def read(text: str) -> Captured | None:
    """The first thing in a text that its tools printed."""
    return next(nvidia_smi.read(text), None)


CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus"
CASES = sorted((CORPUS / "nvidia_smi").glob("*.json"))
FAULTS = ("fail", "warn")

QUERY = """
==============NVSMI LOG==============

Driver Version                            : 570.00
Attached GPUs                             : 1
GPU 00000000:1B:00.0
    Product Name                          : NVIDIA H100
    Persistence Mode                      : Enabled
    GPU Recovery Action                   : {action}
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 1
            Link Width
                Max                       : 16x
                Current                   : 16x
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : {idle}
        Applications Clocks Setting       : Not Active
        SW Power Cap                      : Not Active
        HW Slowdown                       : {slow}
            HW Thermal Slowdown           : {slow}
            HW Power Brake Slowdown       : Not Active
    FB Memory Usage
        Total                             : 81559 MiB
        Used                              : 2000 MiB
        Free                              : 79559 MiB
    Compute Mode                          : Prohibited
    Utilization
        Gpu                               : 99 %
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 1
            SRAM Uncorrectable SEC-DED    : {ecc}
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 0
        Aggregate
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 0
            SRAM Threshold Exceeded       : No
    Temperature
        GPU Current Temp                  : 54 C
        GPU T.Limit Temp                  : 1 C
        GPU Shutdown T.Limit Temp         : -5 C
        GPU Slowdown T.Limit Temp         : -2 C
    GPU Power Readings
        Current Power Limit               : 350.00 W
        Default Power Limit               : 700.00 W
        Min Power Limit                   : 200.00 W
        Max Power Limit                   : 700.00 W
    Fabric
        State                             : In Progress
        Status                            : N/A
    Processes                             : None
"""
WELL = QUERY.format(action="None", idle="Active", slow="Not Active", ecc="0")
SICK = QUERY.format(action="GPU Reset", idle="Not Active", slow="Active", ecc="2")


def row(left: str, middle: str = "", right: str = "") -> str:
    """Draw one row of the table's three columns."""
    return f"|{left:<41}|{middle:>24}|{right:>22}|\n"


RULE = f"+{'-' * 89}+\n"
ROWS = f"+{'-' * 41}+{'-' * 24}+{'-' * 22}+\n"
TABLE = (
    f"{RULE}| NVIDIA-SMI 570.00    Driver Version: 570.00    CUDA Version: 12.8 |\n{ROWS}"
    + row(" GPU  Name                 Persistence-M ", " Bus-Id          Disp.A ", " ECC ")
    + ROWS.replace("-", "=").replace("+", "|", 1)
    + row("   0  NVIDIA H100                    On  ", "   00000000:1B:00.0 Off ", "{ecc} ")
    + row(" N/A   33C    P0             {watts} ", "    9000MiB /  81559MiB ", " 0%  Default ")
    + row("", "", "Disabled ")
    + f"{ROWS}\n{RULE}| Processes: |\n|  No running processes found |\n{RULE}"
)
LINKS = """GPU 0: NVIDIA H100 (UUID: GPU-0)
         Link 0: Replay Errors: 0
         Link 0: Recovery Errors: 3
         Link 0: CRC Errors: 0
"""
CSV = """index, gpu_bus_id, ecc.errors.uncorrected.volatile.total, clocks_event_reasons.hw_slowdown
0, 00000000:1B:00.0, 0, Not Active
1, 00000000:43:00.0, 7, Active
2, 00000000:52:00.0, [GPU is lost], [Unknown Error]
"""


def verdicts(text: str) -> dict[str, Verdict]:
    """What the checks say of a text, by their ids."""
    return {entry.check: entry.verdict for entry in judge_captured({"node": read(text)})}


def outcomes(text: str) -> dict[str, str]:
    """How they end."""
    return {check: verdict.outcome.value for check, verdict in verdicts(text).items()}


def test_a_query_meets_the_live_judges() -> None:
    """Each section reaches its check, and the sentence has its numbers."""
    said = verdicts(SICK)
    assert "3 uncorrectable ECC errors" in said["gpu.ecc"].sentence
    assert "the driver asks for: GPU reset" in said["gpu.recovery"].sentence
    assert "hardware thermal slowdown" in said["gpu.throttle"].sentence
    assert "54 C, 3 C below its slowdown" in said["gpu.temperature"].sentence
    assert "350 W, 700 W by default" in said["gpu.power"].sentence
    assert "generation 1 while at work" in said["gpu.pcie"].sentence
    assert "compute mode is prohibited" in said["gpu.mode"].sentence
    assert "fabric is in progress" in said["gpu.fabric"].sentence
    assert "2.0 GiB in use and no process listed" in said["gpu.memory"].sentence
    assert said["gpu.readings"].outcome == "ok"


def test_the_reasons_for_its_clocks_in_bits() -> None:
    """The column clocks_event_reasons.active has a number: 0x88 is the hardware's power brake."""
    rows = "index, {}\n0, 0x0000000000000001\n1, {}\n"
    for column in ("clocks_event_reasons.active", "clocks_throttle_reasons.active"):
        verdict = verdicts(rows.format(column, "0x0000000000000088"))["gpu.throttle"]
        assert verdict.outcome == "fail"
        assert verdict.sentence.startswith("GPU1: the hardware power brake")
        assert outcomes(rows.format(column, "0x0000000000000004")) == {"gpu.throttle": "ok"}


def test_what_is_not_there_and_what_fails_differ() -> None:
    """N/A is not run, an error is a finding, and neither is ok."""
    absent = QUERY.format(action="N/A", idle="N/A", slow="N/A", ecc="N/A")
    absent = absent.replace("Parity     : 1", "Parity     : N/A").replace(": 0\n", ": N/A\n")
    said = outcomes(absent)
    assert [said[check] for check in ("gpu.ecc", "gpu.recovery", "gpu.throttle")] == ["not_run"] * 3
    failing = QUERY.format(action="Unknown Error", idle="ERR!", slow="ERR!", ecc="Unknown Error")
    told = outcomes(failing.replace("Parity     : 1", "Parity     : Unknown Error"))
    assert told["gpu.readings"] == "fail"
    assert [told[check] for check in ("gpu.recovery", "gpu.throttle")] == ["unknown"] * 2
    assert "ok" not in {told["gpu.ecc"], told["gpu.readings"]}


def test_the_xml_says_the_same() -> None:
    """The same sections in XML, cut off in the second GPU: what is left can condemn only."""
    names = [
        f"{ram}_{kind}" for ram in ("sram", "dram") for kind in ("correctable", "uncorrectable")
    ]
    counts = "".join(f"<{name}>0</{name}>" for name in names)
    gpu = (
        "<gpu id='00000000:1B:00.0'><product_name>NVIDIA H100</product_name><remapped_rows>"
        "<remapped_row_corr>0</remapped_row_corr><remapped_row_unc>2</remapped_row_unc>"
        "<remapped_row_pending>Yes</remapped_row_pending>"
        "<remapped_row_failure>No</remapped_row_failure></remapped_rows><ecc_errors>"
        f"<volatile>{counts}</volatile><aggregate>{counts}</aggregate></ecc_errors>"
        "<temperature><gpu_temp>30 C</gpu_temp></temperature></gpu>"
    )
    whole = f"<nvidia_smi_log><driver_version>570</driver_version>{gpu}</nvidia_smi_log>"
    said = outcomes(whole)
    assert (said["gpu.remap"], said["gpu.ecc"]) == ("fail", "ok")
    cut = outcomes(whole[: whole.rfind("</nvidia")] + "<gpu><product_na")
    assert (cut["gpu.remap"], cut["gpu.ecc"]) == ("fail", "unknown")
    bomb = '<!DOCTYPE x [<!ENTITY a "b">]>' + whole
    assert "ok" not in outcomes(bomb.replace("<nvidia_smi_log>", "<nvidia_smi_log>&a;")).values()


@pytest.mark.parametrize(
    ("ecc", "watts", "check", "outcome"),
    [
        ("0", "70W /  700W", "gpu.ecc", "ok"),
        ("4", "70W /  700W", "gpu.ecc", "fail"),
        ("N/A", "70W /  700W", "gpu.ecc", "not_run"),
        ("ERR!", "70W /  700W", "gpu.readings", "fail"),
        ("0", "ERR! /  700W", "gpu.readings", "fail"),
        ("0", "70W /  700W", "gpu.memory", "warn"),
    ],
)
def test_the_table(ecc: str, watts: str, check: str, outcome: str) -> None:
    """Three rows per GPU; ERR! is a finding, and memory that no process has is worth a look."""
    assert outcomes(TABLE.format(ecc=ecc, watts=watts))[check] == outcome


@pytest.mark.parametrize(
    "process",
    [
        "|    0   N/A  N/A      5120      C   python train.py        8990MiB |",
        "|    0    3    0       5120      C   ./sim                  8990MiB |",
        "|    0      5120      C   python                           8990MiB |",
        "|    0      5120  C+G   Unknown Error                      8990MiB |",
    ],
)
def test_the_processes_of_old_drivers_and_new(process: str) -> None:
    """Before MIG their table had two columns less; who has the memory is told all the same."""
    idle = TABLE.format(ecc="0", watts="70W /  700W")
    busy = idle.replace("|  No running processes found |", process)
    assert (outcomes(idle)["gpu.memory"], outcomes(busy)["gpu.memory"]) == ("warn", "ok")


def test_processes_without_their_gpus_prove_nothing() -> None:
    """The lower half of the table says who computes, and of no GPU that it is well."""
    lower = (
        f"{RULE}| Processes:                                GPU Memory |\n"
        "|  GPU       PID   Type   Process name      Usage      |\n"
        "|    0      5120      C   Unknown Error     8990MiB |\n" + RULE
    )
    assert set(outcomes(lower).values()) == {"unknown"}


def test_a_memory_that_is_hidden_is_no_damage() -> None:
    """In a container a GPU in MIG mode prints N/A in place of used and total."""
    table = TABLE.format(ecc="0", watts="70W /  700W")
    hidden = table.replace("    9000MiB /  81559MiB ", "                N/A     ")
    assert hidden != table
    said = outcomes(hidden)
    assert (said["gpu.memory"], said["gpu.readings"]) == ("not_run", "ok")
    assert "unknown" not in said.values()


@pytest.mark.parametrize(
    "arrow", ["   <===", "  # here", "      <-- look", "  \N{LEFTWARDS ARROW} !"]
)
def test_what_somebody_wrote_beside_a_value_is_not_a_part_of_it(arrow: str) -> None:
    """People point at the line that matters before they send a text on."""
    section = "    Remapped Rows\n        Pending                           : Yes{}\n"
    assert outcomes(section.format(""))["gpu.remap"] == "fail"
    assert outcomes(section.format(arrow)) == outcomes(section.format(""))


MEMORY = """
GPU 00000000:1B:00.0
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable            : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 0
        Aggregate
            SRAM Correctable              : 0
            SRAM Uncorrectable            : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 0
    Retired Pages
        Single Bit ECC                    : N/A
        Double Bit ECC                    : N/A
        Pending Page Blacklist            : N/A
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 4
        Pending                           : No
        Remapping Failure Occurred        : No
"""
HEADINGS = ("GPU 0", "ECC Errors", "Retired Pages", "Remapped Rows")


def test_a_section_without_one_of_its_lines_proves_nothing() -> None:
    """The tool prints all of a section or none: what a cut took may have been the fault."""
    lines = MEMORY.splitlines()
    assert outcomes(MEMORY) == {"gpu.ecc": "ok", "gpu.remap": "ok"}
    for at, line in enumerate(lines):
        if line.strip() and not line.strip().startswith(HEADINGS):
            cut = read("\n".join([*lines[:at], *lines[at + 1 :]]))
            assert cut is not None
            assert cut.damaged, line


@pytest.mark.skipif(not CORPUS.exists(), reason="the corpus is not here")
def test_a_line_that_a_cut_joined_with_one_of_another_section_proves_nothing() -> None:
    """Of a whole GPU every section is there: the rows that wait to be remapped are gone here."""
    text = (CORPUS / "nvidia_smi" / "gpud_q_a10_remap_pending.txt").read_text()
    before, after = text.split("  : N/A\n    Remapped Rows\n")
    joined = before + " : No\n" + after[after.index("        Bank Remap") :]
    assert "Pending Page Blacklist           : No" in joined
    assert outcomes(text)["gpu.remap"] == "fail"
    assert outcomes(joined)["gpu.remap"] == "unknown"


def test_a_gpu_without_a_section_that_another_has_proves_nothing() -> None:
    """The same driver prints the same sections of each GPU."""
    second = WELL[WELL.index("GPU 0000") :].replace("1B:00.0", "1C:00.0")
    both = WELL.replace("Attached GPUs                             : 1", "") + second
    assert outcomes(both)["gpu.recovery"] == "ok"
    cut = WELL + second.replace("    GPU Recovery Action                   : None\n", "")
    assert outcomes(cut)["gpu.recovery"] == "unknown"


def test_half_a_table_proves_nothing() -> None:
    """Cut anywhere, nothing in it is ok; an error before the cut still is one."""
    whole = TABLE.format(ecc="0", watts="70W /  700W")
    for end in range(whole.index("Driver Version") + 30, len(whole) - 90, 40):
        assert "ok" not in outcomes(whole[:end]).values()
    sick = TABLE.format(ecc="3", watts="70W /  700W")
    assert outcomes(sick[: sick.index("Processes:")])["gpu.ecc"] == "fail"


@pytest.mark.skipif(not CORPUS.exists(), reason="the corpus is not here")
def test_a_table_without_a_row_or_a_gpu_that_it_names_proves_nothing() -> None:
    """Each GPU has as many rows as the head, and a process shows that its GPU is there."""
    text = (CORPUS / "nvidia_smi" / "nge_table_load_h100.txt").read_text()
    lines = text.splitlines(keepends=True)
    first = next(at for at, line in enumerate(lines) if line.startswith("|====="))
    assert "unknown" not in outcomes(text).values()
    for row in (1, 2, 3):
        cut = "".join([*lines[: first + row], *lines[first + row + 1 :]])
        assert "ok" not in outcomes(cut).values(), row
    elsewhere = text.replace("|    0   N/A", "|    5   N/A")
    assert elsewhere != text
    assert "ok" not in outcomes(elsewhere).values()


def test_lists() -> None:
    """Error counters of links, rows of csv, and the warning below a table."""
    assert "retrained 3 times" in verdicts(LINKS)["gpu.nvlink"].sentence
    said = verdicts(CSV)
    assert said["gpu.ecc"].sentence.startswith("GPU1 (0000:43:00.0): 7 uncorrectable")
    assert said["gpu.throttle"].outcome == "fail"
    assert "GPU2 (0000:52:00.0): readings fail: " in said["gpu.readings"].sentence
    assert outcomes(CSV[: CSV.index("1, 0000") + 4])["gpu.ecc"] == "unknown"
    warning = "WARNING: infoROM is corrupted at gpu 0000:1B:00.0\n"
    warned = TABLE.format(ecc="0", watts="70W /  700W") + warning
    assert outcomes(warned)["gpu.inforom"] == "fail"


def counted(*lines: str, head: str = " (UUID: GPU-0)") -> Verdict:
    """What gpu.nvlink says of one GPU with these lines below its name."""
    listed = "".join(f"\t Link {line}\n" for line in lines)
    return verdicts(f"GPU 0: NVIDIA V100X{head}\n{listed}")["gpu.nvlink"]


QUIET = ("0: Replay Errors: 0", "0: Recovery Errors: 0", "0: CRC Errors: 0")


@pytest.mark.proves("gpu.nvlink", finds="a full counter in a pasted listing")
@pytest.mark.proves("gpu.nvlink", unknown="a high total of unknown age in a listing")
def test_totals_of_links_without_a_date() -> None:
    """A full counter is a warning, a high one is unknown, and a few replays are none."""
    assert counted(*QUIET).outcome == "ok"
    assert counted(*QUIET, head="").outcome == "ok"
    assert counted(*QUIET, "1: Replay Errors: 190").outcome == "ok"
    high = counted(*QUIET, "1: Replay Errors: 3170")
    assert high.outcome == "unknown"
    assert high.sentence.startswith("GPU0 NVLink 1: 3170 replays: a total without a start time")
    for full in ("65535", "4294967295"):
        said = counted(*QUIET, f"1: CRC Errors: {full}", "1: Replay Errors: 3170")
        assert said.outcome == "warn"
        assert f"NVLink 1: {full} packets with a wrong checksum, which is all" in said.sentence
    both = counted("1: CRC Flit Errors: 65535", "1: CRC Data Errors: 0", "1: ECC Errors: 0")
    assert both.outcome == "warn"


@pytest.mark.parametrize(
    "line",
    [
        "s 1-5: Replay/Recovery/CRC Errors: 0",
        "1: CRC Errors: 6x5",
        "1: CRC Errors:",
        "1: Repl",
        "",
    ],
)
def test_a_listing_of_links_with_a_line_that_cannot_be_read(line: str) -> None:
    """What it hides may be the fault, in the middle or at the end; what comes after is no part."""
    for lines in ((*QUIET, line), (line, *QUIET)):
        assert counted(*lines).outcome == "unknown"
    whole = LINKS.replace(": 3\n", ": 0\n")
    other = whole.replace("GPU 0", "GPU 1").replace("GPU-0", "GPU-1")
    both = whole + "\nuser@node-7:~$ nvidia-smi nvlink -e -i 1\n" + other
    assert outcomes(both)["gpu.nvlink"] == "ok"
    assert outcomes(whole + "\nuser@node-7:~$ exit\n")["gpu.nvlink"] == "ok"
    assert outcomes(whole.replace("\n", "\n...\n", 1))["gpu.nvlink"] == "unknown"


def test_a_csv_of_few_columns_says_no_more_than_it_tells() -> None:
    """MIG alone is a mode; widths without a maximum are no expectation; one column is enough."""
    mode = verdicts("pci.bus_id, mig.mode.current\n00000000:1B:00.0, Enabled\n")
    assert {check: one.sentence for check, one in mode.items()} == {"gpu.mode": "MIG on"}
    assert "ok" not in outcomes("pci.bus_id, clocks.sm\n00000000:1B:00.0, 210\n").values()
    heat = outcomes("temperature.gpu\n41\n43\n")
    assert heat == {"gpu.readings": "ok"}
    assert outcomes("temperature.gpu\n41\n[Unknown Error]\n") == {"gpu.readings": "fail"}
    lanes = verdicts("index, pcie.link.width.current\n0, 16\n1, 4\n")["gpu.pcie"]
    assert lanes.outcome == "not_run"
    assert lanes.sentence == "PCIe x16 and x4: how many lanes board and slot have is not reported"
    assert outcomes("index, pcie.link.width.current\n0, 16\n1, 16\n")["gpu.pcie"] == "ok"


def test_a_csv_without_header_below_its_command() -> None:
    """The command names the columns; rows in a loop clear nobody: whose they are is not told."""
    command = "ops@n7:~$ nvidia-smi --query-gpu={} --format=csv,noheader{}\n"
    once = command.format("index,temperature.gpu,pstate", "") + "0, 41, P0\n1, 43, P8\n"
    assert outcomes(once) == {"gpu.readings": "ok"}
    loop = command.format("temperature.gpu,pstate", " -l 5") + "41, P0\n{}, P8\n"
    assert outcomes(loop.format("42")) == {"gpu.readings": "unknown"}
    assert outcomes(loop.format("[Unknown Error]")) == {"gpu.readings": "fail"}
    script = (
        "nvidia-smi --query-gpu=index,uuid --format=csv,noheader | while IFS=, read a b\n0, 1\n"
    )
    assert read(script) is None
    assert read(command.format("index,uuid", "") + "for i in 1, 2; do\n") is None


def test_a_number_that_nobody_told_is_not_invented() -> None:
    """DCGM says that there were errors and not how many, nor since when."""
    said = verdicts(
        "| Diagnostic                | Result            |\n"
        "| GPU Memory                | Fail - GPU: 3     |\n"
        "| Error                     | GPU 3 has uncorrectable memory errors |\n"
    )["gpu.ecc"]
    assert said.outcome == "fail"
    assert said.sentence == (
        "GPU3: uncorrectable memory errors are reported, but not how many; 0 expected"
    )


WELL = QUERY.format(action="None", idle="Active", slow="Not Active", ecc="0").replace(
    ": 1\n", ": 0\n"
)


@pytest.mark.parametrize(
    ("printed", "instead", "check"),
    [
        ("SEC-DED    : 0", "SEC-DED    : 0x10", "gpu.ecc"),
        ("SEC-DED    : 0", "SEC-DED    : 0 MiB", "gpu.ecc"),
        ("SEC-DED    : 0", "SEC-DED    : -1", "gpu.ecc"),
        (": 54 C", ": 41 F", "gpu.temperature"),
        (": 54 C", ": 999 C", "gpu.readings"),
        (": 16x\n    Performance", ": 0x\n    Performance", "gpu.pcie"),
        (": 81559 MiB", ": 40 GiB", "gpu.memory"),
        ("HW Slowdown                       : Not Active",
         "HW Slowdown                       : Aktiv", "gpu.throttle"),
        ("HW Slowdown                       : Not Active",
         "HW Slowdown                       : Active (thermal)", "gpu.throttle"),
    ],
)  # fmt: skip
def test_a_reading_in_other_words_or_units_proves_nothing(
    printed: str, instead: str, check: str
) -> None:
    """It is neither taken for a number nor left out: the text is damaged, and says where."""
    assert printed in WELL
    assert outcomes(WELL)["gpu.throttle"] == "ok"
    found = read(WELL.replace(printed, instead))
    assert found is not None
    assert found.damaged.startswith("GPU 0: its ")
    assert outcomes(WELL.replace(printed, instead))[check] == "unknown"


def test_cells_under_the_wrong_heading_blame_nobody() -> None:
    """Memory in MiB is no number of ECC errors, however the columns were shuffled."""
    text = (
        "index, ecc.errors.uncorrected.volatile.total, memory.total [MiB]\n"
        "0, 81559 MiB, 0\n1, 0, 81559 MiB\n"
    )
    assert outcomes(text)["gpu.ecc"] == "unknown"
    bare = "index, temperature.gpu, memory.total [MiB]\n0, 41, 81559\n"
    assert "ok" in outcomes(bare).values()


@pytest.mark.parametrize(
    "text",
    [
        "index, temperature.gpu\n0, 41\n0, 41\n7, 41\n",
        "uuid, temperature.gpu\nGPU-1, 41\nGPU-1, 40\n",
        WELL + WELL[WELL.index("GPU 0000") :],
    ],
)
def test_a_gpu_that_is_told_twice_proves_nothing(text: str) -> None:
    """Somebody pasted one in place of another: the other was not looked at."""
    assert "ok" not in outcomes(text).values()
    assert " GPUs have the " in verdicts(text)["gpu.readings"].sentence


def test_one_gpu_of_eight_does_not_speak_for_the_others() -> None:
    """Seven were attached and are not listed; where only one was asked for it is judged alone."""
    one = WELL.replace("Attached GPUs                             : 0", "Attached GPUs : 8")
    assert "Attached GPUs : 8" in one
    assert "ok" not in outcomes(one).values()
    assert "1 of 8 attached GPUs" in verdicts(one)["gpu.throttle"].sentence
    assert "ok" in outcomes(f"$ nvidia-smi -q -i 3\n{one}").values()


def test_a_row_of_the_table_in_another_unit_proves_nothing() -> None:
    """The temperature is not read as one of Celsius."""
    whole = TABLE.format(ecc="0", watts="70W /  700W")
    assert "ok" in outcomes(whole).values()
    assert "ok" not in outcomes(whole.replace(" 33C ", " 91F ")).values()


@pytest.mark.parametrize(
    "text",
    [
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure",
        "Failed to initialize NVML: Driver/library version mismatch",
        "No devices were found",
    ],
)
def test_a_failure_in_place_of_an_answer(text: str) -> None:
    """It is about the driver, and it is not ok."""
    said = outcomes(text)
    assert set(said) == {"host.driver_hung"}
    assert said["host.driver_hung"] in ("unknown", "fail")
    assert "reload the driver or reboot" in verdicts(text)["host.driver_hung"].advice


def test_a_lost_gpu() -> None:
    """What could not be opened is missing, and is named."""
    lost = "Unable to determine the device handle for GPU0000:0A:00.0: GPU is lost.  Reboot\n"
    verdict = verdicts(lost)["gpu.count"]
    assert (verdict.outcome, "0000:0a:00.0 GPU is lost" in verdict.sentence) == ("fail", True)
    words = "Unable to determine the device handle for GPU {} Unknown Error\n"
    for address, said in (
        ("00:1C:80.1:", "00:1C:80.1 Unknown Error"),
        ("0000:1C:00.0:", "0000:1c:00.0 Unknown Error"),
        ("3: 0000:1C:00.0:", "GPU 3: 0000:1c:00.0 Unknown Error"),
        ("3 000:1C:0.0:", "GPU 3: 000:1C:0.0 Unknown Error"),
    ):
        verdict = verdicts(words.format(address))["gpu.count"]
        assert verdict.outcome == "fail"
        assert said in verdict.sentence
        assert "1 GPU did not answer" in verdict.sentence


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "\x00\x7fELF\x00",
        "Linux gpu1 6.1\n",
        "GPU0: fine",
        "NVRM: Xid 79\nGPU is lost\n",
    ],
)
def test_other_texts_are_not_its_kind(text: str) -> None:
    """Nothing is read into them."""
    assert read(text) is None


@draws(40)
@given(st.text() | st.binary().map(lambda raw: raw.decode("utf-8", "replace")))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Alone or behind the beginning of a real one: none, or facts and verdicts that are sound."""
    for head in ("", QUERY[:300], TABLE[:600], LINKS, CSV, "<nvidia_smi_log><gpu>",
                 "  GPU0 GPU1\nGPU0 X "):  # fmt: skip
        sound(read(head + text))


@draws(60)
@given(st.integers(0, len(SICK)), st.characters(codec="utf-8"))
@example(SICK.index("99 %\n") + 4, "\x1f")
def test_a_garbled_query_never_crashes(at: int, character: str) -> None:
    """One letter changed gives verdicts; with everything after it gone no fault turns to ok."""
    sound(read(SICK[:at] + character + SICK[at + 1 :]))
    faults = {check for check, one in sound(read(SICK)).items() if one.makes_not_ready}
    left = sound(read(SICK[:at]))
    assert faults
    assert not [check for check in faults & left.keys() if left[check].outcome is Outcome.OK]


@pytest.mark.slow
def test_a_huge_text_is_read_in_time() -> None:
    """A hundred thousand lines of one GPU, and numbers of a thousand digits."""
    text = SICK.replace(": 54 C", f": {'9' * 1000} C") + "    Noise : 1\n" * 100_000
    assert read(text) is not None


def case(path: Path) -> tuple[dict[str, Any], Captured, dict[str, Verdict]]:
    """A label, what was read, and what the checks say of it."""
    label = json.loads(path.read_text())
    found = read((CORPUS / label["file"]).read_text(errors="replace"))
    assert found is not None, label["file"]
    return label, found, {e.check: e.verdict for e in judge_captured({"node": found})}


def healths(found: Captured) -> list[GpuHealth]:
    """The readings of all its GPUs."""
    return [gpu.health for gpu in found.facts.gpus or () if gpu.health is not None]


@pytest.mark.corpus
@pytest.mark.skipif(not CASES, reason="the corpus is not here")
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_corpus_is_judged_as_labelled(path: Path) -> None:
    """Faults are found, healthy machines are not blamed, and damaged texts prove nobody healthy."""
    label, found, said = case(path)
    flags, text = label["flags"], label["label"].lower()
    bad = {check for check, verdict in said.items() if verdict.outcome in FAULTS}
    healthy = label.get("label_kind") == "healthy" or text.startswith("healthy")
    if healthy:
        assert not bad
        assert "ok" in {verdict.outcome.value for verdict in said.values()}
    if "damaged" in flags or label.get("cut"):
        assert found.damaged
        assert "ok" not in {verdict.outcome.value for verdict in said.values()}
    for key in ("n_gpus", "gpus_in_file", "n_gpus_listed"):
        count = {**label, **flags}.get(key)
        assert count is None or len(found.facts.gpus or ()) == count
    _readings_are_as_labelled(label, flags, found, said)
    _gpus_are_as_labelled(flags, found, said)


def _readings_are_as_labelled(
    label: dict[str, Any], flags: dict[str, Any], found: Captured, said: dict[str, Verdict]
) -> None:
    all_of = healths(found)
    if flags.get("ecc") == 0:
        assert {health.ecc_volatile_uncorrected for health in all_of} == {0}
    if flags.get("ecc_volatile_uncorrectable"):
        assert said["gpu.ecc"].outcome == "fail"
        assert all_of[0].ecc_volatile_uncorrected == flags["ecc_volatile_uncorrectable"]
        assert all_of[0].sram_aggregate_uncorrected == flags["ecc_aggregate_uncorrectable"]
    if "ecc_volatile_correctable" in flags:
        assert all_of[0].ecc_volatile_corrected == flags["ecc_volatile_correctable"]
    pending = flags.get("remap_pending", flags.get("remapped_rows_pending"))
    if pending is not None:
        assert {health.remap_pending for health in all_of} == {pending}
        assert said["gpu.remap"].outcome == ("fail" if pending else "ok")
    if "remapped_rows_uncorrectable" in flags:
        assert all_of[0].remapped_uncorrected == flags["remapped_rows_uncorrectable"]
    if flags.get("needs_reset"):
        assert "reset" in said["gpu.remap"].advice
    for throttled in label.get("per_gpu_active_throttle", ()):
        (gpu,) = (
            gpu for gpu in found.facts.gpus or () if throttled["gpu"].lower().endswith(gpu.bus_id)
        )
        capped = gpu.health is not None and "power_cap" in (gpu.health.clock_reasons or ())
        assert capped == ("SW Power Cap" in throttled["active_reasons"])
    if flags.get("throttling") is False or flags.get("hw_slowdown") is False:
        assert said["gpu.throttle"].outcome == "ok"
    if "active_clock_reasons" in flags:
        reasons = {name.removesuffix("gpu_idle") != name for name in flags["active_clock_reasons"]}
        idle = {"idle" in (health.clock_reasons or ()) for health in all_of}
        assert idle == (reasons or {False})


def _gpus_are_as_labelled(flags: dict[str, Any], found: Captured, said: dict[str, Verdict]) -> None:
    gpus = found.facts.gpus or ()
    if "inforom_corrupted" in flags:
        corrupted = [g.bus_id for g in gpus if g.health and g.health.inforom_valid is False]
        assert corrupted == flags["inforom_corrupted"]
        assert said["gpu.inforom"].outcome == "fail"
    if "processes" in flags:
        assert sum(len(gpu.processes or ()) for gpu in gpus) == flags["processes"]
    if "err_fields" in flags:
        errors = [line for health in healths(found) for line in health.errors]
        assert [line.partition("_")[0] for line in errors] == (flags["err_fields"] or [])
        assert said["gpu.readings"].outcome == ("unknown" if errors else "ok")
    if "lost_gpu" in flags:
        assert said["gpu.count"].outcome == "fail"
        assert flags["lost_gpu"] in said["gpu.count"].sentence
    if "inactive_gpus" in flags:
        dark = [gpu.index for gpu in gpus if not any(link.up for link in gpu.links or ())]
        assert dark == flags["inactive_gpus"]
        assert said["gpu.topology"].outcome == "ok"
    if "inactive_links" in flags:
        down = {
            str(gpu.index): [link.link for link in gpu.links or () if not link.up] for gpu in gpus
        }
        assert {index: links for index, links in down.items() if links} == flags["inactive_links"]
        assert said["gpu.topology"].outcome == "fail"
    if "p2p_all_ok" in flags:
        assert (said["gpu.topology"].outcome == "ok") == flags["p2p_all_ok"]
    if "faulty_gpu_index" in flags:
        assert said["gpu.remap"].evidence["gpus"] == [flags["faulty_gpu_index"]]
    if "faulty_gpu" in flags:
        assert flags["faulty_gpu"].lower()[4:] in said["gpu.remap"].sentence


def test_seven_gpus_of_any_listing_are_a_finding() -> None:
    """As on a live node: a table, -q and columns list all GPUs there are."""
    rows = "".join(f"{at}, NVIDIA H100 80GB HBM3, P0\n" for at in range(7))
    columns = f"index, name, pstate\n{rows}"
    assert outcomes(columns)["gpu.count"] == "warn"
    assert "gpu.count" not in outcomes(columns + "7, NVIDIA H100 80GB HBM3, P0\n")


@pytest.mark.parametrize(
    ("name", "number", "outcome"),
    [
        ("NVIDIA GB200", 3, "warn"),
        ("NVIDIA GB300", 3, "warn"),
        ("NVIDIA GB200", 2, None),
        ("NVIDIA GB200", 4, None),
        ("NVIDIA H100 80GB HBM3", 3, None),
    ],
)
def test_three_of_a_tray_of_four_are_a_finding(name: str, number: int, outcome: str | None) -> None:
    """A GB200 or GB300 tray has four GPUs, and one, two or all of them are rented."""
    rows = "".join(f"{at}, {name}, P0\n" for at in range(number))
    assert outcomes(f"index, name, pstate\n{rows}").get("gpu.count") == outcome


@pytest.mark.parametrize(
    ("name", "watts", "words"),
    [
        ("NVIDIA H100 80GB HBM3", 300, "power limit 300 W, 700 W on its board"),
        ("NVIDIA A100-SXM4-80GB", 250, "power limit 250 W, 275 W on its board"),
        ("NVIDIA H100 80GB HBM3", 700, ""),
        ("Tesla V100-SXM3-32GB", 350, ""),
        ("NVIDIA H100 PCIe", 300, ""),
        ("NVIDIA GB200", 1000, ""),
    ],
)
def test_a_cap_on_all_gpus_is_a_finding_without_a_default_limit(
    name: str, watts: int, words: str
) -> None:
    """The table has no default limit: the board's lowest one is a witness, and it warns."""
    rows = "".join(f"{at}, {name}, {watts}.00 W\n" for at in range(8))
    said = verdicts(f"index, name, power.limit [W]\n{rows}")["gpu.power"]
    assert (said.outcome, words in said.sentence) == ("warn" if words else "ok", True)


def test_the_nvlink_clique_of_a_text_is_read() -> None:
    """A GPU that joined another clique than those beside it; zeros are no clique."""

    def query(cluster: str) -> str:
        fabric = "        State                             : Completed\n"
        heading = SICK.index("GPU 0000")
        head, block = SICK[:heading], SICK[heading:].replace("In Progress", "Completed")
        joined = f"{fabric}        CliqueId : {{}}\n        ClusterUUID : {cluster}\n"
        parts = [
            block.replace("1B", f"{at}B").replace(fabric, joined.format(2 if at == 3 else 1))
            for at in range(1, 5)
        ]
        return head.replace(": 1\n", ": 4\n") + "".join(parts)

    said = verdicts(query("3b1f0c5e-1111-4222-8333-944444444444"))["gpu.fabric"]
    assert (said.outcome, said.sentence.startswith("GPU2 ")) == ("warn", True), said.sentence
    assert outcomes(query("00000000-0000-0000-0000-000000000000"))["gpu.fabric"] == "ok"
