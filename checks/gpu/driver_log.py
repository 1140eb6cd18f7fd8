"""What the NVIDIA driver wrote of the GPUs into the kernel log: Xids, and words for a lost GPU.

NVIDIA's workflow for Xid 13 asks where it came: on many TPCs, or once, it is the program; on the
same GPC and TPC again, the hardware may be at fault and wants its diagnostics.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from preflight.core.thresholds import Thresholds
from preflight.facts.boards import GRADES, xid_info

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from preflight.facts.boards import Grade
    from preflight.facts.machine import LogLine
    from preflight.facts.model import Facts


_SLOT = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?"
XID = rf"^NVRM: Xid \((?:PCI:)?{_SLOT}(?:[ ,][^)]*)?\): (\d{{1,4}})\b(.*)"
"""PCI address, code, and what it says."""
# A version that a program claims, and a network device called NVRM, bring a user's words behind
# "NVRM: ": each of these begins as the driver's own line does.
_FELL = rf"^NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?{_SLOT}\b.*fallen off the bus"
_INIT = (
    rf"^NVRM: GPU (?:at )?(?:PCI:)?{_SLOT}: (?:RmInitAdapter|rm_init_adapter) failed"
    rf"|^nvidia: probe of {_SLOT} failed|^nvidia {_SLOT}: probe with driver nvidia failed"
)
_TRAINING = r"^NVRM: (GPU\d+) .*Error setting [TR]X sublink"
_NEEDS_RESET = (
    rf"^NVRM: Rate limiting GSP RPC error .{{0,40}}PCI:{_SLOT}\b.*GPU likely needs to be reset"
)
_LOADED = r"^NVRM: loading NVIDIA "
_MODULE = r"^nvidia-nvlink: (?:Nvlink Core is being|Unregistered)"
_RECOVERED = r"recovery action changed .* to \S+ \(None\)"
_REBOOT, _RESET = r"[Rr]eboot", r"[Rr]eset|Drain"
_NONFATAL = r"[Nn]on-?[Ff]atal"
_PROCESS = r",? pid=[^,]*, name=.{0,15},"
"""A user's word, in which a comma may stand."""
_CAUSED = r"caused by previous Xid (\d{1,4})\b"

OFF_THE_BUS = "fell off the bus"
_LOST = {79, OFF_THE_BUS}
_SUMMARY = 154
_ECC, _OF_ECC = {48}, {63, 94, 95, 171, 172}
_CLEANED_UP = {43, 45}
_NVLINK = {74, 136, *range(144, 151), 155}
_TELLING = {*_LOST, _SUMMARY, *_ECC, *_CLEANED_UP}
_AFTERMATH: set[Grade] = {"application", "notice"}


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that the driver said of one GPU, however often it said it."""

    slot: str
    """PCI address without function, "0000:5d:00"; or the driver's own number, "GPU1"."""
    code: int | str
    """The Xid, or words where the driver gave none."""
    grade: Grade
    meaning: str
    advice: str
    order: int
    times: int = 1
    last_s: float | None = None
    """Seconds since boot, of the last time; None where the log does not tell."""
    place: str = ""
    """The part of the GPU that it comes back to: "GPC 2, TPC 5"."""
    old: bool = False
    """The driver was loaded anew since, or says that the GPU needs no recovery any more."""
    causes: frozenset[int] = frozenset()
    """Earlier Xids that its own line names as what led to it."""
    named_by: int | None = None
    """The Xid that names it as its cause, where it has no line of its own."""

    @property
    def label(self) -> str:
        """Xid 79 (the GPU has fallen off the bus)."""
        if not isinstance(self.code, int):
            return self.code
        named = f"; Xid {self.named_by} names it" if self.named_by is not None else ""
        return f"Xid {self.code} ({self.meaning}{named})"


def slot_of(bus_id: str) -> str:
    """Spell a PCI address as the driver's log does, whatever its domain's width: 0000:5d:00."""
    domain, _, rest = bus_id.partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest.partition('.')[0].lower()}"
    except ValueError:
        return bus_id


def troubles(lines: Sequence[LogLine]) -> list[Trouble]:
    """Everything that was said, in its order; of a code that came again for a GPU, the last."""
    found: dict[tuple[str, int | str], Trouble] = {}
    live: _Live = {}, {}
    for order, line in enumerate(lines):
        if "NVRM: " not in line.text and "nvidia" not in line.text:
            continue
        for key in _over(line.text, live):
            found[key] = replace(found[key], old=True)
        for one in _read_line(order, line):
            before = found.pop((one.slot, one.code), None)
            now = found[one.slot, one.code] = one if before is None else _again(one, before)
            if not now.old:
                live[isinstance(one.code, int)].setdefault(one.slot, {})[one.slot, one.code] = None
    return sorted(found.values(), key=lambda each: each.order)


def echoes(one: Trouble, said: Iterable[Trouble]) -> list[Trouble]:
    """What came on that GPU only because of this one."""
    others = [each for each in said if each.slot == one.slot and each.old == one.old]
    return [each for each in others if _echoes(each, one)]


def roots(said: Iterable[Trouble]) -> list[Trouble]:
    """Leave out what is only the echo of something else: one fault is one finding.

    A GPU that is off the bus draws everything else on it, and NVLink errors on its peers; a double
    bit error draws the containment and remapping; Xid 154 only sums up what others caused, also on
    GPUs that are well; programs that die of a fault leave 13, 31, 43 and 45, which may name it.
    """
    every = list(said)
    codes = {(each.slot, each.code): each for each in every}
    # Of those that are alike for `_echoes` two are enough: the first may be `one`, or of its GPU.
    alike: dict[tuple[str, bool], dict[object, Trouble]] = {}
    for each in every:
        kind = each.grade, each.code if each.code in _TELLING else type(each.code)
        for scope, own in ((each.slot, "code"), ("", "slot")):
            some = alike.setdefault((scope, each.old), {})
            if getattr(some.setdefault(kind, each), own) != getattr(each, own):
                some.setdefault((kind, "other"), each)

    def others(one: Trouble) -> Iterator[Trouble]:
        yield from alike[one.slot, one.old].values()
        yield from alike["", one.old].values()
        causes = ((one.slot, cause) for cause in one.causes if one.code in _CLEANED_UP)
        yield from (codes[key] for key in causes if key in codes)

    return [one for one in every if not any(_echoes(one, other) for other in others(one))]


def _echoes(one: Trouble, other: Trouble) -> bool:
    if one is other or one.old != other.old or other.code == _SUMMARY:
        return False
    if one.code == _SUMMARY:
        return other.grade in ("fatal", "reset", "configurable")
    if one.slot != other.slot:
        return other.code in _LOST and one.code in _NVLINK
    return _echoes_here(one, other)


def _echoes_here(one: Trouble, other: Trouble) -> bool:
    """The same of two troubles of one GPU."""
    hard = other.grade in ("fatal", "reset")
    if other.code in _LOST and one.code not in _LOST:
        return True
    if not isinstance(one.code, int) and isinstance(other.code, int):
        return hard
    if other.code in one.causes and one.code in _CLEANED_UP and other.code not in _CLEANED_UP:
        return GRADES.index(other.grade) <= GRADES.index(one.grade)
    if other.grade == "application":
        return one.code in _CLEANED_UP and other.code not in _CLEANED_UP
    return (other.code in _ECC and one.code in _OF_ECC) or (hard and one.grade in _AFTERMATH)


def _read_line(order: int, line: LogLine) -> Iterator[Trouble]:
    """What one line tells: also of the Xid that it names as its cause, whose line may be lost."""
    xid = re.search(XID, line.text)
    if xid is not None:
        slot, code, said = slot_of(xid[1]), int(xid[2]), re.sub(_PROCESS, "", xid[3], count=1)
        causes = frozenset(int(each) for each in re.findall(_CAUSED, said)) - {code, _SUMMARY}
        for cause in sorted(causes):
            of = xid_info(cause)
            yield Trouble(
                slot, cause, of.grade, of.meaning, of.advice, order, 1, line.last_s, named_by=code
            )
        entry = xid_info(code)
        grade: Grade = entry.grade
        if code == _SUMMARY:
            grade = _wanted(said)
        elif entry.worded and re.search(_NONFATAL, said):
            grade = "configurable"
        meaning, advice = entry.meaning, entry.advice
        yield Trouble(
            slot, code, grade, meaning, advice, order, line.times, line.last_s, causes=causes
        )
        return
    for slot, words, grade, advice in _unnumbered(line.text):
        yield Trouble(slot, words, grade, "", advice, order, line.times, line.last_s)


def _wanted(said: str) -> Grade:
    """What Xid 154 asks for: it counts where the Xid that caused it is not in the log any more."""
    wants = said.rpartition(" to ")[2] or said
    return (
        "fatal" if re.search(_REBOOT, wants) else "reset" if re.search(_RESET, wants) else "notice"
    )


def _unnumbered(text: str) -> Iterator[tuple[str, str, Grade, str]]:
    if fell := re.search(_FELL, text):
        yield slot_of(fell[1]), OFF_THE_BUS, "fatal", xid_info(79).advice
    elif init := re.search(_INIT, text):
        slot = next(filter(None, init.groups()))
        yield slot_of(slot), "the driver could not start it", "fatal", xid_info(143).advice
    elif reset := re.search(_NEEDS_RESET, text):
        yield (
            slot_of(reset[1]),
            "the driver says that it needs a reset",
            "reset",
            xid_info(119).advice,
        )
    elif training := re.search(_TRAINING, text):
        advice = "drain, reseat its NVLink bridge or baseboard, look at nvidia-smi nvlink --status"
        yield training[1], "its NVLinks do not train", "reset", advice


_Key = tuple[str, int | str]
_Live = tuple[dict[str, dict[_Key, None]], dict[str, dict[_Key, None]]]
"""What is not over, by slot: troubles told in words, and Xids."""


def _over(text: str, live: _Live) -> list[_Key]:
    """Take out what a line says is over: for one GPU, or for all."""
    xid, over = re.search(XID, text), list[dict[_Key, None]]()
    if xid is not None and int(xid[2]) == _SUMMARY and re.search(_RECOVERED, xid[3]):
        over = [each.pop(slot_of(xid[1]), {}) for each in live]
    # "loading" comes after the GPUs were started: those that then failed are of this driver.
    for each in live if re.search(_MODULE, text) else live[1:] if re.search(_LOADED, text) else ():
        over += each.values()
        each.clear()
    return [key for keys in over for key in keys]


def _again(one: Trouble, before: Trouble) -> Trouble:
    """Of one that came before: the number of both, and the graver word for it.

    Its own lines know more than one that only names it as its cause, also whether it is over.
    """
    if one.named_by is not None:
        return before
    if before.old:
        return one
    if before.named_by is not None:
        return replace(one, order=before.order)
    causes = one.causes | before.causes
    graver = min(one.grade, before.grade, key=GRADES.index)
    return replace(
        one, times=one.times + before.times, grade=graver, order=before.order, causes=causes
    )


PROGRAM_EXCEPTION = 13
"""The Xid of a program that failed on the GPU, or of a part of the GPU that is broken."""
_MARK = f"): {PROGRAM_EXCEPTION},"
_PLACE = r"\((GPC \d+, TPC \d+)\b"
_PID = r"pid=(\d+)"


@dataclass(frozen=True, slots=True)
class Repeated:
    """One part of one GPU on which exceptions came at several times, and nowhere else then."""

    slot: str
    place: str
    """GPC 2, TPC 5."""
    bursts: int
    last_s: float


@dataclass(slots=True)
class _Burst:
    """Exceptions of one GPU that followed on each other: one crash of one program."""

    first_s: float
    last_s: float
    places: set[str]
    pids: set[str]


def repeated(lines: Iterable[LogLine], limit: Thresholds) -> dict[str, Repeated]:
    """By slot: the part that most crashes of its last day came from, where they are several.

    Crashes of one process are one: it may go on after an exception that it caught.
    """
    found = {}
    for slot, bursts in _bursts(lines, limit).items():
        recent = [b for b in bursts if bursts[-1].first_s - b.last_s < limit("same_tpc_within_s")]
        alone = [next(iter(each.places)) for each in recent if len(each.places) == 1]
        place = max(alone, key=Counter(alone).__getitem__, default="")
        there = [each for each in recent if each.places == {place}]
        pids = set().union(*(each.pids for each in there))
        if len(there) < limit("same_tpc_bursts") or 2 * len(there) <= len(recent):
            continue
        if len(pids) != 1 or not all(each.pids for each in there):
            found[slot] = Repeated(slot, place, len(there), there[-1].last_s)
    return found


def _bursts(lines: Iterable[LogLine], limit: Thresholds) -> dict[str, Sequence[_Burst]]:
    """The crashes of each GPU in their order, of which time and place are told."""
    apart_s, found = limit("same_tpc_apart_s"), dict[str, list[_Burst]]()
    told = [(line.at_s, line) for line in lines if line.at_s is not None and _MARK in line.text]
    for at_s, line in sorted(told, key=lambda each: each[0]):
        xid = re.search(XID, line.text)
        if xid is None or int(xid[2]) != PROGRAM_EXCEPTION:
            continue
        bursts = found.setdefault(slot_of(xid[1]), [])
        last_s = max(at_s, line.last_s or 0.0)
        if not bursts or at_s - bursts[-1].last_s > apart_s:
            bursts.append(_Burst(at_s, last_s, set(), set()))
        bursts[-1].last_s = max(bursts[-1].last_s, last_s)
        bursts[-1].places |= set(re.findall(_PLACE, line.text))
        bursts[-1].pids |= set(re.findall(_PID, line.text))
    located = {slot: [b for b in bursts if b.places] for slot, bursts in found.items()}
    return {slot: bursts for slot, bursts in located.items() if bursts}


def lost_slots(facts: Facts) -> set[str]:
    """GPUs that the log says are off the bus: PCIe errors on these are only an echo."""
    lines = facts.kernel_log.lines if facts.kernel_log is not None else ()
    return {e.slot for e in troubles(lines) if e.code in (79, OFF_THE_BUS) and not e.old}


def missing_slots(facts: Facts) -> tuple[str, ...]:
    """Those of them that do not answer any more."""
    answering = {slot_of(gpu.bus_id) for gpu in facts.gpus or ()}
    return tuple(sorted(lost_slots(facts) - answering))
