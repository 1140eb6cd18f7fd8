"""The NVIDIA driver's messages about GPUs in the kernel log: Xids, and lost GPUs.

NVIDIA's workflow for Xid 13 asks where it came from: on many TPCs, or once, it is the program; if
it repeats on one GPC and TPC, the hardware may be at fault.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.thresholds import Thresholds
from preflight.facts.boards import GRADES, Grade, xid_info
from preflight.facts.machine import LogLine
from preflight.facts.model import Facts, read_once

_SLOT = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?"
XID = rf"^NVRM: Xid \((?:PCI:)?{_SLOT}(?:[ ,][^)]*)?\): (\d{{1,4}})\b(.*)"
"""PCI address, code, and text."""
# A program's version text, or a network device called NVRM, can put a user's words behind
# "NVRM: ": each of these patterns begins as the driver's own line does.
_FELL_OFF_LINE = rf"^NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?{_SLOT}\b.*fallen off the bus"
_START_FAILED_LINE = (
    rf"^NVRM: GPU (?:at )?(?:PCI:)?{_SLOT}: (?:RmInitAdapter|rm_init_adapter) failed"
    rf"|^nvidia: probe of {_SLOT} failed|^nvidia {_SLOT}: probe with driver nvidia failed"
)
_TRAINING_LINE = r"^NVRM: (GPU\d+) .*Error setting [TR]X sublink"
_NEEDS_RESET_LINE = (
    rf"^NVRM: Rate limiting GSP RPC error .{{0,40}}PCI:{_SLOT}\b.*GPU likely needs to be reset"
)
_LOADED = r"^NVRM: loading NVIDIA "
_MODULE = r"^nvidia-nvlink: (?:Nvlink Core is being|Unregistered)"
_RECOVERED = r"recovery action changed .* to \S+ \(None\)"
_REBOOT, _RESET = r"[Rr]eboot", r"[Rr]eset|Drain"
_NONFATAL = r"[Nn]on-?[Ff]atal"
_PROCESS = r",? pid=[^,]*, name=.{0,15},"
"""A name that a user chose, which may contain a comma."""
_CAUSE = r"caused by previous Xid (\d{1,4})\b"

OFF_THE_BUS = "fell off the bus"
_LOST = {79, OFF_THE_BUS}
_SUMMARY = 154
_ECC, _BY_ECC = {48}, {63, 94, 95, 171, 172}
_CLEANED_UP = {43, 45}
_NVLINK = {74, 136, *range(144, 151), 155}
_DISTINCT_CODES = {*_LOST, _SUMMARY, *_ECC, *_CLEANED_UP}
_AFTERMATH: set[Grade] = {"application", "notice"}


class GpuFault(Struct, frozen=True):
    """One fault of one GPU that the driver logged, once or many times."""

    slot: str
    """PCI address without function, "0000:5d:00"; or the driver's own number, "GPU1"."""
    code: int | str
    """The Xid, or a description where the driver gave none."""
    grade: Grade
    meaning: str
    advice: str
    order: int
    times: int = 1
    last_s: float | None = None
    """Seconds since boot, of the last time; None where the log has no times."""
    place: str = ""
    """The part of the GPU where it repeats: "GPC 2, TPC 5"."""
    settled: bool = False
    """The driver was reloaded since, or reports that the GPU needs no recovery any more."""
    causes: frozenset[int] = frozenset()
    """Earlier Xids that its own line names as its cause."""
    named_by: int | None = None
    """The Xid that names it as its cause, where it has no line of its own."""

    @property
    def label(self) -> str:
        """Xid 79 (the GPU has fallen off the bus)."""
        if not isinstance(self.code, int):
            return self.code
        remark = f"; Xid {self.named_by} names it" if self.named_by is not None else ""
        return f"Xid {self.code} ({self.meaning}{remark})"


@lru_cache(maxsize=4096)  # the same few addresses on every node
def slot_of(bus_id: str) -> str:
    """Spell a PCI address as the driver's log does, whatever its domain's width: 0000:5d:00."""
    domain, _, device = bus_id.partition(":")
    try:
        return f"{int(domain, 16):04x}:{device.partition('.')[0].lower()}"
    except ValueError:
        return bus_id


def gpu_faults(lines: Sequence[LogLine]) -> list[GpuFault]:
    """All faults in the order of the log; of a code that repeats for a GPU, the last."""
    faults: dict[tuple[str, int | str], GpuFault] = {}
    live: _Live = {}, {}
    for order, line in enumerate(lines):
        if "NVRM: " not in line.text and "nvidia" not in line.text:
            continue
        for key in _end_faults(line.text, live):
            faults[key] = replace(faults[key], settled=True)
        for fault in _read_line(order, line):
            key = fault.slot, fault.code
            earlier = faults.pop(key, None)
            merged = faults[key] = fault if earlier is None else _merge(fault, earlier)
            if not merged.settled:
                live[isinstance(fault.code, int)].setdefault(fault.slot, {})[key] = None
    return sorted(faults.values(), key=lambda fault: fault.order)


def consequences(cause: GpuFault, faults: Iterable[GpuFault]) -> list[GpuFault]:
    """The faults of that GPU that came only because of this one."""
    return [fault for fault in faults if fault.slot == cause.slot and _follows_from(fault, cause)]


def root_causes(faults: Sequence[GpuFault]) -> list[GpuFault]:
    """Leave out faults that follow from another one: one fault is one finding.

    A GPU that is off the bus causes all other faults on it, and NVLink errors on its peers. A
    double bit error causes the containment and remapping. Xid 154 only sums up what others caused,
    also on healthy GPUs. Programs that die of a fault leave 13, 31, 43 and 45, which may name it.
    """
    codes = {(fault.slot, fault.code): fault for fault in faults}
    # Of faults alike for `_follows_from` two are enough: the first may be this one, or of its GPU.
    candidates: dict[tuple[str, bool], dict[object, GpuFault]] = {}
    for fault in faults:
        kind = fault.grade, fault.code if fault.code in _DISTINCT_CODES else type(fault.code)
        for scope, attribute in ((fault.slot, "code"), ("", "slot")):
            by_kind = candidates.setdefault((scope, fault.settled), {})
            if getattr(by_kind.setdefault(kind, fault), attribute) != getattr(fault, attribute):
                by_kind.setdefault((kind, "other"), fault)

    def others(fault: GpuFault) -> Iterator[GpuFault]:
        yield from candidates[fault.slot, fault.settled].values()
        yield from candidates["", fault.settled].values()
        causes = ((fault.slot, cause) for cause in fault.causes if fault.code in _CLEANED_UP)
        yield from (codes[key] for key in causes if key in codes)

    return [
        fault for fault in faults if not any(_follows_from(fault, other) for other in others(fault))
    ]


def _follows_from(fault: GpuFault, other: GpuFault) -> bool:
    """Whether the driver logged a fault only because of another one."""
    if fault is other or fault.settled != other.settled or other.code == _SUMMARY:
        return False
    if fault.code == _SUMMARY:
        return other.grade in ("fatal", "reset", "configurable")
    if fault.slot != other.slot:
        return other.code in _LOST and fault.code in _NVLINK
    return _follows_on_gpu(fault, other)


def _follows_on_gpu(fault: GpuFault, other: GpuFault) -> bool:
    """Whether a fault follows from another one of the same GPU."""
    grave = other.grade in ("fatal", "reset")
    if other.code in _LOST and fault.code not in _LOST:
        return True
    if not isinstance(fault.code, int) and isinstance(other.code, int):
        return grave
    if other.code in fault.causes and fault.code in _CLEANED_UP and other.code not in _CLEANED_UP:
        return GRADES.index(other.grade) <= GRADES.index(fault.grade)
    if other.grade == "application":
        return fault.code in _CLEANED_UP and other.code not in _CLEANED_UP
    return (other.code in _ECC and fault.code in _BY_ECC) or (grave and fault.grade in _AFTERMATH)


def _read_line(order: int, line: LogLine) -> Iterator[GpuFault]:
    """The faults in one line, also the Xid that it names as its cause, whose line may be lost."""
    xid = re.search(XID, line.text)
    if xid is not None:
        slot, code, text = slot_of(xid[1]), int(xid[2]), re.sub(_PROCESS, "", xid[3], count=1)
        causes = frozenset(int(number) for number in re.findall(_CAUSE, text)) - {code, _SUMMARY}
        for cause in sorted(causes):
            yield replace(_xid_fault(slot, cause, order, line), times=1, named_by=code)
        fault = replace(_xid_fault(slot, code, order, line), causes=causes)
        if code == _SUMMARY:
            fault = replace(fault, grade=_requested_grade(text))
        elif xid_info(code).worded and re.search(_NONFATAL, text):
            fault = replace(fault, grade="configurable")
        yield fault
        return
    for slot, words, grade, advice in _unnumbered(line.text):
        yield GpuFault(slot, words, grade, "", advice, order, line.times, line.last_s)


def _xid_fault(slot: str, code: int, order: int, line: LogLine) -> GpuFault:
    of = xid_info(code)
    return GpuFault(slot, code, of.grade, of.meaning, of.advice, order, line.times, line.last_s)


def _requested_grade(text: str) -> Grade:
    """The action that Xid 154 requests: it counts if its causing Xid is no longer in the log."""
    action = text.rpartition(" to ")[2] or text
    if re.search(_REBOOT, action):
        return "fatal"
    return "reset" if re.search(_RESET, action) else "notice"


def _unnumbered(text: str) -> Iterator[tuple[str, str, Grade, str]]:
    if fell_off := re.search(_FELL_OFF_LINE, text):
        yield slot_of(fell_off[1]), OFF_THE_BUS, "fatal", xid_info(79).advice
    elif start_failed := re.search(_START_FAILED_LINE, text):
        slot = next(filter(None, start_failed.groups()))
        yield slot_of(slot), "the driver could not start it", "fatal", xid_info(143).advice
    elif needs_reset := re.search(_NEEDS_RESET_LINE, text):
        words = "the driver reports that it needs a reset"
        yield slot_of(needs_reset[1]), words, "reset", xid_info(119).advice
    elif not_trained := re.search(_TRAINING_LINE, text):
        advice = "drain, reseat its NVLink bridge or baseboard, look at nvidia-smi nvlink --status"
        yield not_trained[1], "its NVLinks do not train", "reset", advice


_Key = tuple[str, int | str]
_Live = tuple[dict[str, dict[_Key, None]], dict[str, dict[_Key, None]]]
"""Faults that are not over, by slot: those without a number, and Xids."""


def _end_faults(text: str, live: _Live) -> list[_Key]:
    """Remove and return the faults that this line of the log ends: for one GPU, or for all."""
    xid, ended_keys = re.search(XID, text), list[dict[_Key, None]]()
    if xid is not None and int(xid[2]) == _SUMMARY and re.search(_RECOVERED, xid[3]):
        ended_keys = [keys_by_slot.pop(slot_of(xid[1]), {}) for keys_by_slot in live]
    # "loading" comes after the GPUs were started: those that then failed are of this driver.
    ended = live if re.search(_MODULE, text) else live[1:] if re.search(_LOADED, text) else ()
    for keys_by_slot in ended:
        ended_keys += keys_by_slot.values()
        keys_by_slot.clear()
    return [key for keys in ended_keys for key in keys]


def _merge(fault: GpuFault, earlier: GpuFault) -> GpuFault:
    """Merge a fault with an earlier one: the sum of both, and the graver grade.

    Its own lines show more than a line that only names it as its cause, also whether it is over.
    """
    if fault.named_by is not None:
        return earlier
    if earlier.settled:
        return fault
    if earlier.named_by is not None:
        return replace(fault, order=earlier.order)
    causes, times = fault.causes | earlier.causes, fault.times + earlier.times
    graver = min(fault.grade, earlier.grade, key=GRADES.index)
    return replace(fault, times=times, grade=graver, order=earlier.order, causes=causes)


PROGRAM_EXCEPTION = 13
"""The Xid of a program that failed on the GPU, or of a broken part of the GPU."""
_EXCEPTION = f"): {PROGRAM_EXCEPTION},"
_GPC_AND_TPC = r"\((GPC \d+, TPC \d+)\b"
_PID = r"pid=(\d+)"


class SuspectPart(Struct, frozen=True):
    """One part of one GPU with exceptions at several times, each time only there."""

    place: str
    """GPC 2, TPC 5."""
    bursts: int


class _Burst(Struct):
    """Exceptions of one GPU that followed on each other: one crash of one program."""

    first_s: float
    last_s: float
    places: set[str]
    pids: set[str]


def repeated_exceptions(lines: Iterable[LogLine], limit: Thresholds) -> dict[str, SuspectPart]:
    """By slot: the part where most crashes of the last day began, if there are several.

    Crashes of one process count once: it may go on after an exception that it caught.
    """
    parts = {}
    for slot, bursts in _bursts(lines, limit).items():
        recent = [b for b in bursts if bursts[-1].first_s - b.last_s < limit("same_tpc_within_s")]
        places = [next(iter(burst.places)) for burst in recent if len(burst.places) == 1]
        place = max(places, key=Counter(places).__getitem__, default="")
        at_place = [burst for burst in recent if burst.places == {place}]
        pids = set().union(*(burst.pids for burst in at_place))
        if len(at_place) < limit("same_tpc_bursts") or 2 * len(at_place) <= len(recent):
            continue
        if len(pids) != 1 or not all(burst.pids for burst in at_place):
            parts[slot] = SuspectPart(place, len(at_place))
    return parts


def _bursts(lines: Iterable[LogLine], limit: Thresholds) -> dict[str, Sequence[_Burst]]:
    """The crashes of each GPU that have a time and a place, in their order."""
    gap_s, by_slot = limit("same_tpc_apart_s"), dict[str, list[_Burst]]()
    with_word = (line for line in lines if _EXCEPTION in line.text)
    timed_lines = [(line.at_s, line) for line in with_word if line.at_s is not None]
    for at_s, line in sorted(timed_lines, key=lambda row: row[0]):
        xid = re.search(XID, line.text)
        if xid is None or int(xid[2]) != PROGRAM_EXCEPTION:
            continue
        bursts = by_slot.setdefault(slot_of(xid[1]), [])
        last_s = max(at_s, line.last_s or 0.0)
        if not bursts or at_s - bursts[-1].last_s > gap_s:
            bursts.append(_Burst(at_s, last_s, set(), set()))
        bursts[-1].last_s = max(bursts[-1].last_s, last_s)
        bursts[-1].places |= set(re.findall(_GPC_AND_TPC, line.text))
        bursts[-1].pids |= set(re.findall(_PID, line.text))
    with_place = {slot: [b for b in bursts if b.places] for slot, bursts in by_slot.items()}
    return {slot: bursts for slot, bursts in with_place.items() if bursts}


@read_once
def logged_faults(facts: Facts) -> tuple[GpuFault, ...]:
    """All faults in a node's kernel log; none where it could not be read."""
    return tuple(gpu_faults(facts.kernel_log.lines)) if facts.kernel_log is not None else ()


def lost_slots(facts: Facts) -> set[str]:
    """The slots of GPUs that fell off the bus, by the log: PCIe errors there follow from that."""
    return {xid.slot for xid in logged_faults(facts) if xid.code in _LOST and not xid.settled}


def missing_slots(facts: Facts) -> tuple[str, ...]:
    """The slots of GPUs that fell off the bus, by the log, and do not answer any more."""
    answering = {slot_of(gpu.bus_id) for gpu in facts.gpus or ()}
    return tuple(sorted(lost_slots(facts) - answering))
