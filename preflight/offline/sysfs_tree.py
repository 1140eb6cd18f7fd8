"""A tree of /sys that a collector wrote as JSON, path to content: its RDMA ports."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from preflight.facts.basics import device_name
from preflight.facts.model import Nic, NicPort
from preflight.facts.network_model import Interface
from preflight.facts.rdma_model import Counter, Counters
from preflight.facts.wiring import natural
from preflight.offline.plain import plain

if TYPE_CHECKING:
    from collections.abc import Mapping

_RDMA: Final = re.compile(
    r"^(.*?)/infiniband/([^/\s]{1,64})/(?:ports/([0-9]{1,3})/)?([\w/]{1,80})$"
)
_NET: Final = re.compile(r"^(.*?)/net/([^/\s]{1,64})/(\w{1,40})$")
_CUT: Final = re.compile(r'^\s*\{.*?"(?>[^"]*?/infiniband/)[^"]*"\s*:', re.DOTALL)
_UNREADABLE: Final = "0x1003"
_LONGEST_STATE: Final = 64


class Tree(Struct, frozen=True):
    """What of the tree is about RDMA; `damaged` says why it is less than there was."""

    nics: tuple[Nic, ...] | None
    interfaces: tuple[Interface, ...] = ()
    damaged: str = ""


@dataclass
class _Parts:
    devices: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)
    ports: dict[str, dict[int, dict[str, str]]] = field(default_factory=dict)
    nets: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)
    """By PCI device, then by name."""


def parse(text: str) -> Tree | None:
    """Read a JSON object of paths; None where it is none, or holds no RDMA device."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return Tree(None, damaged="the JSON is cut off or garbled") if _CUT.match(text) else None
    if not isinstance(tree, dict) or not any("/infiniband/" in path for path in tree):
        return None
    parts = _sorted({plain(k): plain(v).strip() for k, v in tree.items() if isinstance(v, str)})
    nics = tuple(_nic(name, parts) for name in sorted(parts.ports, key=natural))
    interfaces = tuple(
        _interface(name, words)
        for its in parts.nets.values()
        for name, words in sorted(its.items(), key=lambda item: natural(item[0]))
    )
    mute = [f"{n.name} port {p.port}" for n in nics for p in n.ports if not (p.state and p.rate)]
    damaged = f"{mute[0]} has no state or rate" if mute else "" if nics else "it holds no port"
    return Tree(nics or None, interfaces, damaged)


def _sorted(tree: Mapping[str, str]) -> _Parts:
    parts = _Parts()
    for path, content in tree.items():
        if found := _RDMA.match(path):
            place, name, port, what = found.groups()
            its = parts.devices.setdefault(name, (place, {}))[1]
            if port:
                its = parts.ports.setdefault(name, {}).setdefault(int(port), {})
            its[what] = " ".join(content.split())[:512]
        elif found := _NET.match(path):
            place, name, what = found.groups()
            parts.nets.setdefault(place, {}).setdefault(name, {})[what] = content[:512]
    return parts


def _nic(name: str, parts: _Parts) -> Nic:
    place, words = parts.devices[name]
    nets = parts.nets.get(place, {})
    return Nic(
        name=device_name(name),
        ports=tuple(_port(at, its, nets) for at, its in sorted(parts.ports[name].items())),
        netdevs=tuple(map(device_name, sorted(nets))),
        firmware=words.get("fw_ver", ""),
        board=words.get("board_id", ""),
        hca_type=words.get("hca_type", ""),
    )


def _port(number: int, words: Mapping[str, str], nets: Mapping[str, Mapping[str, str]]) -> NicPort:
    over = [name for name, its in nets.items() if _dev_port(its) == number - 1]
    netdev = over[0] if over else ""
    counts = {
        what.rpartition("/")[2]: int(content)
        for what, content in words.items()
        if "counters/" in what and content.isdecimal()
    }
    downs = nets.get(netdev, {}).get("carrier_down_count", "")
    if downs.isdecimal():
        counts["carrier_downs"] = int(downs)
    nonzero = tuple(Counter(name, min(n, 2**53)) for name, n in sorted(counts.items()) if n)
    return NicPort(
        port=number,
        state=words.get("state", "")[:_LONGEST_STATE],
        phys_state=words.get("phys_state", "")[:_LONGEST_STATE],
        rate=words.get("rate", ""),
        link_layer=words.get("link_layer", ""),
        netdev=device_name(netdev),
        counters=Counters(len(counts), 0.0, nonzero) if counts else None,
    )


def _dev_port(words: Mapping[str, str]) -> int:
    """Which port of its device an interface is over; trees may lack the newer file."""
    text = words.get("dev_port", "0")
    return int(text, 0) if re.fullmatch(r"0x[0-9a-f]+|[0-9]+", text) else 0


def _interface(name: str, words: Mapping[str, str]) -> Interface:
    flags = words.get("flags", "")
    mtu, speed, index = (words.get(what, "") for what in ("mtu", "speed", "ifindex"))
    return Interface(
        name=device_name(name),
        index=int(index) if index.isdecimal() else 0,
        up=bool(int(flags if re.fullmatch(r"0x[0-9a-fA-F]{1,8}", flags) else _UNREADABLE, 16) & 1),
        operstate=words.get("operstate", ""),
        physical=True,
        mtu=int(mtu) if mtu.isdecimal() else None,
        speed_mbits=int(speed) if speed.isdecimal() else None,
    )
