"""What the NVIDIA driver wrote of GPUs and NVSwitches into the kernel log."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from preflight.check import Check
from preflight.checks.gpu.driver_log import judge_xids, roots, troubles
from preflight.checks.kernel_log import ago, unread, whole, window
from preflight.facts import Facts, Node
from preflight.facts.words import count
from preflight.fleet.model import Promise
from preflight.verdict import Conclude, Verdict, fail, not_run, unknown, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.facts.machine import KernelLog, LogLine


XID = Check("gpu.xid", stage="facts", tier="prolog", requires=("reach.answer",), drains=True)


def judge_xid(promised: Promise, facts: Facts) -> Verdict:
    """The gravest Xid that is no echo of another; a program's own fault drains nothing."""
    return judge_xids(
        promised.gpus, facts, promised.fatal_xids or (), promised.tolerated_xids or ()
    )


def test_gpu_xid(node: Node, conclude: Conclude) -> None:
    """No Xid in the kernel log says that a GPU must be reset, power-cycled or replaced."""
    conclude(judge_xid(node.promised, node.facts))


_SXID = re.compile(
    r"^(nvidia-nvswitch\d*): SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d{4,6}), "
    r"(Non-[Ff]atal|Fatal|Data|Severity)\b(.*)"
)
"""The driver writes three lines of each: its grade and words, then Severity and Data."""
_LINK = re.compile(r"\bLink (\d{1,3})\b")
_RELOADED = re.compile(r"^nvidia-nvlink: (?:Nvlink Core is being|Unregistered)")
_LINK_LOST = 20034
"""The switch's end of a link went down: what it sees when the GPU at the other end is lost."""

_TAKES_LINKS = {48, 62, 74, 79, 119, 120, 143}
"""Xids of a GPU with which its links go down, or which tell of the same link from its end."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One SXid that the switch's driver wrote."""

    switch: str
    bus_id: str
    code: int
    fatal: bool | None
    """None where the line that says so is not in the log."""
    link: str
    order: int
    times: int
    last_s: float | None

    @property
    def part(self) -> tuple[str, str]:
        """Which part of the switch it is of, and what to do about it."""
        return _part(self.code)


def faults(lines: Sequence[LogLine]) -> tuple[list[Fault], list[Fault]]:
    """All SXids: those of before the driver came anew, and those since."""
    old: list[Fault] = []
    new: list[Fault] = []
    for order, line in enumerate(lines):
        if "nvidia-nv" not in line.text:
            continue
        if _RELOADED.search(line.text):
            old += _graded(new)
            new = []
        found = _SXID.search(line.text)
        if found is not None:
            link = _LINK.search(found[5])
            new.append(
                Fault(
                    switch=found[1],
                    bus_id=found[2],
                    code=int(found[3]),
                    fatal=None if found[4] in ("Data", "Severity") else found[4] == "Fatal",
                    link=link[1] if link else "",
                    order=order,
                    times=line.times,
                    last_s=line.last_s,
                )
            )
    return old, _graded(new)


def _graded(found: Sequence[Fault]) -> list[Fault]:
    """Leave out what is said further of an SXid: of one without its grade, one line is enough."""
    kept: dict[object, Fault] = {}
    graded = {(each.bus_id, each.code) for each in found if each.fatal is not None}
    for each in found:
        if each.fatal is not None:
            kept[each.order] = each
        elif (each.bus_id, each.code) not in graded:
            kept.setdefault((each.bus_id, each.code), each)
    return list(kept.values())


def judge_sxids(facts: Facts) -> Verdict:
    """A fatal SXid since the driver was loaded fails the node; what others tell of is a note."""
    log = facts.kernel_log
    switched = any(
        link.remote_kind == "switch" for gpu in facts.gpus or () for link in gpu.links or ()
    )
    if log is None:
        return unread(facts) if switched or facts.nonce == "captured" else _no_switch()
    old, new = faults(log.lines)
    if not old and not new and not switched and log.source != "text":
        return _no_switch()
    evidence: dict[str, Any] = {
        "sxids": [_evidence(each) for each in (*old, *new)],
        "log": log.source,
    }
    fatal = [each for each in new if each.fatal]
    explained = _explained(log.lines)
    own = [each for each in fatal if not (each.code == _LINK_LOST and explained)]
    if own:
        return fail(
            f"{_told(own, facts)}; expected no fatal SXid {window(log, facts)}",
            advice=own[0].part[1],
            cause="nvswitch",
            **evidence,
        )
    earlier = [each for each in old if each.fatal]
    if fatal or earlier:
        why = "a GPU's Xid tells of the same link" if fatal else "before the driver was loaded anew"
        return warn(
            f"{_told(fatal or earlier, facts)}: {why}",
            advice="see gpu.xid" if fatal else "recheck under load; replace if it comes again",
            **evidence,
        )
    return _of_the_rest(old, new, log, facts, evidence)


def _of_the_rest(
    old: Sequence[Fault],
    new: Sequence[Fault],
    log: KernelLog,
    facts: Facts,
    evidence: dict[str, Any],
) -> Verdict:
    """None is known to be fatal: whether one may be."""
    said = window(log, facts)
    explained = _explained(log.lines)
    untold = [e for e in new if e.fatal is None and not (e.code == _LINK_LOST and explained)]
    if untold:
        return unknown(
            f"{_told(untold, facts)}: the line that says Fatal or Non-fatal was not found {said}",
            advice=f"look for it (dmesg, journalctl -k); if it is fatal: {untold[0].part[1]}",
            **evidence,
        )
    if untold := [each for each in old if each.fatal is None]:
        return warn(
            f"{_told(untold, facts)}: before the driver was loaded anew",
            advice="recheck under load",
            **evidence,
        )
    rest = f"; {count(len(old) + len(new), 'kind')} of non-fatal ones" if old or new else ""
    return whole(f"no fatal SXid {said}{rest}", log, ("sxid",), **evidence)


def _no_switch() -> Verdict:
    return not_run("no NVSwitch here, no SXid in its kernel log")


def _explained(lines: Sequence[LogLine]) -> bool:
    return any(
        each.code in _TAKES_LINKS and each.grade in ("fatal", "reset") and not each.old
        for each in roots(troubles(lines))
    )


def _told(found: Sequence[Fault], facts: Facts) -> str:
    first = found[0]
    link = f" link {first.link}" if first.link else ""
    links = {(each.switch, each.link) for each in found}
    more = f" (and {len(links) - 1} more links or switches)" if len(links) > 1 else ""
    what = f"{'fatal ' if first.fatal else ''}SXid {first.code} ({first.part[0]})"
    return f"{first.switch} ({first.bus_id}){link}: {what}{more}{ago(found[-1].last_s, facts)}"


@cache
def _parts() -> tuple[tuple[int, int, str, str], ...]:
    text = files("preflight.checks.gpu").joinpath("sxids.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    advice = table["advice"]
    return tuple(
        (each["first"], each["last"], each["meaning"], advice[each["scope"]])
        for each in table["part"]
    )


def _part(code: int) -> tuple[str, str]:
    for first, last, meaning, advice in _parts():
        if first <= code <= last:
            return meaning, advice
    return "not in preflight's table", "look it up in NVIDIA's Fabric Manager user guide"


def _evidence(one: Fault) -> dict[str, object]:
    return {
        "switch": one.switch,
        "bus_id": one.bus_id,
        "sxid": one.code,
        "fatal": one.fatal,
        "link": one.link,
        "times": one.times,
        "last_s": one.last_s,
    }


SXID = Check("gpu.sxid", stage="facts", tier="prolog", requires=("reach.answer",), drains=True)


def judge_sxid(facts: Facts) -> Verdict:
    """A fatal SXid since the driver was loaded; non-fatal ones are handled by the driver."""
    return judge_sxids(facts)


def test_gpu_sxid(node: Node, conclude: Conclude) -> None:
    """No NVSwitch of the node wrote a fatal SXid: it takes NVLink away from all of its GPUs."""
    conclude(judge_sxid(node.facts))


CHECKS = (XID, SXID)
