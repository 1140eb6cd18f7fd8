"""The kernel log tells of no NIC whose firmware stopped, that did not start, or that flaps."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from preflight.check import Check
from preflight.checks.kernel_log import ago, elapsed_s, maybe_over, span_s, unread, whole, window
from preflight.checks.rdma.port_faults import reporting_check
from preflight.core.thresholds import Thresholds
from preflight.facts import Facts, Node
from preflight.facts.words import count
from preflight.verdict import Conclude, Verdict, fail, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.facts.machine import KernelLog, LogLine


Kind = Literal[
    "firmware", "dead", "recovered", "narrow", "hot", "module", "stalled", "down", "rdma", "odd"
]

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
    # What is in no table, and no answer to a program's own command (mlx5_cmd_out_err).
    ("odd", rf"{_MLX}(?!mlx5_cmd_|.*_cmd_check)(?P<note>.*{_TROUBLE}.*)"),
    ("odd", rf"infiniband (?P<name>mlx5_\d{{1,3}}): (?P<note>.*{_TROUBLE}.*)"),
)
_UP = rf"(?:[\w-]{{1,40}} {_BDF}:? )?(?P<name>\S{{1,20}}): (?:NIC )?[Ll]ink (?:is )?[Uu]p\b"
_STARTED = rf"{_MLX}firmware version"

_MEANING: dict[Kind, tuple[str, str]] = {
    "firmware": (
        "its firmware stopped working",
        "drain; power-cycle the node, update the NIC's firmware; replace the NIC if it comes again",
    ),
    "dead": (
        "its driver could not start it",
        "drain; look at dmesg for that NIC, power-cycle, check driver and firmware versions",
    ),
    "hot": ("it was too hot", "check fans, air flow and the optical module of that NIC"),
    "module": ("its cable or optical module is in trouble", "reseat or replace cable and module"),
    "stalled": ("its queue or a command stood still", "update firmware and driver; watch it"),
    "down": ("its link went down", "reseat or replace the cable; look at the switch port"),
    "rdma": (
        "GPUDirect RDMA lost a program's context",
        "look at the program that ended then; reload nvidia_peermem, or use dma-buf",
    ),
    "odd": (
        "its driver reports a trouble that is not in preflight's table",
        "look that line up at NVIDIA; update firmware and driver of the NIC",
    ),
    "recovered": ("its firmware recovered", "watch it; update the NIC's firmware"),
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing of one NIC; `who` is its PCI address or its interface."""

    who: str
    kind: Kind
    order: int
    times: int
    last_s: float | None
    note: str = ""
    have_gbits: float = 0.0


def events(lines: Sequence[LogLine]) -> list[Event]:
    """All that was said of NICs; a fault is gone when its driver started it again, or healed it.

    A link that came up again without a word of having been down was down too.
    """
    found: dict[tuple[str, str], list[Event]] = defaultdict(list)
    ups: dict[str, _Ups] = {}
    unsaid: list[Event] = []
    downs: dict[str, tuple[int, float]] = defaultdict(lambda: (0, inf))
    for order, line in enumerate(lines):
        if up := re.match(_UP, line.text):
            who = up["bus"] or up["name"]
            ups.setdefault(who, _Ups(who, order)).come(line)
            continue
        started = re.match(_STARTED, line.text)
        if started is not None:
            if before := ups.pop(started["bus"], None):
                unsaid += before.unsaid(*downs[started["bus"]])
            found.pop((started["bus"], "fails"), None)
            found.pop((started["bus"], "tells"), None)
        one = _read_line(order, line)
        if one is None:
            continue
        if one.kind == "recovered":
            found.pop((one.who, "fails"), None)
        group = "fails" if one.kind in _FAILS else "down" if one.kind == "down" else "tells"
        found[one.who, group].append(one)
        if one.kind == "down":
            times, first = downs[one.who]
            downs[one.who] = times + one.times, min(first, order)
    unsaid += [each for one in ups.values() for each in one.unsaid(*downs[one.who])]
    return sorted((e for some in found.values() for e in some), key=lambda e: e.order) + unsaid


@dataclass(slots=True)
class _Ups:
    """How often one link came up since its driver started it."""

    who: str
    first: int
    times: int = 0
    last_s: float | None = None

    def come(self, line: LogLine) -> None:
        self.times += line.times
        self.last_s = line.last_s

    def unsaid(self, downs: int, since: float) -> list[Event]:
        """How often it must have been down between, beyond what was said, and since which line."""
        # The first time needs no word before it: so every link begins.
        known = downs + (since > self.first)
        less = self.times - known
        note = "it came up again"
        return [Event(self.who, "down", self.first, less, self.last_s, note)] if less > 0 else []


CHECK = Check(
    "net.kernel_log", stage="facts", tier="prolog", requires=("reach.answer",), drains=True
)


def judge(facts: Facts, limit: Thresholds) -> Verdict:
    """Firmware that stopped and a NIC that did not start fail the node; one flap does not."""
    log = facts.kernel_log
    if log is None:
        return unread(facts)
    said = events(log.lines)
    evidence: dict[str, Any] = {"events": [_evidence(each) for each in said], "log": log.source}
    graves = [each for each in said if each.kind in _FAILS]
    if graves:
        words = _words(graves, facts)
        return maybe_over(words, log, **evidence) or fail(
            f"{words}; expected no such line {window(log, facts)}",
            advice=_MEANING[graves[0].kind][1],
            cause=f"nic {graves[0].who}" if len({each.who for each in graves}) == 1 else "",
            **evidence,
        )
    flaps = _flapping(said, facts, limit)
    # Of a narrow PCIe link ib.pcie tells, which sees it as it is now.
    notable = [each for each in said if each.kind not in ("down", "narrow")]
    if flaps or notable:
        flaps, notable, cause = _without_known(flaps, notable, facts, limit)
        told = [_flap_words(flaps, limit)] if flaps else []
        told += [_words(notable, facts)] if notable else []
        worst = flaps[0] if flaps else notable[0]
        return warn("; ".join(told), advice=_MEANING[worst.kind][1], cause=cause, **evidence)
    if downs := [each for each in said if each.kind == "down"]:
        return _rare_flaps(downs, log, facts, evidence, limit)
    return whole(f"no NIC in trouble {window(log, facts)}", log, ("nic",), **evidence)


def _rare_flaps(
    downs: Sequence[Event],
    log: KernelLog,
    facts: Facts,
    evidence: dict[str, Any],
    limit: Thresholds,
) -> Verdict:
    """Links that went down too rarely to condemn one, if the log shows as long a time."""
    own = _by_link(downs)
    worst = max(own, key=lambda each: each.times)
    many = limit("link_flaps_per_day")
    short = log.source == "text" and (span_s(log, facts) or 0.0) < 86400  # noqa: PLR2004
    if short and worst.times > many / 2:
        sentence = f"{_flap_words([worst], limit)}, of which this log shows a part"
        return warn(sentence, advice=_MEANING["down"][1], **evidence)
    total = count(sum(each.times for each in own), "time")
    sentence = f"links went down {total} {window(log, facts)}, under {many:.0f} in a day"
    return whole(sentence, log, ("nic",), **evidence)


def _without_known(
    flaps: list[Event], notable: list[Event], facts: Facts, limit: Thresholds
) -> tuple[list[Event], list[Event], str]:
    """Leave what another check tells of the same link to it; if that is all, join its finding."""
    reported = {
        one: reporting_check(one.who, facts, limit)
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


def _read_line(order: int, line: LogLine) -> Event | None:
    if not re.search(_HINT, line.text):
        return None
    for kind, pattern in _patterns():
        found = pattern.match(line.text)
        if found is None:
            continue
        named = found.groupdict()
        who = named.get("bus") or named.get("name") or ""
        note, have = named.get("note", "")[:_NOTE_CHARS], 0.0
        if kind == "narrow":
            have = _number(named["have"])
            note = f"{named['have']} of {named['could']} Gb/s, {named['link']}"
        return Event(who or "nvidia-peermem", kind, order, line.times, line.last_s, note, have)
    return None


def _number(said: str) -> float:
    try:
        return float(said)
    except ValueError:
        return 0.0


def _flapping(said: Sequence[Event], facts: Facts, limit: Thresholds) -> list[Event]:
    """Links that went down more often in a day than a cable in order does."""
    found = []
    span = span_s(facts.kernel_log, facts) if facts.kernel_log is not None else None
    days = max(1.0, (span or 0.0) / 86400)
    for one in _by_link(said):
        recent = elapsed_s(one.last_s, facts)
        if one.times / days >= limit("link_flaps_per_day") and (recent is None or recent < 86400):  # noqa: PLR2004
            found.append(one)
    return found


def _by_link(said: Sequence[Event]) -> list[Event]:
    """All that each link went down, as one."""
    found, downs = [], dict[str, list[Event]]()
    for each in said:
        if each.kind == "down":
            downs.setdefault(each.who, []).append(each)
    for who, own in downs.items():
        last_s = max((e.last_s for e in own if e.last_s is not None), default=None)
        times = sum(each.times for each in own)
        note = next((each.note for each in own if each.note), "")
        found.append(Event(who, "down", own[-1].order, times, last_s, note))
    return found


def _flap_words(flaps: Sequence[Event], limit: Thresholds) -> str:
    notes = {each.who: f" ({each.note})" if each.note else "" for each in flaps}
    told = ", ".join(f"{e.who} {count(e.times, 'time')}{notes[e.who]}" for e in flaps[:4])
    return f"link down: {told}, expected under {limit('link_flaps_per_day'):.0f} in a day"


def _words(found: Sequence[Event], facts: Facts) -> str:
    first = found[0]
    whos = list(dict.fromkeys(each.who for each in found if each.kind == first.kind))
    times = sum(each.times for each in found if each.kind == first.kind)
    more = f" and {len(whos) - 1} more" if len(whos) > 1 else ""
    often = f" ({count(times, 'line')})" if times > 1 else ""
    note = f" ({first.note})" if first.note else ""
    when = ago(found[-1].last_s, facts)
    return f"{first.who}{more}: {_MEANING[first.kind][0]}{note}{often}{when}"


def _evidence(one: Event) -> dict[str, object]:
    return {"who": one.who, "kind": one.kind, "times": one.times, "last_s": one.last_s}


def test_net_kernel_log(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.facts, node.limit))
