"""What leaves a node of its kernel log: the lines that matter, each kind once, and no others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert
from probe import kernel_log, node_files

from preflight.checks.gpu.driver_log import repeated_exceptions
from preflight.core.thresholds import SHIPPED
from preflight.facts.machine import KernelLog

from .node import Remote, system_python
from .test_probe import probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

pytestmark = pytest.mark.slow

XID = "NVRM: Xid (PCI:0000:{}:00): {}, pid=7, name=python3, {}"


def written(path: Path, *lines: tuple[float, str]) -> str:
    """Write records as /dev/kmsg gives them; return the path."""
    records = (f"4,{n},{at * 1e6:.0f},-;{text}\n SEQ=1\n" for n, (at, text) in enumerate(lines))
    path.write_text("".join(records))
    return str(path)


def log_of(path: str, **more: object) -> KernelLog:
    """Return what the probe tells of that log."""
    log = probe(Remote("probe"), sysfs="/nowhere", kmsg=path, **more).kernel_log
    assert log is not None
    return log


def test_only_lines_that_matter_leave_the_node(tmp_path: Path) -> None:
    """An Xid travels with its time; users' lines, addresses and start-up chatter stay."""
    path = written(
        tmp_path / "kmsg",
        (1.0, "Command line: root=/dev/sda1 secret=hunter2"),
        (2.5, "audit: type=1400 comm=alices-program name=/home/alice"),
        (3.25, XID.format("1b", 79, "GPU has fallen off the bus.")),
        (4.0, "IN=eth0 OUT= SRC=10.0.0.1 DST=10.0.0.2"),
    )
    log = log_of(path)
    assert (log.source, log.seen, log.begins_s) == ("kmsg", 4, 1.0)
    assert [(line.at_s, line.times) for line in log.lines] == [(3.25, 1)]
    assert "fallen off" in log.lines[0].text


def test_a_storm_is_one_line_with_a_count(tmp_path: Path) -> None:
    """Five thousand corrected errors of one device are one line: first, last and number."""
    line = "pcieport 0000:80:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer"
    log = log_of(written(tmp_path / "kmsg", *((float(n), line) for n in range(5000))))
    assert [(one.at_s, one.last_s, one.times) for one in log.lines] == [(0.0, 4999.0, 5000)]


def test_xids_that_name_other_causes_are_distinguished(tmp_path: Path) -> None:
    """The cause may have no line of its own any more: it must not be lost in a count."""
    named = [XID.format("1b", 45, f"Ch 00000003 caused by previous Xid {n}") for n in (31, 149, 31)]
    log = log_of(written(tmp_path / "kmsg", *((float(n), each) for n, each in enumerate(named))))
    assert [one.times for one in log.lines] == [2, 1]


def test_kills_for_memory_are_distinguished_by_user(tmp_path: Path) -> None:
    """Which user's process was killed says whether it was a rank; a name may look like a user."""
    text = "Out of memory: Killed process {} ({}) total-vm:9kB, shmem-rss:0kB, UID:{} pgtables:9kB"
    kills = [text.format(*each) for each in ((7, "py", 1), (8, "py", 2), (9, "py", 1))]
    log = log_of(written(tmp_path / "kmsg", *((float(n), each) for n, each in enumerate(kills))))
    assert [(one.text, one.times) for one in log.lines] == [(kills[0], 2), (kills[1], 1)]


@pytest.mark.parametrize(
    "line",
    [
        "nvidia 0000:4a:00.0: AER: can't recover (no error_detected callback)",
        "pcieport 0000:49:01.0: AER: device recovery failed",
        "pcieport 0000:49:01.0: device recovery successful",
        "mlx5_core 0000:1a:00.0 ens1f0np0: Link up",
        "ixgbe 0000:1b:00.0 eno1: NIC Link is Up 10 Gbps, Flow Control: None",
    ],
)
def test_what_else_a_judge_needs_leaves_the_node(tmp_path: Path, line: str) -> None:
    """How a recovery ended tells a dead GPU from a well one; links that come up again flap."""
    assert [one.text for one in log_of(written(tmp_path / "kmsg", (1.0, line))).lines] == [line]


def test_kinds_of_lines_have_bounds(tmp_path: Path) -> None:
    """What is beyond them is counted, not forgotten, and crowds out no other kind."""
    lines = [
        (n / 10, f"EDAC MC0: 1 CE memory read error on DIMM{n} (page:0x1)") for n in range(300)
    ]
    xid = XID.format("1b", 48, "DBE")
    log = log_of(written(tmp_path / "kmsg", *lines, (31.0, xid)))
    assert len(log.lines) == kernel_log.MOST_OF_A_KIND + 1
    assert log.dropped == 300 - kernel_log.MOST_OF_A_KIND
    assert log.lines[-1].text == xid


def _crash(at_s: float, places: str, pid: int = 7) -> list[tuple[float, str]]:
    """What one crash of a program writes: three lines for each processor that it ran on."""
    lines = []
    for tpc in places:
        where = f"(GPC 2, TPC {tpc}, SM 0)"
        start = f"NVRM: Xid (PCI:0000:1b:00): 13, pid={pid}, name=python3, Graphics "
        lines += [f"{start}SM Warp Exception on {where}: Out Of Range Address"]
        lines += [f"{start}SM Global Exception on {where}: Multiple Warp Errors"]
        lines += [f"{start}Exception: ESR 0x5{tpc}=0x124000e"]
    return [(at_s + n / 1000, line) for n, line in enumerate(lines)]


def test_of_a_programs_exceptions_travels_whether_their_place_changes(tmp_path: Path) -> None:
    """A crash all over a GPU is two lines with places, one on a single part is one; times stay."""
    lines = [*_crash(10.0, "0123456789"), *_crash(100.0, "5"), *_crash(200.0, "5", pid=8)]
    log = log_of(written(tmp_path / "kmsg", *lines))
    places = [(line.text.partition("(GPC")[2][:9], line.at_s) for line in log.lines]
    assert [one for one in places if one[0]] == [
        (" 2, TPC 0", 10.0), (" 2, TPC 1", 10.003), (" 2, TPC 5", 100.0), (" 2, TPC 5", 200.0),
    ]  # fmt: skip
    assert sum(line.times for line in log.lines) == len(lines)
    assert repeated_exceptions(log.lines, limit=SHIPPED)["0000:1b:00"].bursts == 2


def test_a_program_that_crashes_all_day_crowds_nothing_out(tmp_path: Path) -> None:
    """Beyond a bound one line per GPU counts them; it has the last time, and other Xids stay."""
    lines = [line for n in range(200) for line in _crash(100.0 * n, "12", pid=n)]
    last = XID.format("1b", 48, "DBE")
    log = log_of(written(tmp_path / "kmsg", *lines, (30000.0, last)))
    assert len(log.lines) == kernel_log.MOST_CRASH_LINES + 2
    assert (log.lines[-1].text, log.dropped) == (last, 0)
    assert sum(line.times for line in log.lines) == len(lines) + 1
    assert max(line.last_s or 0 for line in log.lines[:-1]) > 19900


def test_lines_before_a_driver_was_loaded_stay_apart_from_later_ones(tmp_path: Path) -> None:
    """The same Xid before and after is two lines, with the loading between them."""
    xid = XID.format("1b", 48, "DBE")
    loading = "nvidia-nvlink: Nvlink Core is being initialized, major device number 235"
    log = log_of(written(tmp_path / "kmsg", (1, xid), (2, xid), (3, loading), (4, xid)))
    assert [line.times for line in log.lines] == [2, 1, 1]
    assert log.lines[1].text == loading


def test_a_window_leaves_out_what_was_before_it(tmp_path: Path) -> None:
    """Asked for the last half of the time since the boot, an Xid of the first does not come."""
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    old, new = XID.format("1b", 48, "DBE"), XID.format("2b", 79, "fell")
    path = written(tmp_path / "kmsg", (0.1 * now_s, old), (0.9 * now_s, new))
    log = log_of(path, kernel_log_since_s=now_s / 2)
    assert [line.text for line in log.lines] == [new]
    assert log.after_s == pytest.approx(now_s / 2, abs=120)


def test_a_text_of_several_lines_is_one_record(tmp_path: Path) -> None:
    """The kernel escapes line ends inside a record; they travel as blanks."""
    parts = ("NVRM: The NVIDIA GPU 0000:5d:00.0", "(PCI ID: 10de:2330)", "fallen off the bus")
    text = "\\x0aNVRM: ".join(parts)
    (line,) = log_of(written(tmp_path / "kmsg", (1, text))).lines
    assert line.text.endswith("10de:2330) NVRM: fallen off the bus")


def test_a_log_that_may_not_be_read_is_none_with_the_reason(tmp_path: Path) -> None:
    """Neither the device nor a program gives an ordinary user the log: None, and why."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    if Path("/proc/sys/kernel/dmesg_restrict").read_text().strip() != "1":
        pytest.skip("here everybody may read the kernel log")
    path = Path(written(tmp_path / "kmsg", (1, XID.format("1b", 79, "x"))))
    path.chmod(0o600)
    remote = Remote("probe", user=65534, python=system_python())
    facts = probe(remote, sysfs="/nowhere", kmsg=str(path))
    assert facts.kernel_log is None
    assert f"kernel log: {path}: Permission denied" in facts.problems


def test_an_empty_log_is_no_log(tmp_path: Path) -> None:
    """A running kernel has logged something: an empty log is unknown, not healthy."""
    facts = probe(Remote("probe"), sysfs="/nowhere", kmsg=written(tmp_path / "kmsg"))
    assert facts.kernel_log is None
    assert "kernel log: it is empty" in facts.problems  # other processes may have troubles, too


def test_the_running_kernels_own_log_is_read_whole() -> None:
    """The real device gives a record at a time and ends where there is no more."""
    try:
        os.close(os.open(kernel_log.LOG, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        pytest.skip("this login may not read the kernel log")
    log = log_of(kernel_log.LOG)
    assert log.seen > 0
    assert log.begins_s is not None
    assert log.source == "kmsg"


class Ring:
    """The device by the kernel's rules: a record a read, EAGAIN at its end, EPIPE where lapped."""

    def __init__(self, *lines: str, room: int = 10**6, grows: int = 0) -> None:
        self.records = [f"4,{n},{n * 1000000},-;{line}\n" for n, line in enumerate(lines)]
        self.at: list[int] = []
        self.room, self.grows = room, grows

    def open_regular(self, _path: str) -> tuple[int, None]:
        """Stand at the oldest record."""
        self.at.append(max(0, len(self.records) - self.room))
        return len(self.at) - 1, None

    def lseek(self, file: int, _offset: int, _whence: int) -> int:
        """Stand behind the newest; the device has no size."""
        self.at[file] = len(self.records)
        return 0

    def read(self, file: int, _most: int) -> bytes:
        """Give one record."""
        for n in range(len(self.records), len(self.records) + self.grows):
            self.records.append(f"4,{n},{n * 1000000},-;NVRM: API mismatch: the client 'x'\n")
        oldest = max(0, len(self.records) - self.room)
        if self.at[file] < oldest:
            self.at[file] = oldest
            raise BrokenPipeError
        if self.at[file] >= len(self.records):
            raise BlockingIOError
        self.at[file] += 1
        return self.records[self.at[file] - 1].encode()


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Callable[[Ring], KernelLog]:
    """Reads such a device."""

    def read(ring: Ring) -> KernelLog:
        monkeypatch.setattr(node_files, "open_regular", ring.open_regular)
        monkeypatch.setattr(os, "read", ring.read)
        monkeypatch.setattr(os, "lseek", ring.lseek)
        log = kernel_log._read_device(kernel_log.LOG, 0.0)
        monkeypatch.undo()
        return convert(log, KernelLog)

    return read


@pytest.mark.parametrize("grows", [0, 1, 3])
def test_a_log_that_grows_as_fast_as_it_is_read_hides_nothing(
    reading: Callable[[Ring], KernelLog], grows: int
) -> None:
    """Reading ends at what came after it began: nothing before that is lost."""
    xid = XID.format("1b", 48, "DBE")
    log = reading(Ring(*["Linux version 6.1"] * 500, xid, grows=grows))
    assert [line.text for line in log.lines] == [xid]
    assert (log.dropped, 501 <= log.seen < 700) == (0, True)


def test_records_that_were_overwritten_while_it_read_are_counted(
    reading: Callable[[Ring], KernelLog],
) -> None:
    """Also where the time is over; of the oldest, which any new line drives out, nothing is."""
    log = reading(Ring(*["Linux version 6.1"] * 500, room=500, grows=2))
    assert log.dropped == log.dropped_of["any"] > 0
    quiet = Ring(*["Linux version 6.1"] * 500, room=400)
    assert reading(quiet).dropped == 0


def test_a_plain_file_is_read_as_far_as_it_was_written(tmp_path: Path) -> None:
    """It may grow without end meanwhile."""
    path = Path(written(tmp_path / "kmsg", *((float(n), "chatter") for n in range(2000))))
    pieces, size = 0, path.stat().st_size
    for _piece in kernel_log._Device(str(path)).pieces():
        pieces += 1
        with path.open("a") as log:
            log.write("4,1,1,-;NVRM: API mismatch\n" * 1000)
        assert pieces <= size // 8192 + 1
    assert pieces


def test_reading_that_takes_too_long_ends_with_what_there_is(
    reading: Callable[[Ring], KernelLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half an answer that says so, not none."""
    monkeypatch.setattr(kernel_log, "READ_S", 0.0)
    assert reading(Ring("Linux version 6.1")).dropped_of == {"any": 1, "later": 1}


@pytest.mark.parametrize(("priority", "kept"), [(0, 1), (4, 1), (7, 1), (12, 0), (30, 0)])
def test_what_programs_write_is_not_the_kernels(tmp_path: Path, priority: int, kept: int) -> None:
    """So does systemd, and users name their units: syslog's facility tells them apart."""
    path = tmp_path / "kmsg"
    xid = XID.format("1b", 48, "DBE")
    path.write_text(f"6,1,5,-;Linux version 6.1\n{priority},2,7,-;{xid}\n")
    log = log_of(str(path))
    assert (len(log.lines), log.seen) == (kept, 1 + kept)


def test_the_node_tells_crashes_apart_as_finely_as_the_judge_needs() -> None:
    """The judge's limit may be longer, never shorter than what the node keeps apart."""
    assert SHIPPED("same_tpc_apart_s") >= kernel_log.APART_S


_PROGRAMS = """
mount --bind "$1/journalctl" /usr/bin/journalctl && mount --bind "$1/dmesg" /usr/bin/dmesg || exit
exec "$2" -c '
import json, sys, time; sys.path.insert(0, sys.argv[1])
from probe import kernel_log as kmsg
problems = []
kmsg.LOG = "/nowhere"
print(json.dumps(kmsg.Readers({}).finish(time.monotonic() + 20, problems)))
' "$3"
"""
CRASH = "process '/home/a\n{}' started with executable stack"


def printed(folder: Path, journal: str, dmesg: str) -> KernelLog:
    """Return what the probe tells where there is no device and the two programs print this."""
    if os.geteuid() != 0 or not all(Path(f"/usr/bin/{each}").exists() for each in _READERS):
        pytest.skip("needs root and both programs to put others in their places")
    for name, words in zip(_READERS, (journal, dmesg), strict=True):
        (folder / f"{name}.txt").write_text(words)
        (folder / name).write_text(
            f"#!/bin/sh\n[ -s {folder}/{name}.txt ] && cat {folder}/{name}.txt\n"
        )
        (folder / name).chmod(0o755)
    payload = Path(__file__).parents[3] / "preflight" / "payload"
    argv = ["unshare", "--mount", "sh", "-c", _PROGRAMS, "sh", folder, sys.executable, payload]
    output = subprocess.run(list(map(str, argv)), capture_output=True, text=True, check=True).stdout
    return convert(json.loads(output), KernelLog)


_READERS = ("journalctl", "dmesg")


def entry(at_s: float, message: object) -> str:
    """One entry as `journalctl -o json` prints it."""
    stamps = {"__MONOTONIC_TIMESTAMP": "1", "_SOURCE_MONOTONIC_TIMESTAMP": f"{at_s * 1e6:.0f}"}
    return json.dumps({**stamps, "SYSLOG_FACILITY": "0", "MESSAGE": message}) + "\n"


def test_a_line_end_in_a_users_word_begins_no_line_of_the_journal(tmp_path: Path) -> None:
    """A text is whole there: as words, as bytes where it has others, null where it is too long."""
    forged = CRASH.format("[    9.000000] " + XID.format("1b", 79, "x"))
    fault, odd = XID.format("2b", 48, "DBE"), XID.format("3b", 62, "x\x01")
    log = printed(
        tmp_path,
        entry(1.0, "Linux version 6.1") + entry(2.0, forged) + entry(3.5, fault)
        + entry(4.0, list(odd.encode())) + entry(5.0, None) + "no JSON\n[]\n",
        "[    1.000000] Linux version 6.1\n",
    )  # fmt: skip
    assert (log.source, log.seen, log.begins_s, log.dropped) == ("journal", 4, 1.0, 0)
    assert [(line.text[:33], line.at_s) for line in log.lines] == [
        (fault[:33], 3.5), (odd[:33], 4.0),
    ]  # fmt: skip


def test_a_line_end_in_a_users_word_begins_no_line_of_dmesg(tmp_path: Path) -> None:
    """Without /dev/kmsg dmesg gives every part the stamp of the whole: the rest is unknown."""
    rest = f"[    2.000000] {XID.format('1b', 79, 'x')}' started with executable stack\n"
    fault = XID.format("2b", 48, "DBE")
    log = printed(
        tmp_path, "",
        "[    1.000000] Linux version 6.1\n[    2.000000] process '/home/a\n" + rest
        + f"[    3.500000] {fault}\n[    4.000000] node7 kernel: {fault}\n",
    )  # fmt: skip
    assert (log.source, log.seen, log.begins_s) == ("dmesg", 4, 1.0)
    assert [(line.text, line.at_s, line.times) for line in log.lines] == [(fault, 3.5, 1)]
    assert log.dropped_of == {"any": 1}


def test_of_dmesg_only_the_kernels_own_records_are_asked(tmp_path: Path) -> None:
    """The real dmesg leaves out what programs sent, also where it has no word before it."""
    dmesg, *options = kernel_log._PROGRAMS["dmesg"]
    if shutil.which(dmesg) is None:
        pytest.skip("no dmesg here")
    (tmp_path / "ring").write_text(
        f"<3>[    1.000000] {XID.format('1b', 48, 'DBE')}\n"
        f"<13>[    2.000000] {XID.format('2b', 79, 'x')}\n<30>[    3.000000] systemd[1]: x\n"
    )
    argv = [dmesg, *options, "-F", str(tmp_path / "ring")]
    output = subprocess.run(argv, capture_output=True, check=True, env={"LC_ALL": "C"}).stdout
    assert [at_s for at_s, _text in kernel_log._stamped(output)] == [1.0]


_JOURNALD = """
import json, os, pty, socket, subprocess, sys, threading, time, tty
kmsg, device = pty.openpty()
tty.setraw(kmsg), tty.setraw(device)
os.environ["JOURNAL_STREAM"] = ""
sh = "mount -t tmpfs t /run && mkdir -p /run/systemd/journald.conf.d /run/log/journal"
sh += " && mount --bind %s /dev/kmsg && mount -t tmpfs t /var/log" % os.ttyname(device)
subprocess.run(sh, shell=True, check=True)
with open("/run/systemd/journald.conf.d/x.conf", "w") as conf:
    conf.write("[Journal]\\nStorage=volatile\\nForwardToKMsg=no\\n")
number = 0
def record(priority, text):
    global number
    number += 1
    os.write(kmsg, b"%d,%d,%d,-;%s\\n" % (priority, number, number * 1000000, text))
    time.sleep(0.1)
daemon = subprocess.Popen([sys.argv[2]], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    while not os.path.exists("/run/systemd/journal/stdout"):
        time.sleep(0.05)
    time.sleep(0.5)
    for priority, text in json.loads(sys.argv[3]):
        record(priority, text.encode())
    subprocess.run(["journalctl", "--sync"], check=True)
    sys.path.insert(0, sys.argv[1])
    from probe import kernel_log
    problems, kernel_log.LOG = [], "/nowhere"
    print(json.dumps(kernel_log.Readers({}).finish(time.monotonic() + 20, problems)))
finally:
    daemon.kill()
    daemon.wait()
"""
JOURNALD = Path("/lib/systemd/systemd-journald")


def test_of_the_journal_only_the_kernels_own_records_are_asked() -> None:
    """The real journald reads back from /dev/kmsg what programs sent there, as the kernel's."""
    if os.geteuid() != 0 or not JOURNALD.exists():
        pytest.skip("needs root and journald to start one of its own")
    fault, forged = XID.format("1b", 48, "DBE"), XID.format("2b", 79, "x")
    lines = [
        (6, "Linux version 6.1"),
        (3, fault),
        (13, f"x[7]: {forged}"),
        (13, f"kernel: {forged}"),
    ]
    payload = Path(__file__).parents[3] / "preflight" / "payload"
    argv = ["unshare", "--mount", sys.executable, "-c", _JOURNALD, payload, JOURNALD]
    done = subprocess.run(
        [*map(str, argv), json.dumps(lines)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    log = convert(json.loads(done.stdout.splitlines()[-1]), KernelLog)
    assert (log.source, [line.text for line in log.lines]) == ("journal", [fault])


def test_what_dmesg_goes_on_with_is_one_text(tmp_path: Path) -> None:
    """The driver breaks long sentences; dmesg indents the rest, or gives it the same stamp."""
    parts = ("NVRM: The NVIDIA GPU 0000:5d:00.0", "NVRM: (PCI ID: 10de:2330)", "NVRM: fell")
    for number, between in enumerate((f"\n{' ' * 15}", "\n[   12.500000] ")):
        folder = tmp_path / str(number)
        folder.mkdir()
        log = printed(folder, "", f"[   12.500000] {between.join(parts)}\n")
        assert [(line.text, line.at_s) for line in log.lines] == [(" ".join(parts), 12.5)]


records = st.lists(
    st.tuples(
        st.none() | st.floats(0, 1e9),
        st.binary(max_size=200)
        | st.binary(max_size=60).map(lambda tail: b"NVRM: Xid (PCI:0000:1b:00): 79" + tail)
        | st.binary(max_size=60).map(lambda tail: b"mlx5_core 0000:1b:00.0: failed" + tail),
    ),
    max_size=40,
)


@given(records, st.floats(0, 1e9))
def test_whatever_the_log_holds_the_document_is_valid(
    records: Iterable[tuple[float | None, bytes]], after_s: float
) -> None:
    """Bytes of any kind give a document that the controller accepts, with clean lines."""
    log = convert(kernel_log.summarize("kmsg", records, after_s), KernelLog)
    assert all(line.text.isprintable() for line in log.lines)


@given(st.binary(max_size=4000))
def test_damaged_records_are_passed_over(tail: bytes) -> None:
    """Whatever a file in the device's place holds, reading it ends."""
    folder = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path("/tmp")
    path = folder / f"preflight-kmsg-{os.getpid()}"
    path.write_bytes(b"4,1,2000000,-;NVRM: Xid (PCI:0000:1b:00): 79, x\n" + tail)
    try:
        log = convert(kernel_log._read_device(str(path), 0.0), KernelLog)
    finally:
        path.unlink()
    assert log.lines[0].at_s == 2.0
