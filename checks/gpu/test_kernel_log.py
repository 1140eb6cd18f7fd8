"""What the NVIDIA driver wrote about GPUs and NVSwitches into the kernel log."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from preflight.check import Check
from preflight.checks.gpu.driver_log import (
    PROGRAM_EXCEPTION,
    GpuFault,
    SuspectPart,
    consequences,
    logged_faults,
    missing_slots,
    repeated_exceptions,
    root_causes,
    slot_of,
)
from preflight.checks.log_window import ago, elapsed_s, maybe_over, ok_if_read, unread, window
from preflight.core.files import shipped_table
from preflight.core.text import and_more, count
from preflight.core.thresholds import Thresholds
from preflight.facts import Facts, Gpu, Node
from preflight.facts.boards import advice_on_one_tpc, has_switch, recovery_xids
from preflight.facts.gpu import driver_too_old
from preflight.facts.machine import KernelLog, LogLine
from preflight.fleet.model import Expected
from preflight.verdict import Conclude, Verdict, fail, not_run, unknown, warn

CHECKS = (
    Check("gpu.xid", stage="facts", tier="prolog", requires=("reach.answer",), drains=True),
    Check("gpu.sxid", stage="facts", tier="prolog", requires=("reach.answer",), drains=True),
)


_AGAIN = "watch it; if it comes again: "
_MAX_GPUS = 4
_MAX_FAULTS_PER_GPU = 16
"""How many GPUs a sentence names, and how many faults of each."""


def judge_xid(expected: Expected, facts: Facts, limit: Thresholds) -> Verdict:
    """Report the gravest root-cause Xid; a program's own fault drains no node.

    Xids from before the driver was reloaded are a warning: their faults were reset.
    """
    log = facts.kernel_log
    gpus_expected = bool(expected.gpus) or bool(facts.gpus)
    no_gpu = not_run("no GPUs here, no Xid in the kernel log")
    if log is None:
        return unread(facts) if gpus_expected or facts.driver.state == "unknown" else no_gpu
    faults = _mark_settled(logged_faults(facts), facts)
    graded = [_site_grade(fault, expected) for fault in faults]
    if not graded and not gpus_expected and log.source != "text":
        return no_gpu
    repeats = repeated_exceptions(log.lines, limit)
    perhaps_settled = [fault for fault in graded if _may_be_settled(fault, facts)]
    certain = [fault for fault in graded if fault not in perhaps_settled]
    roots = [_suspect_part(fault, repeats.get(fault.slot), limit) for fault in root_causes(certain)]
    fault_fields = [_evidence(fault, _XID_KEYS) for fault in graded]
    evidence: dict[str, Any] = {"troubles": fault_fields, "log": log.source}
    grave = [fault for fault in roots if fault.grade in ("fatal", "reset") and not fault.settled]
    if grave:
        words = _xid_words(grave, graded, facts)
        return maybe_over(words, log, **evidence) or fail(
            f"{words}; expected no Xid that needs a reset {window(log, facts)}",
            advice=_advice(grave),
            cause=_cause(grave, facts),
            **evidence,
        )
    if perhaps_settled:
        words = _xid_words(perhaps_settled, graded, facts)
        return unknown(
            f"{words}; whether the GPU was reset since could not be read",
            advice="recheck; if it stays, look for NVRM in dmesg, drain and reset the GPU",
            **evidence,
        )
    if notable := [fault for fault in roots if _notable(fault, facts, limit)]:
        advice = _advice(notable).replace("drain, ", "").replace("reset the GPU, ", "")
        period = ""
        if all(fault.settled for fault in notable):
            period, advice = ", before the GPU was reset", f"{_AGAIN}{_advice(notable)}"
        return warn(
            f"{_xid_words(notable, graded, facts)}{period}; none needs a reset at once",
            advice=advice,
            user=all(fault.grade == "application" for fault in notable),
            **evidence,
            **_places(notable),
        )
    older = f"; {count(len(roots), 'older note')} that need no reset" if roots else ""
    summary = f"no Xid {window(log, facts)} asks for a reset{older}"
    return ok_if_read(summary, log, ("xid", "nvrm"), **evidence)


def _mark_settled(faults: Sequence[GpuFault], facts: Facts) -> list[GpuFault]:
    """Mark as settled the faults that need no action any more, as the driver itself reports."""
    slots = {
        slot_of(gpu.bus_id)
        for gpu in facts.gpus or ()
        if gpu.health is not None and gpu.health.recovery_action == "none"
    }
    codes = recovery_xids()
    return [
        replace(fault, settled=fault.settled or (fault.slot in slots and fault.code in codes))
        for fault in faults
    ]


def _may_be_settled(fault: GpuFault, facts: Facts) -> bool:
    """Whether that GPU's recovery action was requested from the driver and could not be read."""
    if fault.settled or fault.grade not in ("fatal", "reset") or fault.code not in recovery_xids():
        return False
    gpu = _gpu_at(fault.slot, facts)
    if gpu is None:
        return facts.driver.state in ("answered", "error", "hung")
    return gpu.refused("recovery_action")


def _gpu_at(slot: str, facts: Facts) -> Gpu | None:
    return next((gpu for gpu in facts.gpus or () if slot_of(gpu.bus_id) == slot), None)


def _site_grade(fault: GpuFault, expected: Expected) -> GpuFault:
    if fault.code in (expected.fatal_xids or ()) and fault.grade != "fatal":
        return replace(fault, grade="reset")
    if fault.code in (expected.tolerated_xids or ()):
        return replace(fault, grade="notice")
    return fault


def _suspect_part(fault: GpuFault, part: SuspectPart | None, limit: Thresholds) -> GpuFault:
    """A program's exception that repeats in one part of the GPU: that part may be broken."""
    if part is None or fault.code != PROGRAM_EXCEPTION or fault.grade != "application":
        return fault
    words = f"{part.bursts} times apart on {part.place} alone"
    meaning = f"{words}: from {limit('same_tpc_bursts'):g} on its hardware may be at fault"
    suspect = replace(fault, grade="configurable", meaning=meaning, advice=advice_on_one_tpc())
    return replace(suspect, place=part.place, times=1)


def _notable(fault: GpuFault, facts: Facts, limit: Thresholds) -> bool:
    """Whether an operator should see it: a program's own fault is notable for one day only."""
    if fault.grade in ("fatal", "reset", "configurable"):
        return True
    since_s = elapsed_s(fault.last_s, facts)
    return since_s is None or since_s < limit("application_xid_s")


def _xid_words(faults: Sequence[GpuFault], all_faults: Sequence[GpuFault], facts: Facts) -> str:
    """GPU 3 (0000:5d:00): Xid 79 (...), 2 h ago; GPU 5 ..."""
    slots = list(dict.fromkeys(fault.slot for fault in faults))
    parts = []
    for slot in slots[:_MAX_GPUS]:
        at_slot = [fault for fault in faults if fault.slot == slot]
        shown_faults = at_slot[:_MAX_FAULTS_PER_GPU]
        words = ", ".join(f.label + f" {f.times} times" * (f.times > 1) for f in shown_faults)
        words += and_more(len(at_slot) - _MAX_FAULTS_PER_GPU)
        echoes = [echo for fault in shown_faults for echo in consequences(fault, all_faults)]
        codes = dict.fromkeys(echo.code for echo in echoes)
        numbers = [str(code) for code in codes if isinstance(code, int)]
        words += f", then Xid {', '.join(numbers)}" if numbers else ""
        parts.append(f"{_name(slot, facts)}: {words}{ago(at_slot[-1].last_s, facts)}")
    more = f"; and {len(slots) - _MAX_GPUS} more GPUs" if len(slots) > _MAX_GPUS else ""
    return "; ".join(parts) + more


def _name(slot: str, facts: Facts) -> str:
    for gpu in facts.gpus or ():
        if gpu.bus_id and slot_of(gpu.bus_id) == slot:
            return f"GPU {gpu.index} ({slot})"
    return slot if slot.startswith("GPU") else f"GPU {slot}"


def _advice(faults: Sequence[GpuFault]) -> str:
    """The advice for the first fault, with its number if there are several."""
    first = faults[0]
    number = f"Xid {first.code}: " if isinstance(first.code, int) and len(faults) > 1 else ""
    return number + first.advice


def _cause(grave_faults: Sequence[GpuFault], facts: Facts) -> str:
    """The cause, named as by the other checks that find the same faulty GPU."""
    slot, *others = {fault.slot for fault in grave_faults}
    if others:
        return ""
    if slot in missing_slots(facts):
        return "gpu.count"
    gpu = _gpu_at(slot, facts)
    return f"gpu {slot}" if gpu is None else f"memory of GPU{gpu.index}"


def _places(faults: Sequence[GpuFault]) -> dict[str, Any]:
    """The suspected part by GPU, where there is one."""
    places = {fault.slot: fault.place for fault in faults if fault.place}
    return {"places": places} if places else {}


_XID_KEYS = {"gpu": "slot", "xid": "code", "class": "grade", "times": "times", "last_s": "last_s",
           "old": "settled"}  # fmt: skip
_SXID_KEYS = {"switch": "switch", "bus_id": "bus_id", "sxid": "code", "fatal": "fatal",
            "link": "link", "times": "times", "last_s": "last_s"}  # fmt: skip


def _evidence(fault: GpuFault | SwitchFault, names: Mapping[str, str]) -> dict[str, object]:
    """The fields of a fault, under the keys of the report."""
    return {key: getattr(fault, name) for key, name in names.items()}


def test_gpu_xid(node: Node, conclude: Conclude) -> None:
    """No Xid in the kernel log means that a GPU must be reset, power-cycled or replaced."""
    conclude(judge_xid(node.expected, node.facts, node.limit))


_SXID = re.compile(
    r"^(nvidia-nvswitch\d*): SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d{4,6}), "
    r"(Non-[Ff]atal|Fatal|Data|Severity)\b(.*)"
)
"""The driver writes three lines for each: grade and text, then Severity and Data."""
_LINK = re.compile(r"\bLink (\d{1,3})\b")
_RELOADED = re.compile(r"^nvidia-nvlink: (?:Nvlink Core is being|Unregistered)")
_LINK_LOST = 20034
"""The switch's end of a link went down: what it sees when the GPU at the other end is lost."""

_LINK_XIDS = {48, 62, 74, 79, 119, 120, 143}
"""Xids of a GPU that take its links down, or that report the same link from its end."""


class SwitchFault(Struct, frozen=True):
    """One SXid that the switch's driver wrote."""

    switch: str
    bus_id: str
    code: int
    fatal: bool | None
    """None where the line with the grade is not in the log."""
    link: str
    order: int
    times: int
    last_s: float | None

    @property
    def part(self) -> tuple[str, str]:
        """The part of the switch, and what to do about it."""
        for first, last, meaning, advice in _parts():
            if first <= self.code <= last:
                return meaning, advice
        return "not in preflight's table", "look it up in NVIDIA's Fabric Manager user guide"


def switch_faults(lines: Sequence[LogLine]) -> tuple[list[SwitchFault], list[SwitchFault]]:
    """All SXids: those from before the driver was reloaded, and those since."""
    old: list[SwitchFault] = []
    new: list[SwitchFault] = []
    for order, line in enumerate(lines):
        if "nvidia-nv" not in line.text:
            continue
        if _RELOADED.search(line.text):
            old += _merge_lines(new)
            new = []
        if match := _SXID.search(line.text):
            link = _LINK.search(match[5])
            fatal = None if match[4] in ("Data", "Severity") else match[4] == "Fatal"
            fields = match[1], match[2], int(match[3]), fatal, link[1] if link else ""
            new.append(SwitchFault(*fields, order, line.times, line.last_s))
    return old, _merge_lines(new)


def _merge_lines(faults: Sequence[SwitchFault]) -> list[SwitchFault]:
    """Leave out further lines of an SXid; keep one line of an SXid without a grade."""
    distinct: dict[object, SwitchFault] = {}
    graded = {(fault.bus_id, fault.code) for fault in faults if fault.fatal is not None}
    for fault in faults:
        if fault.fatal is not None:
            distinct[fault.order] = fault
        elif (fault.bus_id, fault.code) not in graded:
            distinct.setdefault((fault.bus_id, fault.code), fault)
    return list(distinct.values())


def judge_sxid(facts: Facts) -> Verdict:
    """A fatal SXid since the driver was loaded fails the node, unless a GPU's Xid explains it."""
    log = facts.kernel_log
    with_switch = has_switch(facts.gpus or ())
    if log is None:
        no_switch_expected = not with_switch and facts.driver.state != "unknown"
        return _no_switch(facts) if no_switch_expected else unread(facts)
    old, new = switch_faults(log.lines)
    if not old and not new and not with_switch and log.source != "text":
        return _no_switch(facts)
    fault_fields = [_evidence(fault, _SXID_KEYS) for fault in (*old, *new)]
    evidence: dict[str, Any] = {"sxids": fault_fields, "log": log.source}
    fatal = [fault for fault in new if fault.fatal]
    explained = _explained(facts)
    unexplained = [fault for fault in fatal if not (fault.code == _LINK_LOST and explained)]
    if unexplained:
        words = _sxid_words(unexplained, facts)
        return maybe_over(words, log, **evidence) or fail(
            f"{words}; expected no fatal SXid {window(log, facts)}",
            advice=unexplained[0].part[1],
            cause="nvswitch",
            **evidence,
        )
    earlier = [fault for fault in old if fault.fatal]
    if fatal or earlier:
        why = "a GPU's Xid reports the same link" if fatal else "before the driver was reloaded"
        return warn(
            f"{_sxid_words(fatal or earlier, facts)}: {why}",
            advice="see gpu.xid" if fatal else "recheck under load; replace if it comes again",
            **evidence,
        )
    return _not_fatal_verdict(old, new, log, facts, evidence)


def _not_fatal_verdict(
    old: Sequence[SwitchFault],
    new: Sequence[SwitchFault],
    log: KernelLog,
    facts: Facts,
    evidence: dict[str, Any],
) -> Verdict:
    """The verdict where no SXid is known to be fatal, but one may be."""
    period = window(log, facts)
    explained = _explained(facts)
    ungraded = [e for e in new if e.fatal is None and not (e.code == _LINK_LOST and explained)]
    if ungraded:
        words = _sxid_words(ungraded, facts)
        return unknown(
            f"{words}: the line that says Fatal or Non-fatal was not found {period}",
            advice=f"look for it (dmesg, journalctl -k); if it is fatal: {ungraded[0].part[1]}",
            **evidence,
        )
    if ungraded := [fault for fault in old if fault.fatal is None]:
        return warn(
            f"{_sxid_words(ungraded, facts)}: before the driver was reloaded",
            advice="recheck under load",
            **evidence,
        )
    note = f"; {count(len(old) + len(new), 'kind')} of non-fatal ones" if old or new else ""
    return ok_if_read(f"no fatal SXid {period}{note}", log, ("sxid",), **evidence)


def _no_switch(facts: Facts) -> Verdict:
    has_links = any(gpu.links for gpu in facts.gpus or ())
    far_ends = "kind of the NVLinks' far ends"
    too_old = has_links and driver_too_old(facts.driver.version, ("remote_kind",), far_ends)
    return not_run(f"{too_old or 'no NVSwitch here'}, no SXid in its kernel log")


def _explained(facts: Facts) -> bool:
    return any(
        fault.code in _LINK_XIDS and fault.grade in ("fatal", "reset") and not fault.settled
        for fault in root_causes(logged_faults(facts))
    )


def _sxid_words(faults: Sequence[SwitchFault], facts: Facts) -> str:
    first = faults[0]
    link = f" link {first.link}" if first.link else ""
    links = {(fault.switch, fault.link) for fault in faults}
    more = f" (and {len(links) - 1} more links or switches)" if len(links) > 1 else ""
    label = f"{'fatal ' if first.fatal else ''}SXid {first.code} ({first.part[0]})"
    return f"{first.switch} ({first.bus_id}){link}: {label}{more}{ago(faults[-1].last_s, facts)}"


@cache
def _parts() -> tuple[tuple[int, int, str, str], ...]:
    table = shipped_table(__file__, "sxids.toml")
    advice = table["advice"]
    return tuple(
        (part["first"], part["last"], part["meaning"], advice[part["scope"]])
        for part in table["part"]
    )


def test_gpu_sxid(node: Node, conclude: Conclude) -> None:
    """No NVSwitch of the node wrote a fatal SXid: it takes NVLink away from all of its GPUs."""
    conclude(judge_sxid(node.facts))
