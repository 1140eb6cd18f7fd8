"""What a user may name stands in the kernel's lines: it neither fails a node nor hides a fault."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import convert
from msgspec.structs import replace
from probe import kernel_log

from preflight.captured.dmesg import OF_A_USER as PASTED
from preflight.captured.dmesg import parse
from preflight.checks.gpu.test_kernel_log import judge_xid
from preflight.checks.host.test_host_log import events
from preflight.checks.host.test_host_log import judge_hardware_errors as hardware
from preflight.checks.net.test_nic_log import judge as nic
from preflight.core.thresholds import SHIPPED
from preflight.facts import KernelLog
from preflight.verdict import Outcome, Verdict
from tests.cases import MANY
from tests.unit.checks.test_kernel_log_judges import HGX, JUDGES, node, xid
from tests.unit.payload.users_lines import FORGED, OF_A_PROCESS, PATHS, VERSIONS

comms = st.sampled_from(FORGED) | st.text(
    st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=15
)
paths = st.sampled_from(PATHS) | st.text(
    st.characters(exclude_characters="\0/", codec="utf-8"), min_size=1, max_size=80
)
netdevs = st.from_regex(r"[!-.0-9;-~]{1,15}", fullmatch=True)
versions = st.sampled_from(VERSIONS) | st.text(
    st.characters(exclude_characters="\0", codec="utf-8"), max_size=63
)


def live(*texts: str) -> KernelLog:
    """What leaves a node whose kernel wrote these."""
    records = ((86400.0 * 6, text.encode()) for text in ("Linux version 6.1", *texts))
    return convert(kernel_log.summarize("kmsg", records, 0.0), KernelLog)


def escaped(text: str) -> str:
    """As dmesg prints what is not printable."""
    return "".join(chr(c) if 32 <= c < 127 else f"\\x{c:02x}" for c in text.encode())


def by_dmesg(*texts: str, caller: str = " ") -> KernelLog:
    """What leaves a node without /dev/kmsg: each part of a text has the stamp of the whole.

    In the locale C dmesg escapes each byte that is no ASCII.
    """
    text = "".join(
        f"[{n:5}.000001]{caller}{escaped(part)}\n"
        for n, text in enumerate(("Linux version 6.1", *texts))
        for part in text.split("\n")
    )
    return convert(
        kernel_log.summarize("dmesg", kernel_log._stamped(text.encode()), 0.0), KernelLog
    )


CALLERS = (" ", "[  T123] ", "[    C7] ", " [ T1946] ")
"""What CONFIG_PRINTK_CALLER puts between stamp and text, and util-linux makes of it."""


def judged(log: KernelLog) -> list[Verdict]:
    """By each check of the kernel log."""
    facts = replace(node(), kernel_log=log)
    return [judge(facts) for judge in JUDGES]


WHOLE = (
    "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [{}:4711]",
    "INFO: task {}:4711 blocked for more than 120 seconds.",
    "MCE: Killing {}:4711 due to hardware memory corruption fault at 7f0c1a2b3c4d",
    "BTRFS warning (device sdb): checksum error at logical 1, root 5, inode 1 (path: {})",
    "BTRFS error (device sdb): i/o error at logical 12 on dev /dev/sdb, links 1 (path: a/{}/b)",
    "EXT4-fs error (device sda1): ext4_readdir:2: path {}: bad entry: rec_len, size=4096 fake=0",
)
"""Whole sentences of the kernel with a name that a user chose."""


@pytest.mark.parametrize("sentence", WHOLE)
@given(comms)
@example("IN= OUT=")
@example("a/1: ")
@example("a[1]: ")
@example("a (1): ")
def test_no_name_hides_the_sentence_in_which_it_stands(sentence: str, name: str) -> None:
    """A hung task, a CPU that stood still, broken memory and a broken disk are reported."""
    line = sentence.format(name.encode()[:15].decode("utf-8", "ignore"))
    for log in (live(line), parse(f"[  100.000000] {escaped(line)}")):
        broken = hardware(replace(node(), kernel_log=log), limit=SHIPPED).outcome is not Outcome.OK
        assert broken or [event.times for event in events(log.lines)] == [1], line


@pytest.mark.parametrize("event", ["renamed from veth1", "entered promiscuous mode", "Link is Up"])
def test_a_network_device_called_oops_is_no_bug_of_the_kernel(event: str) -> None:
    """The kernel's own line has an error code and the number of the bug."""
    for log in (live(f"Oops: {event}"), parse(f"[  100.000000] Oops: {event}")):
        assert not events(log.lines)
    for words in ("0002", "Oops: 0000", "general protection fault, probably for 0xdead: 0000"):
        line = f"Oops: {words} [#1] PREEMPT SMP NOPTI"
        for log in (live(line), parse(f"[  100.000000] {line}")):
            assert [one.kind for one in events(log.lines)] == ["oops"]


@given(
    st.lists(
        st.tuples(st.sampled_from(OF_A_PROCESS), comms, paths, versions), min_size=1, max_size=6
    )
)
@example([(text, c, p, VERSIONS[0]) for text in OF_A_PROCESS for c in FORGED for p in PATHS])
@example([(text, FORGED[0], PATHS[0], each) for text in OF_A_PROCESS for each in VERSIONS])
@MANY
@pytest.mark.slow
def test_no_word_of_a_user_fails_a_node(lines: list[tuple[str, str, str, str]]) -> None:
    """A process, a file, a claimed version: whatever it is, the node is not failed."""
    texts = [text.format(comm=comm, path=path, version=each) for text, comm, path, each in lines]
    pasted = "\n".join(f"[  100.000000] {' '.join(text.splitlines())}" for text in texts)
    bare = "\n".join(" ".join(text.splitlines()) for text in texts)
    hexed = "\n".join(f"[  100.000000] {escaped(text)}" for text in texts)
    rsyslog = "\n".join(re.sub("[\0-\x1f]", lambda c: f"#{ord(c[0]):03o}", text) for text in texts)
    for log in (
        live(*texts),
        *(by_dmesg(*texts, caller=each) for each in CALLERS),
        *map(parse, (pasted, bare, hexed, rsyslog)),
    ):
        for verdict in judged(log):
            assert verdict.outcome in {Outcome.OK, Outcome.WARN, Outcome.UNKNOWN}, verdict


FIRST = [text for text in OF_A_PROCESS if text.startswith(("{comm}", "[{comm}", "{path}"))]


@pytest.mark.parametrize("text", FIRST)
@pytest.mark.slow
def test_a_line_that_begins_with_a_users_word_changes_no_verdict(text: str) -> None:
    """Not even to a warning: it is left out."""
    for comm in FORGED:
        for path in PATHS:
            line = text.format(comm=comm, path=path)
            flat = " ".join(line.splitlines())
            for log in (live(line), parse(flat), parse(f"[  100.000000] {flat}")):
                assert {verdict.outcome for verdict in judged(log)} <= QUIET, (line, log)


QUIET = {Outcome.OK, Outcome.UNKNOWN}


@given(comms)
@example("Nonfatal")
@example("a, X Nonfatal")
@example("already poisoned")
@example("IN= OUT= SRC=x ")
@example("IN= OUT= ARP HT")
@example("IN= OUT=")
@example("\x1b]")
@example("\x1b[")
@example("\x9d")
@example("\u200b\u2028\x85")
@MANY
@pytest.mark.slow
def test_no_name_of_a_process_hides_a_fault(comm: str) -> None:
    """A fault that names the process that met it is as grave as with any other name."""
    shown = live(f"Memory failure: 0x7740c0: Sending SIGBUS to {comm[:15]}:4711 due to hardware")
    assert hardware(replace(node(), kernel_log=shown), limit=SHIPPED).outcome is Outcome.FAIL
    for code, words in (
        (145, "RLW_REMAP Fatal XC0 i0 Link 02"),
        (45, "Ch 00000001, errorString CTX SWITCH TIMEOUT, caused by previous Xid 79"),
    ):
        line = xid(code, text=f"pid=4711, name={comm[:15]}, {words}")
        assert (
            judge_xid(HGX, replace(node(), kernel_log=live(line)), limit=SHIPPED).outcome
            is Outcome.FAIL
        )


FAULTS = (
    "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "mce: [Hardware Error]: CPU 17: Machine Check: 0 Bank 9: be00000000800400",
    "Memory failure: 0x7740c0: recovery action for dirty LRU page: Recovered",
    "pcieport 0000:02:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
    "pcieport 0000:02:00.0: DPC: containment event, status:0x1f01 source:0x0000",
    "mlx5_core 0000:1a:00.0: poll_health:840:(pid 0): device's health compromised",
)
NAMES = ("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron")


@pytest.mark.parametrize("facility", range(len(NAMES)))
@pytest.mark.parametrize("fault", FAULTS)
def test_only_the_kernels_own_records_count(facility: int, fault: str) -> None:
    """What a program sent there has another facility, in each form in which logs have one."""
    field = {"SYSLOG_FACILITY": str(facility)}
    entries = [
        {"MESSAGE": "Linux version 6.1", "SYSLOG_FACILITY": "0"},
        {"MESSAGE": fault, **field},
    ]
    stamps = {"__MONOTONIC_TIMESTAMP": "9000000"}
    journal = "".join(json.dumps({**each, **stamps}) + "\n" for each in entries).encode()
    kmsg = f"6,1,5,-;Linux version 6.1\n{facility * 8 + 3},2,9000000,-;{fault}\n"
    decoded = f"{NAMES[facility]:<6}:err   : "
    records = kernel_log._records(iter(kmsg.encode().split(b"\n")))
    for log in (
        convert(kernel_log.summarize("journal", kernel_log._entries(journal), 0.0), KernelLog),
        convert(kernel_log.summarize("kmsg", records, 0.0), KernelLog),
        parse(kmsg),
        parse(f"kern  :info  : [    1.0] Linux version 6.1\n{decoded}[    9.0] {fault}\n"),
        parse(f"kern  :info  : Linux version 6.1\n{decoded}{fault}\n"),
        parse(f"<6>[    1.0] Linux version 6.1\n<{facility * 8 + 3}>[    9.0] {fault}\n"),
    ):
        failed = Outcome.FAIL in [verdict.outcome for verdict in judged(log)]
        assert failed is (facility == 0), log


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_kernel_that_prints_its_callers_hides_no_fault(fault: str, caller: str) -> None:
    """CONFIG_PRINTK_CALLER puts the thread or CPU behind the stamp."""
    log = by_dmesg(fault, caller=caller)
    assert Outcome.FAIL in [verdict.outcome for verdict in judged(log)]


def test_a_journal_without_facilities_is_not_believed() -> None:
    """With each record of the kernel journald writes one: without it the writer is not known."""
    entry = json.dumps({"MESSAGE": FAULTS[0], "__MONOTONIC_TIMESTAMP": "9000000"})
    assert list(kernel_log._entries(entry.encode())) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_piece_of_a_text_is_no_line_of_its_own(fault: str) -> None:
    """Another CPU's line can tear the oom-kill line apart just before a cgroup's name."""
    kmsg = f"6,1,5,-;oom-kill:constraint=CONSTRAINT_MEMCG,cpuset=\n6,3,6,{{}};{fault}"
    for flags, torn in (("c", True), ("c,caller=T7", True), ("-", False), ("-,caller=T7", False)):
        records = kernel_log._records(iter(kmsg.format(flags).encode().split(b"\n")))
        log = convert(kernel_log.summarize("kmsg", records, 0.0), KernelLog)
        for each in (log, parse(kmsg.format(flags))):
            assert (Outcome.FAIL not in [v.outcome for v in judged(each)]) is torn


@given(netdevs, st.sampled_from(["Link down", "Link up", "TX timeout detected"]))
@example("recovered", "Link down")
@example("health", "recovery succeeded")
@MANY
def test_no_name_of_a_network_device_hides_a_fault(name: str, event: str) -> None:
    """A container that has a NIC of its own may name it; the NIC's firmware is no less dead."""
    shown = live(UNWELL, f"mlx5_core 0000:1a:00.0 {name}: {event}")
    assert nic(replace(node(), kernel_log=shown), limit=SHIPPED).outcome is Outcome.FAIL
    alone = live(f"mlx5_core 0000:1a:00.0 {name}: {event}")
    assert nic(replace(node(), kernel_log=alone), limit=SHIPPED).outcome in {
        Outcome.OK,
        Outcome.WARN,
    }


@pytest.mark.parametrize("word", ["Nonfatal", "Non-fatal", "NonFatal"])
def test_the_drivers_own_word_still_counts(word: str) -> None:
    """What the driver itself calls not fatal needs no reset."""
    said = xid(145, text=f"pid=4711, name=python3, RLW_REMAP {word} XC0 i0 Link 02")
    for line in (said, xid(145, text=f"RLW_REMAP {word} XC0 i0 Link 02")):
        assert (
            judge_xid(HGX, replace(node(), kernel_log=live(line)), limit=SHIPPED).outcome
            is Outcome.WARN
        )


WORDS = [chr(97 + n % 26) + chr(97 + n // 26) for n in range(300)]
MCE = "mce: [Hardware Error]: CPU 17: Machine Check: 0 Bank 9: be00000000800400"
UNWELL = "mlx5_core 0000:1a:00.0: poll_health:840:(pid 0): device's health compromised"
MMU = "pid=4711, name={}, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS"
REFUSED = "mlx5_core 0000:1a:00.0: mlx5_cmd_out_err:808:(pid {}): {}(0x200) op_mod(0x0) failed, "

XFS = "XFS (nvme0n1p2): {} should use fallocate; XFS_IOC_{{ALLOC,FREE}}SP ioctl unsupported"


@pytest.mark.parametrize(
    ("noise", "fault"),
    [
        ([OF_A_PROCESS[3].format(comm=f"MCE: Killing {each}") for each in WORDS], MCE),
        ([f"MCE: Killing {each}:4 due to hardware memory corruption at 1" for each in WORDS], MCE),
        ([xid(31, text=MMU.format("recovery action") + each) for each in WORDS], xid(95)),
        ([xid(31, text=MMU.format(f"previous Xid {n}")) for n in range(99)], xid(95)),
        ([xid(45, text=f"caused by previous Xid {n}") for n in range(200)], xid(95)),
        ([f"mlx5_core: option mode: invalid value (failed {each})" for each in WORDS], UNWELL),
        ([REFUSED.format(n, "CREATE_MKEY") + "status bad" for n in range(120)], UNWELL),
        ([REFUSED.format(4711, each) + "status bad" for each in WORDS], UNWELL),
        ([f"mlx5_core 0000:1a:00.0 {each}: Link down" for each in WORDS], UNWELL),
        ([f"mlx5_core 0000:1a:00.0 failed{each}: mixed" for each in WORDS], UNWELL),
        (
            [f"NVRM: API mismatch: the client 'a'\nNVRM: has the version {w}" for w in WORDS],
            "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.",
        ),
        (
            [f"NVRM: option mode: invalid value (fallen off the bus {w})" for w in WORDS],
            "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.",
        ),
        (
            [XFS.format("shut(0x2) error"), *(XFS.format(f"error ({each})") for each in WORDS)],
            "XFS (nvme0n1p2): Filesystem has been shut down due to log error (0x2).",
        ),
        (
            [f"XFS: a ({each} error(4711) possible memory allocation deadlock" for each in WORDS],
            "XFS (sda1): Log I/O Error (0x2) detected at a (b:1).  Shutting down filesystem.",
        ),
        (
            [f"EXT4-fs error (device sda1): x:1: comm ({each}) Remoun: bad" for each in WORDS],
            "EXT4-fs (sda1): Remounting filesystem read-only",
        ),
        (
            [f"XFS: option mode: invalid value (error {each})" for each in WORDS],
            "XFS (sda1): Filesystem has been shut down due to log error (0x2).",
        ),
    ],
)
def test_lines_that_users_bring_about_crowd_out_no_fault(noise: list[str], fault: str) -> None:
    """However many of them there are, before the fault or after it: the node fails all the same."""
    for log in (live(*noise, fault), live(fault, *noise)):
        assert fault in [line.text for line in log.lines]
        assert Outcome.FAIL in [verdict.outcome for verdict in judged(log)]


@pytest.mark.parametrize(
    ("storm", "which"),
    [
        ([f"pcieport {n:04x}:00:00.0: AER: device recovery successful" for n in range(300)], 3),
        ([xid(63, f"{n:04x}:1b:00") for n in range(300)], 0),
        ([f"mlx5_core {n:04x}:1b:00.0: Link up" for n in range(300)], 2),
        ([f"I/O error, dev loop{n}, sector 0" for n in range(300)], 4),
    ],
)
def test_of_too_many_lines_the_newest_stay_and_their_check_is_not_ok(
    storm: list[str], which: int
) -> None:
    """What was let go may have been the fault: other checks do not mind."""
    log = live(*storm)
    assert log.lines[-1].text == storm[-1]
    assert log.dropped == sum(log.dropped_of.values()) == 300 - kernel_log.MOST_OF_A_KIND
    outcomes = [verdict.outcome for verdict in judged(log)]
    assert outcomes[which] in {Outcome.UNKNOWN, Outcome.WARN}
    assert {each for n, each in enumerate(outcomes) if n != which} == {Outcome.OK}
    verdict = judged(log)[which]
    assert verdict.outcome is Outcome.WARN or "204 lines of its kernel log" in verdict.sentence


def test_a_node_and_a_pasted_log_know_the_same_lines() -> None:
    """The code on a node imports nothing of ours: what both must know is compared."""
    assert PASTED == kernel_log.OF_A_USER
