"""What the kernel wrote of broken parts of the host: PCIe, CPU and memory (AER, MCE, EDAC)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from preflight.facts.gpu_log import slot_of
from preflight.facts.kernel_log import ago, elapsed_s, span_s, unread, whole, window
from preflight.facts.limits import limit
from preflight.facts.pcie_recovery import BDF as _BDF
from preflight.facts.pcie_recovery import Recoveries
from preflight.facts.words import count
from preflight.facts.xid_verdict import lost_slots
from preflight.verdict import fail, warn

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from preflight.facts.kernel_model import LogLine
    from preflight.facts.model import Facts
    from preflight.verdict import Verdict

Part = Literal["pcie", "cpu", "memory", "firmware"]
Grade = Literal["fatal", "uncorrected", "unrecovered", "corrected", "earlier"]
"""`uncorrected`: the node goes on. `unrecovered`: a driver that no job needs did not get over it.

`earlier`: of the boot before this one.
"""

_HINT = re.compile(
    r"PCIe Bus Error|AER: |AER-aware|evice recovery|DPC: |Hardware Error|MCE: |mce: |Memory f"
    r"|BERT: |EDAC "
)
"""Few lines are looked at closely."""

# What a user may name stands in some lines: each pattern begins where the line does.
_MCE = r"(?:mce: |MCE: )?\[Hardware Error\]: "
_AER = re.compile(
    rf"(?:\S+ )?(?P<agent>{_BDF}): PCIe Bus Error: severity=(?P<grade>Un)?[Cc]orrect(?:ed|able)"
    r"(?:,? \(?(?P<fatal>(?:Non-)?Fatal)\)?)?",
    re.IGNORECASE,
)
_AER_SUMMARY = re.compile(
    rf"(?:\S+ )?(?P<port>{_BDF}): AER: (?:Multiple )?(?P<grade>Un)?correct(?:ed|able)"
    rf"(?: \((?P<fatal>(?:Non-)?Fatal)\))? error (?:message )?received:? "
    rf"(?:from )?(?P<agent>{_BDF})?",
    re.IGNORECASE,
)
_DPC = re.compile(rf"(?:\S+ )?(?P<agent>{_BDF}): DPC: containment event")
_BANK = re.compile(
    rf"{_MCE}CPU ?(?P<cpu>\d+): Machine Check(?: Exception)?: [0-9a-f]+ "
    r"Bank (?P<bank>\d+): (?P<status>[0-9a-f]{16})"
)
_UNCORRECTED_BIT = 1 << 61
_DECODED = re.compile(rf"{_MCE}(Corrected error|Uncorrected|Deferred error|System Fatal)")
_SEVERITY = re.compile(r"\{\d+\}\[Hardware Error\]: event severity: (\w+)")
_POISON = re.compile(
    r"mce: Uncorrected hardware memory error in user-access at [0-9a-f]+"
    r"|Memory failure: 0x[0-9a-f]+: (?!already|recovery action for already)"
    r"|(?P<process>MCE: Killing .{1,15}:\d+ due to hardware memory corruption fault at )"
)
"""That a process died is no proof: from Linux 6.6 on any process may poison its own pages
(UFFDIO_POISON), and of memory that is really broken the kernel says so first."""
_BERT = re.compile(r"BERT: (?:Total records found|\[Hardware Error\])")
_EDAC = re.compile(
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


@dataclass(frozen=True, slots=True)
class Fault:
    """Errors of one part; `where` is a PCI address, a CPU or a DIMM."""

    part: Part
    where: str
    grade: Grade
    times: int
    last_s: float | None


def faults(lines: Sequence[LogLine]) -> list[Fault]:
    """All errors by part, place and grade, in the order in which each came first."""
    found: dict[tuple[Part, str, Grade], Fault] = {}
    summaries: dict[tuple[Part, str, Grade], Fault] = {}
    recoveries = Recoveries()
    for line in lines:
        if not _HINT.search(line.text):
            continue
        recoveries.take(line.text)
        for one, summary in _faults(line):
            if one.part == "pcie" and one.grade == "uncorrected":
                recoveries.error(one.where, line)
            into = summaries if summary else found
            key = (one.part, one.where, one.grade)
            before = into.get(key)
            times = one.times + (before.times if before else 0)
            into[key] = Fault(one.part, one.where, one.grade, times, one.last_s)
    # A summary is written beside the errors themselves, whose lines may be rate-limited.
    for key, each in summaries.items():
        if key not in found or each.times > found[key].times:
            found[key] = each
    return _as_they_ended(list(found.values()), recoveries)


def _as_they_ended(found: list[Fault], recoveries: Recoveries) -> list[Fault]:
    """Grade what was not corrected by what became of it; a device that nothing else names, too."""
    ended = []
    for each in found:
        how = recoveries.ended.get(each.where) if each.part == "pcie" else None
        ended.append(replace(each, grade=how) if how and each.grade == "uncorrected" else each)
    named = {each.where for each in found if each.grade in ("fatal", "uncorrected")}
    alone = [where for where in recoveries.ended if where not in named]
    return ended + [Fault("pcie", where, "unrecovered", 1, None) for where in alone]


def judge_hardware_log(facts: Facts) -> Verdict:
    """What was not corrected fails the node; what was corrected, when it comes by the hundred."""
    log = facts.kernel_log
    if log is None:
        return unread(facts)
    lost = lost_slots(facts)
    said = [each for each in faults(log.lines) if not _echoes_a_gpu(each, lost, facts)]
    evidence: dict[str, Any] = {"faults": [_evidence(each) for each in said], "log": log.source}
    graves = [each for each in said if each.grade == "fatal"]
    if graves:
        return fail(
            f"{_told(graves, facts)}; expected no uncorrected error {window(log, facts)}",
            advice=_ADVICE[graves[0].part],
            **evidence,
        )
    days = max(1.0, (span_s(log, facts) or 0.0) / 86400)
    notable = [each for each in said if each.grade != "corrected" or _storms(each, days, facts)]
    if notable:
        first = notable[0]
        expected = f"; expected under {_most(first):.0f} in a day" * (first.grade == "corrected")
        advice = _ADVICE[first.part].removeprefix("drain; ")
        return warn(f"{_told(notable, facts)}{expected}", advice=advice, **evidence)
    corrected = sum(each.times for each in said)
    rest = f"; {count(corrected, 'corrected error')}, few enough" if corrected else ""
    sentence = f"no uncorrected hardware error {window(log, facts)}{rest}"
    return whole(sentence, log, ("aer", "mce", "edac"), **evidence)


def _faults(line: LogLine) -> Iterator[tuple[Fault, bool]]:
    """Read one line; with each fault, whether it is a summary of others."""

    def one(part: Part, where: str, grade: Grade, times: int = 1) -> Fault:
        return Fault(part, where, grade, line.times * times, line.last_s)

    text = line.text
    if found := _AER.match(text) or _AER_SUMMARY.match(text):
        named = found.groupdict()
        yield one("pcie", named["agent"] or named["port"], _severity(named)), "port" in named
    elif found := _DPC.match(text):
        yield one("pcie", found["agent"], "fatal"), False
    elif found := _BANK.match(text):
        grade: Grade = "fatal" if int(found["status"], 16) & _UNCORRECTED_BIT else "corrected"
        yield one("cpu", f"CPU {found['cpu']} bank {found['bank']}", grade), False
    elif found := _DECODED.match(text):
        yield one("cpu", "", "corrected" if found[1].startswith("Corr") else "fatal"), False
    elif found := _SEVERITY.match(text):
        grades: dict[str, Grade] = {"fatal": "fatal", "recoverable": "uncorrected"}
        yield one("cpu", "", grades.get(found[1], "corrected")), False
    elif found := _POISON.match(text):
        yield one("memory", "", "uncorrected" if found["process"] else "fatal"), False
    elif _BERT.match(text):
        yield one("firmware", "", "earlier"), False
    elif found := _EDAC.match(text):
        grade = "fatal" if found["kind"] == "UE" else "corrected"
        times = min(int(found["times"][:9]), 10**9) or 1
        yield one("memory", f"{found['dimm']} ({found['mc']})", grade, times), False


def _severity(named: dict[str, str | None]) -> Grade:
    if not named["grade"]:
        return "corrected"
    return "uncorrected" if (named["fatal"] or "").lower() == "non-fatal" else "fatal"


def _echoes_a_gpu(one: Fault, lost: Collection[str], facts: Facts) -> bool:
    """Whether it is of a GPU that fell off the bus, or of a port on the way to it."""
    if one.part != "pcie" or not lost:
        return False
    ways = [g.pci_path for g in facts.gpus or () if g.pci_path and slot_of(g.bus_id) in lost]
    return slot_of(one.where) in lost or any(one.where in way for way in ways)


def _storms(one: Fault, days: float, facts: Facts) -> bool:
    since_s = elapsed_s(one.last_s, facts)
    return one.times / days >= _most(one) and (since_s is None or since_s < 86400)  # noqa: PLR2004


def _most(one: Fault) -> float:
    return limit("corrected_dimm_per_day" if one.part == "memory" else "corrected_errors_per_day")


def _told(found: Sequence[Fault], facts: Facts) -> str:
    first = found[0]
    where = f" of {first.where}" if first.where else ""
    words = f"{_GRADES[first.grade]}{_PARTS[first.part]}{where}"
    often = f" ({first.times} times)" if first.times > 1 else ""
    more = f"; and {count(len(found) - 1, 'more part')}" if len(found) > 1 else ""
    return f"{words}{often}{ago(first.last_s, facts)}{more}"


def _evidence(one: Fault) -> dict[str, object]:
    return {
        "part": one.part,
        "where": one.where,
        "grade": one.grade,
        "times": one.times,
        "last_s": one.last_s,
    }
