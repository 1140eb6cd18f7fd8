"""A kernel log is read however it was printed, and nothing in it breaks the reader."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.captured.dmesg import parse, split_stamp
from preflight.checks.gpu.driver_log import gpu_faults, root_causes
from preflight.facts.boards import GRADES, catalog, xid_info

SAID = "NVRM: Xid (PCI:0000:1b:00): 79, pid=7, name=x, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("prefix", "at_s"),
    [
        ("", None),
        ("[   12.345678] ", 12.345678),
        ("[12.34] ", 12.34),
        ("[  130.456250] [ T1946] ", 130.45625),
        ("[  130.456250][    C1] ", 130.45625),
        ("[   12.345678 <    0.000005>] ", 12.345678),
        ("[Mon Nov  2 06:07:08 2026] ", None),
        ("[Nov 2 06:07] ", None),
        ("[  +0.000012] ", None),
        ("kern  :err   : 2026-11-02T06:07:08,502716+00:00 ", None),
        ("kern  :warn  : [   12.345678] ", 12.345678),
        ("2026-11-02T06:07:08,502716+01:00 ", None),
        ("2026-11-02T06:07:08.502716+01:00 node7 kernel: ", None),
        ("2026-11-02 06:07:08 node7 kernel: ", None),
        ("Nov 02 06:07:08 node7 kernel: ", None),
        ("Nov  2 06:07:08 node-7.cluster kernel: [   12.345678] ", 12.345678),
        ("[   12.345678] node7 kernel: ", 12.345678),
        ("kernel: ", None),
        ("<4>[   12.345678] ", 12.345678),
        ("<4>", None),
        ("4,1234,12345678,-;", 12.345678),
        ("4,1234,12345678,-,caller=T1;", 12.345678),
        ("> [   12.345678] ", 12.345678),
        ("\x1b[32m[   12.345678] \x1b[0m", 12.345678),
        ("ticket:371;", None),
        ("févr. 12 06:07:08 node7 kernel: ", None),
        ("Okt 12 06:07:08 node7 kernel: ", None),
        ("11月  2 06:07:08 node7 kernel: ", None),
        ("n042: [   12.345678] ", 12.345678),
        ("n042.cluster: [Sun Feb 23 16:24:18 2025] ", None),
        ("gpu-7: 2026-11-02T06:07:08,502716+01:00 ", None),
        ("gpu-7: Nov  2 06:07:08 gpu-7 kernel: ", None),
    ],
)
def test_every_style_of_stamp_is_taken_off(prefix: str, at_s: float | None) -> None:
    """The kernel's text remains, with the time since boot where it is known."""
    (line,) = parse(prefix + SAID + "\n").lines
    assert (line.text, line.at_s) == (SAID, at_s)


def test_a_text_that_goes_on_indented_is_one_line() -> None:
    """The driver breaks long sentences; a call trace has stamps of its own and stays apart."""
    log = parse(
        "[1.0] NVRM: The NVIDIA GPU 0000:5d:00.0\n"
        "      NVRM: (PCI ID: 10de:2330) installed in this system has\n"
        "      NVRM: fallen off the bus\n"
        "[2.0]  show_stack+0x52/0x5c\n"
    )
    assert [each.slot for each in gpu_faults(log.lines)] == ["0000:5d:00"]
    assert len(log.lines) == 2


@pytest.mark.parametrize("path", ["x", "a" * 600])
@pytest.mark.parametrize("stamp", ["", "[   12.345678] ", "[12.3] "])
def test_a_file_whose_name_has_two_lines_is_one_line(path: str, stamp: str) -> None:
    """dmesg(1) breaks a text at its line ends, and indents the rest below its beginning."""
    rest = f"               {stamp}{SAID}' started with executable stack\n"
    log = parse(f"[   12.345678] process '{path}\n{rest}")
    assert gpu_faults(log.lines) == []
    assert log.seen == 1


def test_an_indented_paste_keeps_its_lines() -> None:
    """Four blanks before every line are a quotation, no continuation."""
    assert parse(f"    {SAID}\n    {SAID}\n").seen == 2


@pytest.mark.parametrize(
    "before",
    [
        "Nov  2 06:07:08 node7 node_exporter[42]: last line seen: ",
        "Nov  2 06:07:08 node7 sudo:    alice : TTY=pts/0 ; COMMAND=/usr/bin/grep ",
        "2026-11-02T06:07:08.502716+01:00 node7 bash[77]: ",
        "Nov  2 06:07:08 node7 watcher: saw ",
        "[   12.345678] systemd[1]: ",
        "node7 root: ",
        "# ",
    ],
)
def test_who_quotes_the_kernel_is_not_the_kernel(before: str) -> None:
    """A program's line, a command or a comment with an Xid in it counts against no GPU."""
    log = parse(f"{before}{SAID}\n[   13.000000] usb 1-1: new device\n")
    assert gpu_faults(log.lines) == []
    assert (log.seen, len(log.lines), log.dropped) == (2, 1, 0)


def test_a_log_of_which_all_lines_are_comments_is_judged() -> None:
    """It was pasted so; beside a line that is none, a comment quotes."""
    log = parse(f"  #     {SAID}\n  #     usb 1-1: new device\n  #\n")
    assert [each.text for each in log.lines] == [SAID, "usb 1-1: new device"]
    assert gpu_faults(log.lines)
    assert gpu_faults(parse(f"# {SAID}\nusb 1-1: new device\n").lines) == []


@pytest.mark.parametrize(
    "line",
    [
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
        "nvme nvme0: controller is down; will reset",
        "NMI watchdog: Watchdog detected hard LOCKUP on cpu 4",
        "Memory failure: 0x1f: recovery action for dirty page: Recovered",
        "pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0",
    ],
)
def test_the_kernels_own_words_are_no_programs(line: str) -> None:
    """What has a name and a colon before it may well be the kernel's."""
    assert [each.text for each in parse(f"Nov  2 06:07:08 node7 kernel: {line}").lines] == [line]
    assert [each.text for each in parse(line).lines] == [line]


@given(st.text(max_size=2000))
def test_no_text_breaks_the_reader(text: str) -> None:
    """Whatever it holds: lines are printable and bounded, and the judges' readers take them."""
    log = parse(text)
    assert all(line.text.isprintable() and len(line.text) <= 512 for line in log.lines)
    root_causes(gpu_faults(log.lines))
    for line in text.splitlines():
        split_stamp(line)


@given(st.lists(st.sampled_from([13, 31, 43, 45, 48, 63, 74, 79, 94, 95, 119, 154]), min_size=1))
def test_an_echo_always_has_a_cause(codes: list[int]) -> None:
    """However Xids come together, at least one remains, and the gravest is never left out."""
    lines = "\n".join(f"NVRM: Xid (PCI:0000:1b:00): {code}, x" for code in codes)
    found = gpu_faults(parse(lines).lines)
    left = root_causes(found)
    assert left
    assert min(GRADES.index(each.grade) for each in left) == min(
        GRADES.index(each.grade) for each in found
    )


def test_the_catalog_agrees_with_what_all_vendors_say() -> None:
    """Every list read calls these grave, and none drains for what a program does."""
    for code in (48, 62, 64, 74, 79, 119, 120):
        assert xid_info(code).grade in ("fatal", "reset")
    for code in (13, 31, 43, 45):
        assert xid_info(code).grade == "application"
    assert {each.grade for each in catalog().values()} == set(GRADES)
    assert all(each.meaning and each.advice and each.source for each in catalog().values())
