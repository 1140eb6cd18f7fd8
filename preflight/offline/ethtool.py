"""ethtool and `ethtool -S` as somebody pasted them: what a link agreed on, and what it lost."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from preflight.facts.basics import device_name
from preflight.facts.ethernet_counts import kind_of
from preflight.facts.ethernet_model import Ethernet
from preflight.facts.network_model import Interface, Network
from preflight.facts.rdma_model import Counter
from preflight.offline.captured import Captured, bare_facts
from preflight.offline.plain import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

KINDS: Final = ("ethtool", "ethtool -S")
_CHECKS: Final = ("net.ethernet",)
_HEAD: Final = re.compile(r"^\s*Settings for (\S{1,32}):\s*$")
_PAIR: Final = re.compile(r"^\s*([A-Z][\w \-()]{2,48}?):(?:\s+(.*?))?\s*$")
_STATISTICS: Final = re.compile(r"^\s*NIC statistics:\s*$")
_ASKED: Final = re.compile(r"\bethtool\s+(?:-S|--statistics)\s+([\w.@-]{1,32})")
_COUNTER: Final = re.compile(r"^\s+(\S.{0,78}?):\s*(-?[0-9]+(?:\.[0-9]+)?|0x[0-9a-fA-F]+)\s*$")
_PROMPT: Final = re.compile(r"^\S*[\w~\])]\s?[$#](?:\s|$)|^[$#]\s?$")
_MODE: Final = re.compile(r"\b([0-9]{2,7})base")
_SPEED: Final = re.compile(r"^([0-9]{1,7})\s?Mb/s")
_TROUBLE: Final = re.compile(r"err|discard|drop|out_of_buffer|missed|fifo|down|collision|pause")
_ERROR: Final = re.compile(
    r"^[^\S\n]*(?:Cannot get (?:device settings|stats|driver information)|netlink error:|ethtool:"
    r"|no stats available|No data available|bad command line).*",
    re.MULTILINE,
)
_MOST: Final = 256
_LARGEST: Final = 2**53


def read(text: str) -> Captured | None:
    """Read every interface that a text shows the settings or the statistics of; None for others."""
    lines = plain(text).expandtabs().splitlines()
    if any(_HEAD.match(line) for line in lines):
        return _settings(lines)
    if any(_STATISTICS.match(line) for line in lines):
        return _statistics(lines)
    error = _ERROR.search(text)
    if error is None or len(lines) > 20:  # noqa: PLR2004 (an error is short; a log is something else)
        return None
    return _captured("ethtool", None, f"it holds an error: {error.group().strip()[:120]}")


def fastest(modes: Iterable[str]) -> int:
    """Of the fastest of some link modes, Mb/s; 0 where none is named: "100000baseCR4/Full"."""
    return max((int(mode) for text in modes for mode in _MODE.findall(text)), default=0)


def _settings(lines: list[str]) -> Captured:
    blocks: list[tuple[str, dict[str, str]]] = []
    key = ""
    for line in lines:
        if head := _HEAD.match(line):
            blocks.append((head.group(1), {}))
            key = ""
        elif blocks and (pair := _PAIR.match(line)):
            key = pair.group(1).lower()
            blocks[-1][1].setdefault(key, (pair.group(2) or "")[:512])
        elif blocks and key and line.strip() and "base" in line:
            blocks[-1][1][key] = f"{blocks[-1][1][key]} {line.strip()}"[:4096]
    cut = [name for name, words in blocks if _link(words) not in ("yes", "no")]
    damaged = f"{cut[0]} does not say whether its link is detected" if cut else ""
    return _captured("ethtool", [_interface(name, words) for name, words in blocks], damaged)


def _interface(name: str, words: Mapping[str, str]) -> Interface:
    speed = _SPEED.match(words.get("speed", ""))
    duplex = words.get("duplex", "").lower()
    supported = words.get("supported link modes")
    partner = words.get("link partner advertised link modes", "")
    return Interface(
        device_name(name),
        operstate={"yes": "up", "no": "down"}.get(_link(words), ""),
        physical=True,
        speed_mbits=int(speed.group(1)) if speed else None,
        ethernet=Ethernet(
            duplex=duplex if duplex in ("full", "half") else "",
            most_mbits=None if supported is None else fastest([supported]),
            partner_mbits=fastest([partner]) or None,
        ),
    )


def _link(words: Mapping[str, str]) -> str:
    """Yes or no; the reason that newer versions add is left out: "no (No cable)"."""
    return words.get("link detected", "").partition(" (")[0].strip().lower()


def _statistics(lines: list[str]) -> Captured:
    found: list[tuple[str, dict[str, int]]] = []
    name, inside, damaged = "NIC", False, ""
    for line in lines:
        if asked := _ASKED.search(line):
            name, inside = asked.group(1), False
        elif _STATISTICS.match(line):
            found.append((name, {}))
            inside = True
        elif inside and (pair := _COUNTER.match(line)):
            value = pair.group(2)
            if value.isdecimal():
                found[-1][1][pair.group(1)] = min(int(value), _LARGEST)
        elif inside and line.strip() and not _PROMPT.match(line):
            damaged = damaged or f"a line cannot be read: {line.strip()[:40]!a}"
    for who, counts in found:
        if not any(kind_of(each) in ("broken", "dropped") for each in counts):
            damaged = damaged or f"{who} tells no counter of broken or dropped frames"
        elif not any(kind_of(each) == "packets" for each in counts):
            damaged = damaged or f"{who} tells no count of packets"
    return _captured("ethtool -S", [_counted(*each) for each in found], damaged)


def _counted(name: str, counts: Mapping[str, int]) -> Interface:
    told = [each for each in counts if kind_of(each)]
    told += [each for each in counts if each not in told and _TROUBLE.search(each)]
    nonzero = tuple(Counter(each[:512], counts[each]) for each in told if counts[each])[:_MOST]
    downs = [counts[each] for each in counts if kind_of(each) == "flaps"]
    return Interface(
        device_name(name),
        physical=True,
        carrier_downs=max(downs, default=None),
        ethernet=Ethernet(counters=nonzero),
    )


def _captured(kind: str, interfaces: list[Interface] | None, damaged: str) -> Captured:
    told = None if interfaces is None else tuple(interfaces)
    return Captured(
        kind=kind,
        facts=replace(bare_facts(), network=Network(interfaces=told)),
        checks=_CHECKS,
        damaged=damaged,
    )
