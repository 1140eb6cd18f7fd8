"""What a user may name stands in the kernel's lines: it neither fails a node nor hides a fault."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import convert
from msgspec.structs import replace
from probe import kernel_log

from checks.test_gpu_xid import judge as judge_xid
from checks.test_host_hardware_errors import judge as hardware
from preflight.facts import KernelLog
from preflight.facts.kernel_text import OF_A_PROCESS as PASTED
from preflight.facts.kernel_text import parse
from preflight.verdict import Outcome, Verdict
from tests.unit.checks.test_kernel_log_judges import HGX, JUDGES, node, xid

SEGFAULT = "segfault at 0 ip 00007f sp 00007f error 4 in {path}[400000+1000]"
OF_A_PROCESS = (
    "{comm}[4711]: " + SEGFAULT,
    "{comm}[4711]: segfault at 0 ip 0 sp 0 error 4 in a[1+2] likely on CPU 3 (core 1, socket 0)",
    "{comm}[4711]: unhandled exception: SP Alignment, ESR 0x9a000000, {comm} in {path}[1+2]",
    "{comm} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "{comm}: page allocation failure: order:4, mode:0x40dc0(GFP_KERNEL), nodemask=(null)",
    "{comm} (4711): drop_caches: 3",
    "{comm} (4711) used greatest stack depth: 11000 bytes left",
    "{comm}/4711: potentially unexpected fatal signal 11.",
    "{comm}: attempt to access beyond end of device",
    "traps: {comm}[4711] general protection fault ip:0 sp:0 error:0 in {path}[1+2]",
    "process '{path}' started with executable stack",
    "INFO: task {comm}:4711 blocked for more than 120 seconds.",
    "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [{comm}:4711]",
    "Out of memory: Killed process 4711 ({comm}) total-vm:1kB, anon-rss:1kB, UID:1000",
    "Memory cgroup out of memory: Killed process 4711 ({comm}) total-vm:1kB, anon-rss:1kB",
    "oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/user/{path},task={comm},pid=4711,uid=1000",
    "CPU: 3 PID: 4711 Comm: {comm} Not tainted 6.1.0",
    "MCE: Killing {comm}:4711 due to hardware memory corruption fault at 4631e000",
    "EXT4-fs error (device sda1): ext4_lookup:1785: inode #2: comm {comm}: bad entry {path}",
    "BTRFS warning (device sdb): checksum error at logical 1, root 5, inode 1 (path: {path})",
    "nfs: server filer not responding, still trying",
    "NVRM: Xid (PCI:0000:1b:00): 13, pid=4711, name={comm}, Graphics Exception: ESR 0x1",
    "NVRM: Xid (PCI:0000:1b:00): 31, pid=4711, name={comm}, Ch 00000008, intr 00000000",
)
"""As the kernel and the NVIDIA driver print them of a process of any user, all without a fault."""

FORGED = (
    "MCE: Killing x",
    "EDAC M: 9 UE on",
    "EDAC MC0: 1 UE ",
    "Memory failure:",
    "mce: [Hardware ",
    "BERT: records f",
    "NVRM: Xid (PCI:",
    "XFS (a): x",
    "a\nEDAC M: 9 UE",
    "Nonfatal",
    "a, X Nonfatal",
    "[Hardware Error",
    "DPC: containmen",
    "Oops: 1",
)
PATHS = (
    "shutdown",
    "forced readonly",
    "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
    "mce: [Hardware Error]: CPU 1: Machine Check: 0 Bank 9: be00000000800400",
    "EDAC MC0: 1 UE memory read error on DIMM0 (channel:0 page:0x1)",
    "mlx5_core 0000:1b:00.0: device's health compromised",
)

comms = st.sampled_from(FORGED) | st.text(
    st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=15
)
paths = st.sampled_from(PATHS) | st.text(
    st.characters(exclude_characters="\0/", codec="utf-8"), min_size=1, max_size=80
)


def live(*texts: str) -> KernelLog:
    """What leaves a node whose kernel wrote these."""
    records = ((86400.0 * 6, text.encode()) for text in ("Linux version 6.1", *texts))
    return convert(kernel_log.told("kmsg", records, 0.0), KernelLog)


def judged(log: KernelLog) -> list[Verdict]:
    """By each check of the kernel log."""
    facts = replace(node(), kernel_log=log)
    return [judge(facts) for judge in JUDGES]


@given(st.lists(st.tuples(st.sampled_from(OF_A_PROCESS), comms, paths), min_size=1, max_size=6))
@example([(text, comm, path) for text in OF_A_PROCESS for comm in FORGED for path in PATHS])
def test_no_name_of_a_process_or_file_fails_a_node(said: list[tuple[str, str, str]]) -> None:
    """Killed for memory, hung, crashed: whatever a user called it, the node is not failed."""
    texts = [text.format(comm=comm, path=path) for text, comm, path in said]
    pasted = "\n".join(f"[  100.000000] {' '.join(text.splitlines())}" for text in texts)
    for log in (live(*texts), parse(pasted)):
        for verdict in judged(log):
            assert verdict.outcome in {Outcome.OK, Outcome.WARN, Outcome.UNKNOWN}, verdict


@given(comms)
@example("Nonfatal")
@example("a, X Nonfatal")
@example("already poisoned")
def test_no_name_of_a_process_hides_a_fault(comm: str) -> None:
    """A fault that names the process that met it is as grave as with any other name."""
    shown = live(f"Memory failure: 0x7740c0: Sending SIGBUS to {comm[:15]}:4711 due to hardware")
    assert hardware(replace(node(), kernel_log=shown)).outcome is Outcome.FAIL
    said = xid(145, said=f"pid=4711, name={comm[:15]}, RLW_REMAP Fatal XC0 i0 Link 02")
    assert judge_xid(HGX, replace(node(), kernel_log=live(said))).outcome is Outcome.FAIL


@pytest.mark.parametrize("word", ["Nonfatal", "Non-fatal", "NonFatal"])
def test_the_drivers_own_word_still_counts(word: str) -> None:
    """What the driver itself calls not fatal needs no reset."""
    said = xid(145, said=f"pid=4711, name=python3, RLW_REMAP {word} XC0 i0 Link 02")
    for line in (said, xid(145, said=f"RLW_REMAP {word} XC0 i0 Link 02")):
        assert judge_xid(HGX, replace(node(), kernel_log=live(line))).outcome is Outcome.WARN


def test_lines_that_users_write_crowd_out_no_fault() -> None:
    """Ninety-six kinds of a line are kept: a user's do not count among them."""
    comms = [f"MCE: Killing {chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(300)]
    said = [OF_A_PROCESS[3].format(comm=comm) for comm in comms]
    last = "mce: [Hardware Error]: CPU 17: Machine Check: 0 Bank 9: be00000000800400"
    log = live(*said, last)
    assert [line.text for line in log.lines] == [last]


def test_a_node_and_a_pasted_log_know_the_same_lines() -> None:
    """The code on a node imports nothing of ours: what both must know is compared."""
    assert PASTED == kernel_log.OF_A_PROCESS
