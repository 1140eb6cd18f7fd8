"""What the NVIDIA driver wrote about GPUs and NVSwitches into the kernel log."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from preflight.check import Check
from preflight.checks.gpu.connections import has_switch
from preflight.checks.gpu.driver_log import (
    PROGRAM_EXCEPTION,
    GpuFault,
    Repeated,
    consequences,
    logged_faults,
    missing_slots,
    repeated,
    root_causes,
    slot_of,
)
from preflight.checks.log_window import ago, elapsed_s, maybe_over, unread, whole, window
from preflight.core.files import shipped_table
from preflight.core.text import and_more, count
from preflight.core.thresholds import Thresholds
from preflight.facts import Facts, Gpu, Node
from preflight.facts.boards import advice_again, in_recovery_action
from preflight.facts.gpu import too_old
from preflight.facts.machine import KernelLog, LogLine
from preflight.fleet.model import Expected
from preflight.verdict import Conclude, Verdict, fail, not_run, unknown, warn

CHECKS = (
    Check("gpu.xid", stage="facts", tier="prolog", requires=("reach.answer",), drains=True),
    Check("gpu.sxid", stage="facts", tier="prolog", requires=("reach.answer",), drains=True),
)


_SHOWN = 4
_LABELS = 16
"""Faults of one GPU in a sentence."""


def judge_xid(expected: Expected, facts: Facts, limit: Thresholds) -> Verdict:
    """Report the gravest root-cause Xid; a program's own fault drains no node.

    Xids from before the driver was reloaded are a warning: their faults were reset.
    """
    log = facts.kernel_log
    expects = bool(expected.gpus) or bool(facts.gpus)
    none_here = not_run("no GPUs here, no Xid in the kernel log")
    if log is None:
        return unread(facts) if expects or facts.driver.state == "unknown" else none_here
    settled = _mark_settled(logged_faults(facts), facts)
    graded = [_site_grade(each, expected) for each in settled]
    if not graded and not expects and log.source != "text":
        return none_here
    again = repeated(log.lines, limit)
    unsure = [each for each in graded if _may_be_settled(each, facts)]
    rest = [each for each in graded if each not in unsure]
    found = [_suspect_part(each, again.get(each.slot), limit) for each in root_causes(rest)]
    listed = [_evidence(each, _OF_XID) for each in graded]
    evidence: dict[str, Any] = {"troubles": listed, "log": log.source}
    graves = [each for each in found if each.grade in ("fatal", "reset") and not each.old]
    if graves:
        words = _xid_words(graves, graded, facts)
        return maybe_over(words, log, **evidence) or fail(
            f"{words}; expected no Xid that needs a reset {window(log, facts)}",
            advice=_advice(graves),
            cause=_cause(graves, facts),
            **evidence,
        )
    if unsure:
        words = _xid_words(unsure, graded, facts)
        return unknown(
            f"{words}; whether the GPU was reset since could not be read",
            advice="recheck; if it stays, look for NVRM in dmesg, drain and reset the GPU",
            **evidence,
        )
    notable = [each for each in found if _notable(each, facts, limit)]
    if notable:
        then = ", before the GPU was reset" if all(each.old for each in notable) else ""
        return warn(
            f"{_xid_words(notable, graded, facts)}{then}; none needs a reset at once",
            advice=_advice(notable).replace("drain, ", "").replace("reset the GPU, ", ""),
            user=all(each.grade == "application" for each in notable),
            **evidence,
            **_places(notable),
        )
    older = f"; {count(len(found), 'older note')} that need no reset" if found else ""
    summary = f"no Xid {window(log, facts)} asks for a reset{older}"
    return whole(summary, log, ("xid", "nvrm"), **evidence)


def _mark_settled(reported: Sequence[GpuFault], facts: Facts) -> list[GpuFault]:
    """Mark as old the faults that need no action any more, as the driver itself reports."""
    calm = {
        slot_of(gpu.bus_id)
        for gpu in facts.gpus or ()
        if gpu.health is not None and gpu.health.recovery_action == "none"
    }
    covered = in_recovery_action()
    return [
        replace(each, old=each.old or (each.slot in calm and each.code in covered))
        for each in reported
    ]


def _may_be_settled(one: GpuFault, facts: Facts) -> bool:
    """Whether that GPU's recovery action was requested from the driver and could not be read."""
    if one.old or one.grade not in ("fatal", "reset") or one.code not in in_recovery_action():
        return False
    own = _gpu_at(one.slot, facts)
    if own is None:
        return facts.driver.state in ("answered", "error", "hung")
    return own.refused("recovery_action")


def _gpu_at(slot: str, facts: Facts) -> Gpu | None:
    return next((gpu for gpu in facts.gpus or () if slot_of(gpu.bus_id) == slot), None)


def _site_grade(one: GpuFault, expected: Expected) -> GpuFault:
    if one.code in (expected.fatal_xids or ()) and one.grade != "fatal":
        return replace(one, grade="reset")
    return replace(one, grade="notice") if one.code in (expected.tolerated_xids or ()) else one


def _suspect_part(one: GpuFault, again: Repeated | None, limit: Thresholds) -> GpuFault:
    """A program's exception that repeats in one part of the GPU: that part may be broken."""
    if again is None or one.code != PROGRAM_EXCEPTION or one.grade != "application":
        return one
    seen = f"{again.bursts} times apart on {again.place} alone"
    meaning = f"{seen}: from {limit('same_tpc_bursts'):g} on its hardware may be at fault"
    suspected = replace(one, grade="configurable", meaning=meaning, advice=advice_again())
    return replace(suspected, place=again.place, times=1)


def _notable(one: GpuFault, facts: Facts, limit: Thresholds) -> bool:
    """Whether an operator should see it: a program's own fault is notable for one day only."""
    if one.grade in ("fatal", "reset", "configurable"):
        return True
    since_s = elapsed_s(one.last_s, facts)
    return since_s is None or since_s < limit("application_xid_s")


def _xid_words(found: Sequence[GpuFault], reported: Sequence[GpuFault], facts: Facts) -> str:
    """GPU 3 (0000:5d:00): Xid 79 (...), 2 h ago; GPU 5 ..."""
    slots = list(dict.fromkeys(each.slot for each in found))
    parts = []
    for slot in slots[:_SHOWN]:
        own = [each for each in found if each.slot == slot]
        first = own[:_LABELS]
        words = ", ".join(each.label + f" {each.times} times" * (each.times > 1) for each in first)
        words += and_more(len(own) - _LABELS)
        then = dict.fromkeys(
            str(echo.code) for each in first for echo in consequences(each, reported)
        )
        numbers = [code for code in then if code.isdecimal()]
        words += f", then Xid {', '.join(numbers)}" if numbers else ""
        parts.append(f"{_name(slot, facts)}: {words}{ago(own[-1].last_s, facts)}")
    more = f"; and {len(slots) - _SHOWN} more GPUs" if len(slots) > _SHOWN else ""
    return "; ".join(parts) + more


def _name(slot: str, facts: Facts) -> str:
    for gpu in facts.gpus or ():
        if gpu.bus_id and slot_of(gpu.bus_id) == slot:
            return f"GPU {gpu.index} ({slot})"
    return slot if slot.startswith("GPU") else f"GPU {slot}"


def _advice(found: Sequence[GpuFault]) -> str:
    """The advice for the first fault, with its number if there are several."""
    first = found[0]
    number = f"Xid {first.code}: " if isinstance(first.code, int) and len(found) > 1 else ""
    return number + first.advice


def _cause(graves: Sequence[GpuFault], facts: Facts) -> str:
    """The cause, named as by the other checks that find the same faulty GPU."""
    slot, *others = {each.slot for each in graves}
    if others:
        return ""
    if slot in missing_slots(facts):
        return "gpu.count"
    own = _gpu_at(slot, facts)
    return f"gpu {slot}" if own is None else f"memory of GPU{own.index}"


def _places(notable: Sequence[GpuFault]) -> dict[str, Any]:
    """The suspected part by GPU, where there is one."""
    places = {each.slot: each.place for each in notable if each.place}
    return {"places": places} if places else {}


_OF_XID = {"gpu": "slot", "xid": "code", "class": "grade", "times": "times", "last_s": "last_s",
           "old": "old"}  # fmt: skip
_OF_SXID = {"switch": "switch", "bus_id": "bus_id", "sxid": "code", "fatal": "fatal",
            "link": "link", "times": "times", "last_s": "last_s"}  # fmt: skip


def _evidence(one: GpuFault | SwitchFault, names: Mapping[str, str]) -> dict[str, object]:
    """The fields of a fault, under the keys of the report."""
    return {key: getattr(one, name) for key, name in names.items()}


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

_TAKES_LINKS = {48, 62, 74, 79, 119, 120, 143}
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
            old += _graded(new)
            new = []
        if found := _SXID.search(line.text):
            link = _LINK.search(found[5])
            fatal = None if found[4] in ("Data", "Severity") else found[4] == "Fatal"
            where = found[1], found[2], int(found[3]), fatal, link[1] if link else ""
            new.append(SwitchFault(*where, order, line.times, line.last_s))
    return old, _graded(new)


def _graded(found: Sequence[SwitchFault]) -> list[SwitchFault]:
    """Leave out further lines of an SXid; keep one line of an SXid without a grade."""
    kept: dict[object, SwitchFault] = {}
    graded = {(each.bus_id, each.code) for each in found if each.fatal is not None}
    for each in found:
        if each.fatal is not None:
            kept[each.order] = each
        elif (each.bus_id, each.code) not in graded:
            kept.setdefault((each.bus_id, each.code), each)
    return list(kept.values())


def judge_sxid(facts: Facts) -> Verdict:
    """A fatal SXid since the driver was loaded fails the node, unless a GPU's Xid explains it."""
    log = facts.kernel_log
    switched = has_switch(facts.gpus or ())
    if log is None:
        known = not switched and facts.driver.state != "unknown"
        return _no_switch(facts) if known else unread(facts)
    old, new = switch_faults(log.lines)
    if not old and not new and not switched and log.source != "text":
        return _no_switch(facts)
    listed = [_evidence(each, _OF_SXID) for each in (*old, *new)]
    evidence: dict[str, Any] = {"sxids": listed, "log": log.source}
    fatal = [each for each in new if each.fatal]
    explained = _explained(facts)
    own = [each for each in fatal if not (each.code == _LINK_LOST and explained)]
    if own:
        words = _sxid_words(own, facts)
        return maybe_over(words, log, **evidence) or fail(
            f"{words}; expected no fatal SXid {window(log, facts)}",
            advice=own[0].part[1],
            cause="nvswitch",
            **evidence,
        )
    earlier = [each for each in old if each.fatal]
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
    if ungraded := [each for each in old if each.fatal is None]:
        return warn(
            f"{_sxid_words(ungraded, facts)}: before the driver was reloaded",
            advice="recheck under load",
            **evidence,
        )
    rest = f"; {count(len(old) + len(new), 'kind')} of non-fatal ones" if old or new else ""
    return whole(f"no fatal SXid {period}{rest}", log, ("sxid",), **evidence)


def _no_switch(facts: Facts) -> Verdict:
    joined = any(gpu.links for gpu in facts.gpus or ())
    far_ends = "kind of the NVLinks' far ends"
    older = joined and too_old(facts.driver.version, ("remote_kind",), far_ends)
    return not_run(f"{older or 'no NVSwitch here'}, no SXid in its kernel log")


def _explained(facts: Facts) -> bool:
    return any(
        each.code in _TAKES_LINKS and each.grade in ("fatal", "reset") and not each.old
        for each in root_causes(logged_faults(facts))
    )


def _sxid_words(found: Sequence[SwitchFault], facts: Facts) -> str:
    first = found[0]
    link = f" link {first.link}" if first.link else ""
    links = {(each.switch, each.link) for each in found}
    more = f" (and {len(links) - 1} more links or switches)" if len(links) > 1 else ""
    what = f"{'fatal ' if first.fatal else ''}SXid {first.code} ({first.part[0]})"
    return f"{first.switch} ({first.bus_id}){link}: {what}{more}{ago(found[-1].last_s, facts)}"


@cache
def _parts() -> tuple[tuple[int, int, str, str], ...]:
    table = shipped_table(__file__, "sxids.toml")
    advice = table["advice"]
    return tuple(
        (each["first"], each["last"], each["meaning"], advice[each["scope"]])
        for each in table["part"]
    )


def test_gpu_sxid(node: Node, conclude: Conclude) -> None:
    """No NVSwitch of the node wrote a fatal SXid: it takes NVLink away from all of its GPUs."""
    conclude(judge_sxid(node.facts))
