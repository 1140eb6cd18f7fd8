"""Which Ethernet links carry a job's sockets, and what each should be: promise, peers, other end.

Each reader here that takes `Facts` can be voted on by a group; None abstains.

Drivers name one thing in many ways (rx_crc_errors, rx_fcs_errors, rx_crc_errors_phy), count the
same frame in several places, and again per queue and priority: the largest of a kind is taken.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final, Literal

from preflight.checks.gpu.deviations import Oddity
from preflight.checks.net.selected import gloo_interfaces, nccl_interfaces, nccl_ports
from preflight.checks.rdma.ports import ports_of
from preflight.facts.basics import limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from preflight.facts.model import Facts
    from preflight.facts.network import Counter, Interface


if TYPE_CHECKING:
    Reader = Callable[[Facts], int | None]


def job_links(facts: Facts, environ: Mapping[str, str]) -> tuple[Interface, ...]:
    """What NCCL's and gloo's sockets go over, with the links that a bond of them is made of.

    Where no interface tells an address, as in most captured texts, every one is meant.
    """
    every = [one for one in _every(facts) if not one.loopback]
    if not any(one.addresses for one in every):
        return tuple(every)
    ifname = environ.get("NCCL_SOCKET_IFNAME", "")
    found = nccl_interfaces(facts, ifname, environ.get("NCCL_SOCKET_FAMILY", ""))
    # Left alone, NCCL takes every interface but docker's; its bootstrap goes over the first.
    chosen = found if len(ifname) > 1 else found[:1]
    chosen = (*chosen, *gloo_interfaces(facts, environ.get("GLOO_SOCKET_IFNAME", ""))[0])
    used = {one.name: one for one in chosen if not one.loopback}
    for one in tuple(used.values()):
        used |= {part.name: part for part in parts(one, facts)}
    return tuple(used.values())


def parts(whole: Interface, facts: Facts) -> list[Interface]:
    """The devices under a bond, a bridge or a VLAN; ends of containers' cables are none."""
    found: dict[str, Interface] = {}
    waiting = [whole]
    while waiting:
        above = waiting.pop()
        for one in _every(facts):
            under = one.name in above.lower or one.master == above.name
            if under and one.name not in found and one.name != whole.name:
                found[one.name] = one
                waiting.append(one)
    return [one for one in found.values() if one.physical]


def over_rdma(facts: Facts) -> frozenset[str]:
    """Interfaces over RDMA ports: rate, MTU and flaps of those are told by `ib.*`."""
    return frozenset(port.port.netdev for port in ports_of(facts) if port.port.netdev)


def data_over_sockets(facts: Facts, environ: Mapping[str, str]) -> bool:
    """Whether the job's data, and not only its bootstrap, go over these links."""
    if environ.get("NCCL_IB_DISABLE", "").strip() == "1":
        return True
    return not any(port.active for port in nccl_ports(facts, environ.get("NCCL_IB_HCA", "")))


@cache
def mtu_of(name: str) -> Reader:
    """The reader of an interface's MTU."""
    return lambda facts: _of(facts, name, lambda one: one.mtu)


@cache
def speed_of(name: str) -> Reader:
    """The reader of an interface's speed, Mb/s."""
    return lambda facts: _of(facts, name, lambda one: one.speed_mbits)


@cache
def up_of(name: str) -> Callable[[Facts], bool | None]:
    """The reader of whether an interface has a link."""
    return lambda facts: next((is_up(one) for one in _every(facts) if one.name == name), None)


def is_up(one: Interface) -> bool:
    """Whether frames can pass, as far as it tells."""
    return one.operstate.lower() not in ("down", "lowerlayerdown", "notpresent")


def _of(facts: Facts, name: str, read: Callable[[Interface], int | None]) -> int | None:
    return next((read(one) for one in _every(facts) if one.name == name), None)


def _every(facts: Facts) -> tuple[Interface, ...]:
    return (facts.network.interfaces if facts.network else None) or ()


Kind = Literal["broken", "dropped", "flaps", "packets", ""]

_PER_QUEUE: Final = re.compile(
    r"(?:^|_)(?:[rt]x|ch|q|queue|prio|tc|ptp|xsk|xdp)_?[0-9]|^[\[(]?[0-9]"
)
_NEVER: Final = re.compile(r"xdp|xsk|vport|csum|cache|steer|if_down|tls|ipsec|filter|_bytes|octets")
_KINDS: Final[tuple[tuple[Kind, re.Pattern[str]], ...]] = (
    ("flaps", re.compile(r"link_down(?:ed)?_events?|^carrier_downs$|link_failure_count")),
    ("broken", re.compile(r"crc|fcs|(?:symbol|code|align\w{0,80}|frame)_err|fragment|jabber")),
    ("dropped", re.compile(
        r"^(?:port[._])?rx.*(?:discard|missed|no_buf|out_of_buffer|fifo|over_err|overrun|no_dma)"
    )),
    ("packets", re.compile(
        r"^(?:port[._])?rx_(?:total_)?(?:ucast_|unicast_)?(?:packets|frames|pkts)(?:_phy)?$"
    )),
)  # fmt: skip
_CONGESTED: Final = (
    "look at flow control (ethtool -a {0}), at its ring (ethtool -g {0}) and at its host's load"
)
_FRAMES: Final[tuple[tuple[Kind, str, str], ...]] = (
    ("broken", "broken_frames_per_million", "reseat or replace {0}'s cable and clean its ends"),
    ("dropped", "dropped_frames_per_million", _CONGESTED),
)
_LEAST: Final = 3
"""Frames: one or two prove nothing, of however few."""

_DAY_S: Final = 86400.0
_MILLION: Final = 1e6


def kind_of(name: str) -> Kind:
    """What a counter of a driver tells of; "" where it is no trouble, or is told elsewhere."""
    low = name.lower()
    if _PER_QUEUE.search(low) or _NEVER.search(low):
        return ""
    return next((kind for kind, pattern in _KINDS if pattern.search(low)), "")


def frame_troubles(one: Interface, facts: Facts) -> Iterator[Oddity]:
    """Frames that came broken or found no room, and a link that came and went."""
    counters = (one.ethernet.counters if one.ethernet else None) or ()
    packets = _largest(counters, "packets")
    for kind, name, advice in _FRAMES:
        worst = _largest(counters, kind)
        if worst is None or worst.value < _LEAST or packets is None:
            continue
        received = max(packets.value, worst.value)
        rate = worst.value / received * _MILLION
        if rate >= limit(name):
            seen = f"{one.name}: {worst.name} {worst.value} of {received} packets"
            share = f"{rate / 1e4:.3g} %" if rate >= 1e4 else f"{rate:.3g} in a million"  # noqa: PLR2004
            most = f"{share}, under {limit(name):g} in a million expected"
            yield Oddity(f"{seen}: {most}", advice.format(one.name), grave=False)
    yield from _flaps(one, facts)


def flaps_per_day(one: Interface, facts: Facts) -> float | None:
    """How often its link went down since boot, per day; None where nothing tells."""
    up_s = facts.time_s - facts.boot_s
    if one.carrier_downs is None or up_s <= 0:
        return None
    return one.carrier_downs / max(1.0, up_s / _DAY_S)


def undated_flaps(one: Interface, facts: Facts) -> str:
    """A total of lost links that could be too high, and nothing says since when; "" if none."""
    if facts.time_s > facts.boot_s or (one.carrier_downs or 0) < limit("link_flaps_per_day"):
        return ""
    return f"{one.name} lost its link {one.carrier_downs} times, and nothing says since when"


def _flaps(one: Interface, facts: Facts) -> Iterator[Oddity]:
    rate = flaps_per_day(one, facts)
    if rate is not None and rate >= limit("link_flaps_per_day"):
        seen = f"{one.name} lost its link {one.carrier_downs} times since boot, {rate:.3g} a day"
        sentence = f"{seen}; under {limit('link_flaps_per_day'):g} a day expected"
        yield Oddity(sentence, f"look at {one.name}'s cable and its switch port", grave=False)


def _largest(counters: tuple[Counter, ...], kind: str) -> Counter | None:
    own = [one for one in counters if kind_of(one.name) == kind]
    return max(own, key=lambda one: one.value, default=None)
