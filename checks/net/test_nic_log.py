"""The kernel log has no NIC whose firmware stopped, that did not start, or that flaps.

For example, "mlx5_core 0000:19:00.0: Firmware internal error" fails the node with "0000:19:00.0:
its firmware stopped working", and a link that went down once since boot is ok.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Literal

from msgspec import Struct

from preflight.check import Check
from preflight.checks.log_window import (
    DAY_S,
    ago,
    days_covered,
    is_frequent,
    maybe_over,
    ok_if_read,
    span_s,
    unread,
    window,
)
from preflight.checks.rdma.port_faults import reporting_check
from preflight.core.statistics import grouped
from preflight.core.text import and_more, count
from preflight.core.thresholds import Thresholds
from preflight.facts import Facts, Node
from preflight.facts.machine import KernelLog, LogLine
from preflight.facts.model import read_once
from preflight.verdict import Conclude, Verdict, fail, warn

_ANSWER = ("reach.answer",)
CHECK = Check("net.kernel_log", stage="facts", tier="prolog", requires=_ANSWER, drains=True)

Kind = Literal[
    "up", "started", "recovered",
    "firmware", "dead", "narrow", "hot", "module", "stalled", "down", "rdma", "odd",
]  # fmt: skip

Evidence = dict[str, Any]
_FATAL: tuple[Kind, ...] = ("firmware", "dead")
_LINK: tuple[Kind, ...] = ("down", "module")

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
"""(meaning, advice) of each kind."""


class Event(Struct, frozen=True):
    """One event of one NIC; `device` is its PCI address or its interface."""

    device: str
    kind: Kind
    order: int
    times: int
    last_s: float | None
    note: str = ""
    have_gbits: float = 0.0


def judge(facts: Facts, limit: Thresholds) -> Verdict:
    """Firmware that stopped and a NIC that did not start fail the node; one flap does not."""
    log = facts.kernel_log
    if log is None:
        return unread(facts)
    nic_events = logged_events(facts)
    records = [
        {"who": event.device, "kind": event.kind, "times": event.times, "last_s": event.last_s}
        for event in nic_events
    ]
    evidence: Evidence = {"events": records, "log": log.source}
    if fatal := [event for event in nic_events if event.kind in _FATAL]:
        sentence = _words(fatal, facts)
        devices = {event.device for event in fatal}
        return maybe_over(sentence, log, **evidence) or fail(
            f"{sentence}; expected no such line {window(log, facts)}",
            advice=_MEANING[fatal[0].kind][1],
            cause=f"nic {fatal[0].device}" if len(devices) == 1 else "",
            **evidence,
        )
    downs = _downs_by_link(nic_events)
    most, days = limit("link_flaps_per_day"), days_covered(log, facts)
    flapping = [link for link in downs if is_frequent(link.times, link.last_s, most, days, facts)]
    # ib.pcie reports a narrow PCIe link, because it reads the present state.
    others = [event for event in nic_events if event.kind not in ("down", "narrow")]
    if flapping or others:
        return _warning(flapping, others, facts, limit, evidence)
    if downs:
        return _rare_downs(downs, log, facts, limit, evidence)
    return ok_if_read(f"no NIC with errors {window(log, facts)}", log, ("nic",), **evidence)


def _words(nic_events: Sequence[Event], facts: Facts) -> str:
    """The first event and how many are like it, as in "0000:19:00.0 and 2 more: it was too hot"."""
    first = nic_events[0]
    same_kind = [event for event in nic_events if event.kind == first.kind]
    more = and_more(len({event.device for event in same_kind}) - 1)
    times = sum(event.times for event in same_kind)
    note = f" ({first.note})" if first.note else ""
    lines = f" ({count(times, 'line')})" if times > 1 else ""
    when = ago(nic_events[-1].last_s, facts)
    return f"{first.device}{more}: {_MEANING[first.kind][0]}{note}{lines}{when}"


def _downs_by_link(nic_events: Sequence[Event]) -> list[Event]:
    """All downs of each link, as one event."""
    links = []
    by_device = grouped((event.device, event) for event in nic_events if event.kind == "down")
    for device, downs in by_device.items():
        last_s = max((down.last_s for down in downs if down.last_s is not None), default=None)
        times = sum(down.times for down in downs)
        note = next((down.note for down in downs if down.note), "")
        links.append(Event(device, "down", downs[-1].order, times, last_s, note))
    return links


def _warning(
    flapping: list[Event], others: list[Event], facts: Facts, limit: Thresholds, evidence: Evidence
) -> Verdict:
    """Leave out links that another check reports; if none is left, join that check's finding."""
    items = [*flapping, *others]
    links = [event for event in items if event.kind in _LINK]
    other_checks = {event: reporting_check(event.device, facts, limit) for event in links}
    cause = other_checks.get(items[0], "")
    if not all(other_checks.get(event) for event in items):
        cause = ""
        flapping = [event for event in flapping if not other_checks.get(event)]
        others = [event for event in others if not other_checks.get(event)]
    sentences = [_flap_words(flapping, limit)] if flapping else []
    sentences += [_words(others, facts)] if others else []
    worst = flapping[0] if flapping else others[0]
    return warn("; ".join(sentences), advice=_MEANING[worst.kind][1], cause=cause, **evidence)


def _flap_words(flapping: Sequence[Event], limit: Thresholds) -> str:
    """As in "link down: eth0 9 times, eth1 12 times, expected under 5 in a day"."""
    links = [
        f"{link.device} {count(link.times, 'time')}" + (f" ({link.note})" if link.note else "")
        for link in flapping[:4]
    ]
    most = limit("link_flaps_per_day")
    return f"link down: {', '.join(links)}, expected under {most:.0f} in a day"


def _rare_downs(
    downs: list[Event], log: KernelLog, facts: Facts, limit: Thresholds, evidence: Evidence
) -> Verdict:
    """Links that went down too rarely to blame one, if the log covers a whole day."""
    worst = max(downs, key=lambda link: link.times)
    most = limit("link_flaps_per_day")
    partial = log.source == "text" and (span_s(log, facts) or 0.0) < DAY_S
    if partial and worst.times > most / 2:
        sentence = f"{_flap_words([worst], limit)}, of which this log shows a part"
        return warn(sentence, advice=_MEANING["down"][1], **evidence)
    total = count(sum(link.times for link in downs), "time")
    sentence = f"links went down {total} {window(log, facts)}, under {most:.0f} in a day"
    return ok_if_read(sentence, log, ("nic",), **evidence)


@read_once
def logged_events(facts: Facts) -> list[Event]:
    """All events of a node's NICs; none also where its log could not be read."""
    return events(facts.kernel_log.lines) if facts.kernel_log else []


def events(lines: Sequence[LogLine]) -> list[Event]:
    """All events of NICs; a fault is over when the driver restarted or recovered the NIC.

    The line "mlx5_core 0000:19:00.0: Firmware internal error" is the event "firmware" of
    "0000:19:00.0". A link that came up twice was down between, even if no line says so.
    """
    nic_events: list[Event] = []
    unlogged: list[Event] = []
    started: dict[str, int] = {}
    recovered: dict[str, int] = {}
    ups: dict[str, list[Event]] = defaultdict(list)
    downs: dict[str, list[Event]] = defaultdict(list)
    for order, line in enumerate(lines):
        event = _event(order, line)
        if event is None:
            continue
        device = event.device
        if event.kind == "up":
            ups[device].append(event)
        elif event.kind == "started":
            started[device] = order
            unlogged += _unlogged_downs(ups.pop(device, []), downs.pop(device, []))
        else:
            nic_events.append(event)
        if event.kind == "recovered":
            recovered[device] = order
        elif event.kind == "down":
            downs[device].append(event)
    for device, device_ups in ups.items():
        unlogged += _unlogged_downs(device_ups, downs[device])
    return [event for event in nic_events if not _is_settled(event, started, recovered)] + unlogged


def _unlogged_downs(ups: Sequence[Event], downs: Sequence[Event]) -> list[Event]:
    """How often a link must have been down between its ups, beyond the lines that say so.

    Of "up", "down", "up", "up" it is the one between the last two.
    """
    if not ups:
        return []
    first = ups[0]
    # The first time it comes up needs no line before it: every link begins so.
    started_up = not downs or downs[0].order > first.order
    times = sum(up.times for up in ups) - sum(down.times for down in downs) - started_up
    event = Event(first.device, "down", first.order, times, ups[-1].last_s, "it came up again")
    return [event] if times > 0 else []


def _is_settled(event: Event, started: Mapping[str, int], recovered: Mapping[str, int]) -> bool:
    """Whether the driver restarted or recovered the NIC after this event."""
    if event.kind == "down":
        return False
    if event.order < started.get(event.device, 0):
        return True
    return event.kind in _FATAL and event.order < recovered.get(event.device, 0)


def _event(order: int, line: LogLine) -> Event | None:
    """The event that a line reports; None for any other line."""
    match = _match(line.text)
    if match is None:
        return None
    kind, groups = match
    device = groups.get("bus") or groups.get("name") or "nvidia-peermem"
    note, have_gbits = groups.get("note", "")[:_NOTE_CHARS], 0.0
    if kind == "narrow":
        note = f"{groups['have']} of {groups['could']} Gb/s, {groups['link']}"
        have_gbits = float(groups["have"])
    return Event(device, kind, order, line.times, line.last_s, note, have_gbits)


_HINT = r"mlx5_|[Ll]ink (?:is )?(?:[Dd]own|[Uu]p)\b|NETDEV WATCHDOG|nvidia-peermem"
"""Only lines with one of these words are parsed."""

_NOTE_CHARS = 120
_BDF = r"(?P<bus>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
# Where a blank follows the address, the name of a network device does: any container's own choice.
_MLX = rf"mlx5_core {_BDF}: "
_AVAILABLE = r"(?P<have>\d+(?:\.\d+)?)"
_CAPABLE = r"(?P<link>.*?) link at \S+ \(capable of (?P<could>[\d.]+) Gb/s"
_TROUBLE = r"(?:[Ff]ail|[Ee]rror|[Tt]imed out|[Tt]imeout|[Uu]nable|[Cc]annot)"
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
    ("narrow", rf"{_MLX}{_AVAILABLE} Gb/s available PCIe bandwidth, limited by {_CAPABLE}"),
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


@lru_cache(maxsize=4096)  # the same lines on every node of a kind
def _match(text: str) -> tuple[Kind, dict[str, str]] | None:
    """The kind of event that a line reports, and the named groups of its expression."""
    if not re.search(_HINT, text):
        return None
    for kind, pattern in _patterns():
        match = pattern.match(text)
        if match is not None:
            return kind, match.groupdict("")
    return None


@cache
def _patterns() -> tuple[tuple[Kind, re.Pattern[str]], ...]:
    return tuple((kind, re.compile(pattern)) for kind, pattern in _KINDS)


def test_net_kernel_log(node: Node, conclude: Conclude) -> None:
    """The kernel log has no NIC whose firmware stopped, that did not start, or that flaps."""
    conclude(judge(node.facts, node.limit))
