"""What the kernel wrote of a host that lost memory, disks or its patience: why jobs die there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from preflight.facts.kernel_log import ago, elapsed_s, unread, whole, window
from preflight.facts.limits import limit
from preflight.facts.words import count
from preflight.verdict import fail, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.facts.kernel_model import LogLine
    from preflight.facts.model import Facts
    from preflight.verdict import Verdict

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
    ("oops", r"^(?P<what>BUG: unable to handle|Oops|general protection fault)"),
    ("cgroup oom", r"^Memory cgroup out of memory: Kill(?:ed)? process \d+ \((?P<what>[^)]*)\)"),
    ("oom", r"^Out of memory: Kill(?:ed)? process \d+ \((?P<what>[^)]*)\)"),
    ("hung", r"^INFO: task (?P<what>.+?):\d+ blocked for more than"),
    ("nfs", r"^nfs: server (?P<what>\S+) not responding"),
)  # fmt: skip
_HINT = re.compile(
    r"-fs|XFS|BTRFS|F2FS|error, dev|I/O error|^nvme |ockup|LOCKUP|stall|^BUG|^Oops|^general"
    r"|ut of memory|^INFO: task|^nfs: "
)
"""Few lines are looked at closely."""

_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _KINDS)

_LOOP = re.compile(r"^(?:loop|sr|fd|zram|ram)\d")
"""Devices whose errors tell of an image or an empty drive, not of a disk."""
_OF_A_DISK: tuple[Kind, ...] = ("read-only", "file system", "disk")

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
_GRAVE: tuple[Kind, ...] = ("read-only",)


@dataclass(frozen=True, slots=True)
class Event:
    """One kind of thing, of one device, task or process."""

    kind: Kind
    what: str
    times: int
    last_s: float | None


def events(lines: Sequence[LogLine]) -> list[Event]:
    """All that was said, by kind and what it is about; the gravest kind first."""
    found: dict[tuple[Kind, str], Event] = {}
    for line in lines:
        if not _HINT.search(line.text):
            continue
        for kind, pattern in _PATTERNS:
            hit = pattern.search(line.text)
            if hit is None:
                continue
            what = hit["what"] or ""
            if not (kind in _OF_A_DISK and _LOOP.match(what)):
                before = found.get((kind, what))
                times = line.times + (before.times if before else 0)
                found[kind, what] = Event(kind, what, times, line.last_s)
            break
    return sorted(found.values(), key=lambda each: list(_WORDS).index(each.kind))


def judge_host_log(facts: Facts) -> Verdict:
    """A file system that turned read-only fails the node; the rest of the last day is a warning."""
    log = facts.kernel_log
    if log is None:
        return unread(facts)
    said = events(log.lines)
    evidence: dict[str, Any] = {"events": [_evidence(each) for each in said], "log": log.source}
    graves = [each for each in said if each.kind in _GRAVE]
    if graves:
        return fail(
            f"{_told(graves[0], facts)}; expected none {window(log, facts)}",
            advice=_WORDS[graves[0].kind][1],
            **evidence,
        )
    recent = [each for each in said if _recent(each, facts)]
    if recent:
        more = f"; and {count(len(recent) - 1, 'more thing')}" if len(recent) > 1 else ""
        return warn(
            f"{_told(recent[0], facts)}{more}", advice=_WORDS[recent[0].kind][1], **evidence
        )
    rest = f"; {count(len(said), 'older note')}" if said else ""
    sentence = f"no lack of memory, disk or CPU {window(log, facts)}{rest}"
    return whole(sentence, log, ("fs", "disk"), **evidence)


def _recent(one: Event, facts: Facts) -> bool:
    since_s = elapsed_s(one.last_s, facts)
    return since_s is None or since_s < limit("host_event_s")


def _told(one: Event, facts: Facts) -> str:
    what = f" ({one.what})" if one.what else ""
    often = f", {one.times} times" if one.times > 1 else ""
    return f"the kernel {_WORDS[one.kind][0]}{what}{often}{ago(one.last_s, facts)}"


def _evidence(one: Event) -> dict[str, object]:
    return {"kind": one.kind, "what": one.what, "times": one.times, "last_s": one.last_s}
