"""The kernel log has no NIC whose firmware stopped, that did not start, or that flaps."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import cache, lru_cache
from math import inf
from typing import Any, Literal

from msgspec import Struct

from preflight.check import Check
from preflight.checks.log_window import (
    DAY_S,
    ago,
    days_covered,
    is_frequent,
    maybe_over,
    span_s,
    unread,
    whole,
    window,
)
from preflight.checks.rdma.port_faults import reporting_check
from preflight.core.statistics import grouped
from preflight.core.text import and_more, count
from preflight.core.thresholds import Thresholds
from preflight.facts import Facts, Node
from preflight.facts.machine import KernelLog, LogLine
from preflight.verdict import Conclude, Verdict, fail, warn

Kind = Literal[
    "up", "started", "recovered",
    "firmware", "dead", "narrow", "hot", "module", "stalled", "down", "rdma", "odd",
]  # fmt: skip

_HINT = r"mlx5_|[Ll]ink (?:is )?(?:[Dd]own|[Uu]p)\b|NETDEV WATCHDOG|nvidia-peermem"
"""Only lines with one of these words are parsed."""

_NOTE_CHARS = 120

_BDF = r"(?P<bus>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
# Where a blank follows the address, the name of a network device does: any container's own choice.
_MLX = rf"mlx5_core {_BDF}: "
_HAVE = r"(?P<have>[\d.]+)"
_COULD = r"(?P<link>.*?) link at \S+ \(capable of (?P<could>[\d.]+) Gb/s"
_TROUBLE = r"(?:[Ff]ail|[Ee]rror|[Tt]imed out|[Tt]imeout|[Uu]nable|[Cc]annot)"
_FAILS: tuple[Kind, ...] = ("firmware", "dead")
_LINK: tuple[Kind, ...] = ("down", "module")
_KINDS: tuple[tuple[Kind, str], ...] = (
    (
        "up",
        rf"(?:[\w-]{{1,40}} {_BDF}:? )?(?P<name>\S{{1,20}}): (?:NIC )?[Ll]ink (?:is )?[Uu]p\b",
    ),
    ("started", rf"{_MLX}firmware version"),
    ("recovered", rf"{_MLX}(?:\S{{1,99}}\(pid \d+\): )?health recovery (?:succeeded|completed)"),
    ("hot", rf"{_MLX}.*(?:[Hh]igh [Tt]emperature|[Tt]emperature .*(?:critical|exceed))"),
    ("firmware", rf"{_MLX}.*(?:health compromised|[Ff]irmware internal error)"),
    ("firmware", rf"{_MLX}.*(?:[Ff]atal (?:error|sensor)|[Hh]ealth recovery failed)"),
    ("firmware", rf"{_MLX}.*Health issue observed.*(?:EMERG|ALERT|CRIT|ERROR)"),
    ("dead", rf"{_MLX}.*(?:mlx5_load_one failed|(?:init|probe)_one.*failed)"),
    ("dead", r"mlx5_core: probe of (?P<bus>[0-9a-f:.]+) failed"),
    ("dead", rf"{_MLX}probe with driver mlx5_core failed"),
    ("dead", rf"{_MLX}.*Firmware over .*MS in (?:pre-)?initializing"),
    ("narrow", rf"{_MLX}{_HAVE} Gb/s available PCIe bandwidth, limited by {_COULD}"),
    ("module", rf"{_MLX}.*(?:[Cc]able error|[Bb]ad signal|insufficient power|Bus stuck)"),
    ("stalled", r"NETDEV WATCHDOG: (?P<name>\S+) .*timed out"),
    ("stalled", rf"{_MLX}.*timeout\. Will cause a leak"),
    ("stalled", rf"mlx5_core {_BDF} \S{{1,15}}: TX timeout detected"),
    (
        "down",
        rf"(?:[\w-]{{1,40}} {_BDF}:? )?(?P<name>\S{{1,20}}): (?:NIC )?[Ll]ink (?:is )?[Dd]own",
    ),
    ("down", rf"mlx5_core {_BDF}:? (?:\S+: )?[Pp]ort:? ?\d+ Link DOWN"),
    ("rdma", r"nvidia-peermem .*ERROR"),
    # A line that is in no table, and no answer to a program's own command (mlx5_cmd_out_err).
    ("odd", rf"{_MLX}(?!mlx5_cmd_|.*_cmd_check)(?P<note>.*{_TROUBLE}.*)"),
    ("odd", rf"infiniband (?P<name>mlx5_\d{{1,3}}): (?P<note>.*{_TROUBLE}.*)"),
)

_MEANING: dict[Kind, tuple[str, str]] = {
    "firmware": (
        "its firmware stopped working",
        (
            "drain; power-cycle the node, update the NIC's firmware; "
            "replace the NIC if it happens again"
        ),
    ),
    "dead": (
        "its driver could not start it",
        "drain; look at dmesg for that NIC, power-cycle, check driver and firmware versions",
    ),
    "hot": ("it was too hot", "check fans, air flow and the optical module of that NIC"),
    "module": ("its cable or optical module reports a fault", "reseat or replace cable and module"),
    "stalled": ("its queue or a command stalled", "update firmware and driver; watch it"),
    "down": ("its link went down", "reseat or replace the cable; look at the switch port"),
    "rdma": (
        "GPUDirect RDMA lost a program's context",
        "look at the program that ended then; reload nvidia_peermem, or use dma-buf",
    ),
    "odd": (
        "its driver reports an error that is not in preflight's table",
        "look that line up at NVIDIA; update firmware and driver of the NIC",
    ),
    "recovered": ("its firmware recovered", "watch it; update the NIC's firmware"),
}


class Event(Struct, frozen=True):
    """One event of one NIC; `device` is its PCI address or its interface."""

    device: str
    kind: Kind
    order: int
    times: int
    last_s: float | None
    note: str = ""
    have_gbits: float = 0.0


def events(lines: Sequence[LogLine]) -> list[Event]:
    """All events of NICs; a fault is over when the driver restarted or recovered the NIC.

    A link that came up twice was down between, even if no line says so.
    """
    found: dict[tuple[str, str], list[Event]] = defaultdict(list)
    ups: dict[str, _Ups] = {}
    unreported: list[Event] = []
    downs: dict[str, tuple[int, float]] = defaultdict(lambda: (0, inf))
    for order, line in enumerate(lines):
        read = _read(line.text)
        if read is None:
            continue
        one = Event(*read[:2], order, line.times, line.last_s, *read[2:])
        if one.kind == "up":
            ups.setdefault(one.device, _Ups(one.device, order)).come(line)
            continue
        if one.kind == "started":
            if before := ups.pop(one.device, None):
                unreported += before.unreported(*downs[one.device])
            found.pop((one.device, "fails"), None)
            found.pop((one.device, "tells"), None)
            continue
        if one.kind == "recovered":
            found.pop((one.device, "fails"), None)
        group = "fails" if one.kind in _FAILS else "down" if one.kind == "down" else "tells"
        found[one.device, group].append(one)
        if one.kind == "down":
            times, first = downs[one.device]
            downs[one.device] = times + one.times, min(first, order)
    unreported += [each for one in ups.values() for each in one.unreported(*downs[one.device])]
    return sorted((e for some in found.values() for e in some), key=lambda e: e.order) + unreported


class _Ups(Struct):
    """How often one link came up since its driver started it."""

    device: str
    first: int
    times: int = 0
    last_s: float | None = None

    def come(self, line: LogLine) -> None:
        self.times += line.times
        self.last_s = line.last_s

    def unreported(self, downs: int, since: float) -> list[Event]:
        """How often the link must have been down between, beyond the lines that say so."""
        # The first time it comes up needs no line before it: every link begins so.
        known = downs + (since > self.first)
        less = self.times - known
        note = "it came up again"
        return [Event(self.device, "down", self.first, less, self.last_s, note)] if less > 0 else []


CHECK = Check(
    "net.kernel_log", stage="facts", tier="prolog", requires=("reach.answer",), drains=True
)


def judge(facts: Facts, limit: Thresholds) -> Verdict:
    """Firmware that stopped and a NIC that did not start fail the node; one flap does not."""
    log = facts.kernel_log
    if log is None:
        return unread(facts)
    reported = events(log.lines)
    seen = [
        {"who": each.device, "kind": each.kind, "times": each.times, "last_s": each.last_s}
        for each in reported
    ]
    evidence: dict[str, Any] = {"events": seen, "log": log.source}
    graves = [each for each in reported if each.kind in _FAILS]
    if graves:
        words = _words(graves, facts)
        return maybe_over(words, log, **evidence) or fail(
            f"{words}; expected no such line {window(log, facts)}",
            advice=_MEANING[graves[0].kind][1],
            cause=f"nic {graves[0].device}" if len({each.device for each in graves}) == 1 else "",
            **evidence,
        )
    flaps = _flapping(reported, log, facts, limit)
    # ib.pcie reports a narrow PCIe link, because it reads the present state.
    notable = [each for each in reported if each.kind not in ("down", "narrow")]
    if flaps or notable:
        flaps, notable, cause = _without_known(flaps, notable, facts, limit)
        sentences = [_flap_words(flaps, limit)] if flaps else []
        sentences += [_words(notable, facts)] if notable else []
        worst = flaps[0] if flaps else notable[0]
        return warn("; ".join(sentences), advice=_MEANING[worst.kind][1], cause=cause, **evidence)
    if downs := [each for each in reported if each.kind == "down"]:
        return _rare_flaps(downs, log, facts, evidence, limit)
    return whole(f"no NIC with errors {window(log, facts)}", log, ("nic",), **evidence)


def _rare_flaps(
    downs: Sequence[Event],
    log: KernelLog,
    facts: Facts,
    evidence: dict[str, Any],
    limit: Thresholds,
) -> Verdict:
    """Links that went down too rarely to blame one, if the log covers a whole day."""
    own = _by_link(downs)
    worst = max(own, key=lambda each: each.times)
    many = limit("link_flaps_per_day")
    short = log.source == "text" and (span_s(log, facts) or 0.0) < DAY_S
    if short and worst.times > many / 2:
        sentence = f"{_flap_words([worst], limit)}, of which this log shows a part"
        return warn(sentence, advice=_MEANING["down"][1], **evidence)
    total = count(sum(each.times for each in own), "time")
    sentence = f"links went down {total} {window(log, facts)}, under {many:.0f} in a day"
    return whole(sentence, log, ("nic",), **evidence)


def _without_known(
    flaps: list[Event], notable: list[Event], facts: Facts, limit: Thresholds
) -> tuple[list[Event], list[Event], str]:
    """Leave out links that another check reports; if none is left, join that check's finding."""
    reported = {
        one: reporting_check(one.device, facts, limit)
        for one in (*flaps, *notable)
        if one.kind in _LINK
    }
    rest = dict.fromkeys(one for one in (*flaps, *notable) if not reported.get(one))
    if not rest:
        return flaps, notable, next(iter(reported.values()))
    return [one for one in flaps if one in rest], [one for one in notable if one in rest], ""


@cache
def _patterns() -> tuple[tuple[Kind, re.Pattern[str]], ...]:
    return tuple((kind, re.compile(pattern)) for kind, pattern in _KINDS)


@lru_cache(maxsize=4096)  # the same lines on every node of a kind
def _read(text: str) -> tuple[str, Kind, str, float] | None:
    """Device, kind, note and `have_gbits` of the event that a line reports."""
    if not re.search(_HINT, text):
        return None
    for kind, pattern in _patterns():
        found = pattern.match(text)
        if found is None:
            continue
        named = found.groupdict()
        who = named.get("bus") or named.get("name") or ""
        note, have = named.get("note", "")[:_NOTE_CHARS], 0.0
        if kind == "narrow":
            have = _number(named["have"])
            note = f"{named['have']} of {named['could']} Gb/s, {named['link']}"
        return who or "nvidia-peermem", kind, note, have
    return None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _flapping(
    reported: Sequence[Event], log: KernelLog, facts: Facts, limit: Thresholds
) -> list[Event]:
    """Links that went down more often in a day than with a good cable."""
    most, days = limit("link_flaps_per_day"), days_covered(log, facts)
    links = _by_link(reported)
    return [one for one in links if is_frequent(one.times, one.last_s, most, days, facts)]


def _by_link(reported: Sequence[Event]) -> list[Event]:
    """All downs of each link, as one event."""
    found = []
    downs = grouped((each.device, each) for each in reported if each.kind == "down")
    for who, own in downs.items():
        last_s = max((e.last_s for e in own if e.last_s is not None), default=None)
        times = sum(each.times for each in own)
        note = next((each.note for each in own if each.note), "")
        found.append(Event(who, "down", own[-1].order, times, last_s, note))
    return found


def _flap_words(flaps: Sequence[Event], limit: Thresholds) -> str:
    notes = {each.device: f" ({each.note})" if each.note else "" for each in flaps}
    links = ", ".join(f"{e.device} {count(e.times, 'time')}{notes[e.device]}" for e in flaps[:4])
    return f"link down: {links}, expected under {limit('link_flaps_per_day'):.0f} in a day"


def _words(found: Sequence[Event], facts: Facts) -> str:
    first = found[0]
    whos = list(dict.fromkeys(each.device for each in found if each.kind == first.kind))
    times = sum(each.times for each in found if each.kind == first.kind)
    more = and_more(len(whos) - 1)
    often = f" ({count(times, 'line')})" if times > 1 else ""
    note = f" ({first.note})" if first.note else ""
    when = ago(found[-1].last_s, facts)
    return f"{first.device}{more}: {_MEANING[first.kind][0]}{note}{often}{when}"


def test_net_kernel_log(node: Node, conclude: Conclude) -> None:
    """The kernel log has no NIC whose firmware stopped, that did not start, or that flaps."""
    conclude(judge(node.facts, node.limit))
