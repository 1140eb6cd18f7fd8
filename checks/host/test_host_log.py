"""What the kernel log says of a broken host: PCIe, CPU, memory, disks, tasks that hang.

The kernel asks every driver below the port; one that cannot take part ("no error_detected
callback") makes the whole recovery fail, and its device may answer nothing any more.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict, replace

from preflight.check import Check
from preflight.checks.gpu.driver_log import lost_slots, slot_of
from preflight.checks.log_window import (
    ago,
    days_covered,
    elapsed_s,
    is_frequent,
    ok_if_read,
    unread,
    window,
)
from preflight.core.text import count
from preflight.core.thresholds import Thresholds
from preflight.facts import Facts, Node
from preflight.facts.machine import LogLine
from preflight.verdict import Conclude, Verdict, fail, warn

_ANSWER = ("reach.answer",)
CHECKS = (
    Check("host.hardware_errors", stage="facts", tier="prolog", requires=_ANSWER, drains=True),
    Check("host.kernel_log", stage="facts", tier="prolog", requires=_ANSWER),
)

BDF = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"

_DRIVER = r"[\w-]{1,40}"
"""A word without a colon, a comma or "=": text behind those may come from a user."""

Outcome = Literal["fatal", "unrecovered"]

_CANNOT_RECOVER = (
    rf"(?P<driver>{_DRIVER}) (?P<device>{BDF}): (?:AER: )?"
    r"(?:can't recover|device has no AER-aware driver)"
)
_RECOVERY_END = rf"(?:{_DRIVER} )?{BDF}: (?:AER: )?[Dd]evice recovery (?P<how>failed|successful)"
_BY = rf"(?P<driver>{_DRIVER}) {BDF}: PCIe Bus Error"
_VITAL_DRIVERS = {"nvidia", "mlx5_core"}
"""A job dies with these; a node without its audio or USB still works."""
_APART_S = 10.0
"""Errors of one recovery come within milliseconds, a reset of the link within seconds."""


class Recoveries:
    """Follows the recoveries of a log: which errors came first, and how it ended for them."""

    def __init__(self) -> None:
        self.ended: dict[str, Outcome] = {}
        """By PCI address of the error; one that is not here was recovered, or has no outcome."""
        self._errors: set[str] = set()
        self._drivers: set[str] = set()
        self._over = False
        self._how: Outcome | None = None
        self._at_s: float | None = None

    def error(self, where: str, line: LogLine) -> None:
        """Take an uncorrected error; after a recovery ended it begins the next one."""
        last_s, self._at_s = self._at_s, line.at_s
        is_next = last_s is not None and line.at_s is not None and line.at_s - last_s > _APART_S
        if self._over or is_next:
            self._errors, self._drivers, self._over, self._how = set(), set(), False, None
        self._errors.add(where)
        match = re.match(_BY, line.text)
        if match is not None and match["driver"] != "pcieport":
            self._drivers.add(match["driver"])

    def take(self, text: str) -> None:
        """Take any other line: a driver that cannot recover, or how the whole recovery ended."""
        if cannot := re.match(_CANNOT_RECOVER, text):
            self._over = True
            self._drivers.add(cannot["driver"])
            vital = cannot["driver"] in _VITAL_DRIVERS
            # Without its error, whose line is gone, how grave it was is not known.
            self._end("fatal" if vital else "unrecovered")
            if vital and not self._errors:
                self.ended[cannot["device"]] = "unrecovered"
        elif match := re.match(_RECOVERY_END, text):
            self._over = True
            if match["how"] == "failed":
                minor = self._drivers and not self._drivers & _VITAL_DRIVERS
                self._end("unrecovered" if minor else "fatal")

    def _end(self, outcome: Outcome) -> None:
        if self._how in (outcome, "fatal"):
            return  # these errors already have this outcome
        self._how = outcome
        for address in self._errors:
            if self.ended.get(address) != "fatal":
                self.ended[address] = outcome


Part = Literal["pcie", "cpu", "memory", "firmware"]
Grade = Literal["fatal", "uncorrected", "unrecovered", "corrected", "earlier"]
"""`uncorrected`: the node goes on. `unrecovered`: a driver that no job needs did not recover.

`earlier`: of the boot before this one.
"""

_FAULT_HINT = (
    r"PCIe Bus Error|AER: |AER-aware|evice recovery|DPC: |Hardware Error|MCE: |mce: |Memory f"
    r"|BERT: |EDAC "
)
"""Only lines with one of these words are parsed."""

# Some lines hold text that a user chose: each pattern begins where the line does.
_MCE = r"(?:mce: |MCE: )?\[Hardware Error\]: "
_AER = (
    rf"(?i)(?:{_DRIVER} )?(?P<agent>{BDF}): PCIe Bus Error: severity="
    r"(?P<grade>Un)?[Cc]orrect(?:ed|able)(?:,? \(?(?P<fatal>(?:Non-)?Fatal)\)?)?, type="
)
_AER_SUMMARY = (
    rf"(?i)(?:{_DRIVER} )?(?P<port>{BDF}): AER: (?:Multiple )?(?P<grade>Un)?correct(?:ed|able)"
    rf"(?: \((?P<fatal>(?:Non-)?Fatal)\))? error (?:message )?received:? "
    rf"(?:from )?(?P<agent>{BDF})?"
)
_DPC = rf"(?:{_DRIVER} )?(?P<agent>{BDF}): DPC: containment event, status:"
_BANK = (
    rf"{_MCE}CPU ?(?P<cpu>\d+): Machine Check(?: Exception)?: [0-9a-f]+ "
    r"Bank (?P<bank>\d+): (?P<status>[0-9a-f]{16})"
)
_UNCORRECTED_BIT = 1 << 61
_DECODED = rf"{_MCE}(Corrected error|Uncorrected|Deferred error|System Fatal)"
_SEVERITY = r"\{\d+\}\[Hardware Error\]: event severity: (\w+)"
_POISON = (
    r"mce: Uncorrected hardware memory error in user-access at [0-9a-f]+"
    r"|Memory failure: 0x[0-9a-f]+: (?!already|recovery action for already)"
    r"|(?P<process>MCE: Killing .{1,60}:\d+ due to hardware memory corruption fault at )"
)
"""That a process died is no proof: from Linux 6.6 on any process may poison its own pages
(UFFDIO_POISON), and of memory that is really broken the kernel says so first."""
_BERT = r"BERT: (?:Total records found|\[Hardware Error\])"
_EDAC = (
    r"EDAC (?P<mc>\S+): (?P<times>\d+) (?P<kind>[CU]E) (?:.{1,200}? )?on (?P<dimm>\S+)"
    r".{0,200}? \(.*page:0x"
)

_ADVICE: dict[Part, str] = {
    "pcie": "drain; reseat that device or its riser, check the slot; replace it if it comes again",
    "cpu": "drain; run the vendor's CPU diagnostic, look at the BMC's event log",
    "memory": "drain; replace that DIMM (the BMC's event log names its slot)",
    "firmware": "look at the BMC's event log for what broke the node last time",
}
_PARTS: dict[Part, str] = {
    "pcie": "PCIe errors",
    "cpu": "machine checks",
    "memory": "memory errors",
    "firmware": "a fatal error recorded by the firmware in the boot before",
}
_GRADES: dict[Grade, str] = {
    "fatal": "uncorrected ",
    "uncorrected": "uncorrected, non-fatal ",
    "unrecovered": "uncorrected, not recovered ",
    "corrected": "corrected ",
    "earlier": "",
}


class Fault(Struct, frozen=True):
    """Errors of one part; `where` is a PCI address, a CPU or a DIMM."""

    part: Part
    where: str
    grade: Grade
    times: int
    last_s: float | None


def faults(lines: Sequence[LogLine]) -> list[Fault]:
    """All errors by part, place and grade, in the order in which each came first."""
    errors: dict[tuple[Part, str, Grade], Fault] = {}
    summaries: dict[tuple[Part, str, Grade], Fault] = {}
    recoveries = Recoveries()
    for line in lines:
        if not re.search(_FAULT_HINT, line.text):
            continue
        recoveries.take(line.text)
        for fault, summary in _faults(line):
            if fault.part == "pcie" and fault.grade == "uncorrected":
                recoveries.error(fault.where, line)
            totals = summaries if summary else errors
            key = (fault.part, fault.where, fault.grade)
            earlier = totals.get(key)
            times = fault.times + (earlier.times if earlier else 0)
            totals[key] = Fault(fault.part, fault.where, fault.grade, times, fault.last_s)
    # A summary is written beside the errors themselves, whose lines may be rate-limited.
    for key, fault in summaries.items():
        if key not in errors or fault.times > errors[key].times:
            errors[key] = fault
    return _grade_by_recovery(list(errors.values()), recoveries)


def _grade_by_recovery(errors: list[Fault], recoveries: Recoveries) -> list[Fault]:
    """Grade uncorrected errors by their recovery; add devices that no error line names."""
    graded = []
    for fault in errors:
        end = recoveries.ended.get(fault.where) if fault.part == "pcie" else None
        graded.append(replace(fault, grade=end) if end and fault.grade == "uncorrected" else fault)
    places = {fault.where for fault in errors if fault.grade in ("fatal", "uncorrected")}
    without_line = [address for address in recoveries.ended if address not in places]
    return graded + [Fault("pcie", address, "unrecovered", 1, None) for address in without_line]


def judge_hardware_errors(facts: Facts, limit: Thresholds) -> Verdict:
    """Uncorrected errors fail the node; corrected ones are a warning when there are hundreds."""
    log = facts.kernel_log
    if log is None:
        return unread(facts)
    lost = lost_slots(facts)
    errors = [fault for fault in faults(log.lines) if not _follows_lost_gpu(fault, lost, facts)]
    evidence: dict[str, Any] = {"faults": [asdict(fault) for fault in errors], "log": log.source}
    if fatal := [fault for fault in errors if fault.grade == "fatal"]:
        words = f"{_fault_words(fatal, facts)}; expected no uncorrected error {window(log, facts)}"
        return fail(words, advice=_ADVICE[fatal[0].part], **evidence)
    days = days_covered(log, facts)
    notable = [
        fault
        for fault in errors
        if fault.grade != "corrected"
        or is_frequent(fault.times, fault.last_s, _max_per_day(fault, limit), days, facts)
    ]
    if notable:
        first = notable[0]
        words = _fault_words(notable, facts)
        if first.grade == "corrected":
            words += f"; expected under {_max_per_day(first, limit):.0f} in a day"
        return warn(words, advice=_ADVICE[first.part].removeprefix("drain; "), **evidence)
    number = sum(fault.times for fault in errors)
    note = f"; {count(number, 'corrected error')}, few enough" if number else ""
    sentence = f"no uncorrected hardware error {window(log, facts)}{note}"
    return ok_if_read(sentence, log, ("aer", "mce", "edac"), **evidence)


def _faults(line: LogLine) -> Iterator[tuple[Fault, bool]]:
    """Read one line; with each fault, whether it is a summary of others."""

    def fault(part: Part, place: str, grade: Grade, times: int = 1) -> Fault:
        return Fault(part, place, grade, line.times * times, line.last_s)

    text = line.text
    if match := re.match(_AER, text) or re.match(_AER_SUMMARY, text):
        groups = match.groupdict()
        yield fault("pcie", groups["agent"] or groups["port"], _severity(groups)), "port" in groups
    elif match := re.match(_DPC, text):
        yield fault("pcie", match["agent"], "fatal"), False
    elif match := re.match(_BANK, text):
        grade: Grade = "fatal" if int(match["status"], 16) & _UNCORRECTED_BIT else "corrected"
        yield fault("cpu", f"CPU {match['cpu']} bank {match['bank']}", grade), False
    elif match := re.match(_DECODED, text):
        yield fault("cpu", "", "corrected" if match[1].startswith("Corr") else "fatal"), False
    elif match := re.match(_SEVERITY, text):
        grades: dict[str, Grade] = {"fatal": "fatal", "recoverable": "uncorrected"}
        yield fault("cpu", "", grades.get(match[1], "corrected")), False
    elif match := re.match(_POISON, text):
        yield fault("memory", "", "uncorrected" if match["process"] else "fatal"), False
    elif re.match(_BERT, text):
        yield fault("firmware", "", "earlier"), False
    elif match := re.match(_EDAC, text):
        grade = "fatal" if match["kind"] == "UE" else "corrected"
        times = min(int(match["times"][:9]), 10**9) or 1
        yield fault("memory", f"{match['dimm']} ({match['mc']})", grade, times), False


def _severity(groups: dict[str, str | None]) -> Grade:
    if not groups["grade"]:
        return "corrected"
    return "uncorrected" if (groups["fatal"] or "").lower() == "non-fatal" else "fatal"


def _follows_lost_gpu(fault: Fault, lost: Collection[str], facts: Facts) -> bool:
    """Whether the fault is of a GPU that fell off the bus, or of a port on the way to it."""
    if fault.part != "pcie" or not lost:
        return False
    paths = [g.pci_path for g in facts.gpus or () if g.pci_path and slot_of(g.bus_id) in lost]
    return slot_of(fault.where) in lost or any(fault.where in path for path in paths)


def _max_per_day(fault: Fault, limit: Thresholds) -> float:
    return limit("corrected_dimm_per_day" if fault.part == "memory" else "corrected_errors_per_day")


def _fault_words(errors: Sequence[Fault], facts: Facts) -> str:
    first = errors[0]
    where = f" of {first.where}" if first.where else ""
    words = f"{_GRADES[first.grade]}{_PARTS[first.part]}{where}"
    often = f" ({first.times} times)" if first.times > 1 else ""
    more = f"; and {count(len(errors) - 1, 'more part')}" if len(errors) > 1 else ""
    return f"{words}{often}{ago(first.last_s, facts)}{more}"


def test_host_hardware_errors(node: Node, conclude: Conclude) -> None:
    """The kernel log has no error of PCIe, CPU or memory that the hardware could not correct."""
    conclude(judge_hardware_errors(node.facts, node.limit))


Kind = Literal[
    "read-only", "file system", "disk", "lockup", "oops", "oom", "cgroup oom", "hung", "nfs"
]

_XFS = r"^XFS \((?P<what>[^)]+)\): "
_KINDS: tuple[tuple[Kind, str], ...] = (
    ("read-only", r"^(?:EXT[234]|F2FS)-fs \((?P<what>[^):]+)\S*\): [Rr]emounting .*read-only"),
    ("read-only", r"^BTRFS \w+ \(device (?P<what>[^):]+)[^)]*\): forced readonly"),
    ("read-only", rf"{_XFS}(?:xfs_do_force_shutdown|.*Shutting down filesystem)"),
    ("read-only", rf"{_XFS}(?:Filesystem has been|User initiated) shut ?down"),
    ("file system", r"^(?:EXT[234]|F2FS|BTRFS)\S* .*?error.*?\(device (?P<what>[^):]+)"),
    ("file system", rf"{_XFS}.*(?:[Cc]orrupt|I/O error|metadata .*error)"),
    ("file system", r"^BTRFS.*\(device (?P<what>[^):]+).*(?:error|corrupt)"),
    ("disk", r"^(?:blk_update_request: )?(?:I/O|critical \w+) error, dev (?P<what>[^, ]+)"),
    ("disk", r"^Buffer I/O error on dev(?:ice)? (?P<what>[^, ]+)"),
    ("disk", r"^nvme (?P<what>nvme\d+): (?:controller is down|Removing after|Device not ready)"),
    ("lockup", r"^(?:watchdog: )?BUG: soft lockup - (?P<what>CPU#?\d*)"),
    ("lockup", r"^(?:NMI )?[Ww]atchdog.{0,40}hard LOCKUP on (?P<what>cpu ?\d+)"),
    ("lockup", r"^rcu: INFO: \w+ (?:self-)?detected (?P<what>stall)"),
    ("oops", r"^(?P<what>BUG: unable to handle|general protection fault)"),
    ("oops", r"^(?P<what>Oops): .{0,200}?\b[0-9a-f]{4,16} \[#\d"),
    ("cgroup oom", r"^Memory cgroup out of memory: Kill(?:ed)? process \d+ \((?P<what>[^)]*)\)"),
    ("oom", r"^Out of memory: Kill(?:ed)? process \d+ \((?P<what>[^)]*)\)"),
    ("hung", r"^INFO: task (?P<what>.+?):\d+ blocked for more than"),
    ("nfs", r"^nfs: server (?P<what>\S+) not responding"),
)  # fmt: skip
_EVENT_HINT = (
    r"-fs|XFS|BTRFS|F2FS|error, dev|I/O error|^nvme |ockup|LOCKUP|stall|^BUG|^Oops|^general"
    r"|ut of memory|^INFO: task|^nfs: "
)
"""Only lines with one of these words are parsed."""

_LOOP = r"^(?:loop|sr|fd|zram|ram)\d"
"""Devices whose errors tell of an image or an empty drive, not of a disk."""
_DISK_KINDS: tuple[Kind, ...] = ("read-only", "file system", "disk")

_WORDS: dict[Kind, tuple[str, str]] = {
    "read-only": (
        "made a file system read-only",
        "drain; check that disk (smartctl -x), repair the file system, remount it",
    ),
    "file system": ("found a damaged file system", "check that disk (smartctl -x), run fsck"),
    "disk": ("could not read or write a disk", "check that disk (smartctl -x); replace it"),
    "lockup": ("lost a CPU for many seconds", "look at dmesg for what held it; update the kernel"),
    "oops": ("hit a bug of its own", "reboot; look at dmesg for the module, update it"),
    "oom": (
        "ran out of memory and killed a process",
        "look at what else runs there; give the job less, or the node more memory",
    ),
    "cgroup oom": (
        "killed a process for its job's memory limit",
        "raise the job's memory limit, or use fewer workers that load data",
    ),
    "hung": (
        "waited minutes for a task in D state",
        "look at its disk, shared file system and driver (dmesg names the task's stack)",
    ),
    "nfs": ("waited for a file server", "check that server and the way to it"),
}


class Event(Struct, frozen=True):
    """Events of one kind, of one device, task or process."""

    kind: Kind
    what: str
    times: int
    last_s: float | None


def events(lines: Sequence[LogLine]) -> list[Event]:
    """All events of the log, by kind and subject; the gravest kind first."""
    by_subject: dict[tuple[Kind, str], Event] = {}
    for line in lines:
        key = _kind_and_subject(line.text)
        if key is not None and not (key[0] in _DISK_KINDS and re.match(_LOOP, key[1])):
            earlier = by_subject.get(key)
            times = line.times + (earlier.times if earlier else 0)
            by_subject[key] = Event(*key, times, line.last_s)
    return sorted(by_subject.values(), key=lambda event: list(_WORDS).index(event.kind))


@lru_cache(maxsize=4096)  # the same lines on every node of a kind
def _kind_and_subject(text: str) -> tuple[Kind, str] | None:
    """What happened according to a line, and to which device, task or process."""
    if re.search(_EVENT_HINT, text):
        for kind, pattern in _KINDS:
            if (hit := re.search(pattern, text)) is not None:
                return kind, hit["what"] or ""
    return None


def judge_kernel_log(facts: Facts, limit: Thresholds) -> Verdict:
    """A file system that turned read-only fails the node; the rest of the last day is a warning."""
    log = facts.kernel_log
    if log is None:
        return unread(facts)
    entries = events(log.lines)
    evidence: dict[str, Any] = {"events": [asdict(event) for event in entries], "log": log.source}
    if read_only := [event for event in entries if event.kind == "read-only"]:
        words = f"{_event_words(read_only[0], facts)}; expected none {window(log, facts)}"
        return fail(words, advice=_WORDS[read_only[0].kind][1], **evidence)
    ages = [(elapsed_s(event.last_s, facts), event) for event in entries]
    recent = [event for age_s, event in ages if age_s is None or age_s < limit("host_event_s")]
    if recent:
        words = _event_words(recent[0], facts)
        words += f"; and {count(len(recent) - 1, 'more thing')}" if len(recent) > 1 else ""
        return warn(words, advice=_WORDS[recent[0].kind][1], **evidence)
    note = f"; {count(len(entries), 'older note')}" if entries else ""
    sentence = f"no lack of memory, disk or CPU {window(log, facts)}{note}"
    return ok_if_read(sentence, log, ("fs", "disk"), **evidence)


def _event_words(event: Event, facts: Facts) -> str:
    subject = f" ({event.what})" if event.what else ""
    often = f", {event.times} times" if event.times > 1 else ""
    return f"the kernel {_WORDS[event.kind][0]}{subject}{often}{ago(event.last_s, facts)}"


def test_host_kernel_log(node: Node, conclude: Conclude) -> None:
    """The kernel did not run out of memory, disks or patience on this node."""
    conclude(judge_kernel_log(node.facts, node.limit))
