"""The Ethernet links of a job's sockets run at full speed, with the frames of their peers.

The expected value comes from this machine's configuration, else from most nodes of the group, the
other links of a bond, or what both ends of a cable offer, in this order. A group can vote on each
reader here that takes `Facts`; None abstains.

Drivers name one thing in many ways (rx_crc_errors, rx_fcs_errors, rx_crc_errors_phy), count the
same frame in several places, and again per queue and priority: the largest of a kind is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final, Literal

from preflight.check import Check
from preflight.checks.deviations import Deviation, conclude_deviations, on_most
from preflight.checks.net.selected import data_over_sockets, gloo_interfaces, nccl_interfaces
from preflight.checks.rdma.ports import ports_of
from preflight.core.thresholds import Thresholds
from preflight.facts import Facts, Group, Node
from preflight.facts.node import decided
from preflight.facts.node_network import Counter, Interface
from preflight.verdict import Conclude, Verdict, not_run, ok, unknown

CHECK = Check("net.ethernet", stage="facts", tier="prolog", requires=("reach.answer",))

Reader = Callable[[Facts], int | None]


def job_links(facts: Facts, environ: Mapping[str, str]) -> tuple[Interface, ...]:
    """The interfaces of NCCL's and gloo's sockets, with the links of any bond among them.

    Where no interface has an address, as in most captured texts, all interfaces are taken.
    """
    candidates = [interface for interface in facts.interfaces if not interface.loopback]
    if not any(interface.addresses for interface in candidates):
        return tuple(candidates)
    ifname = environ.get("NCCL_SOCKET_IFNAME", "")
    nccl_links = nccl_interfaces(facts, ifname, environ.get("NCCL_SOCKET_FAMILY", ""))
    # Without a name ("^" and "=" are none) NCCL takes every interface but docker's, and the first
    # one for its bootstrap.
    links = nccl_links if len(ifname) > 1 else nccl_links[:1]
    links = (*links, *gloo_interfaces(facts, environ.get("GLOO_SOCKET_IFNAME", ""))[0])
    by_name = {link.name: link for link in links if not link.loopback}
    for link in tuple(by_name.values()):
        by_name |= {device.name: device for device in lower_devices(link, facts)}
    return tuple(by_name.values())


def lower_devices(upper: Interface, facts: Facts) -> list[Interface]:
    """The devices under a bond, a bridge or a VLAN; a container's virtual interface is none."""
    below: dict[str, Interface] = {}
    pending = [upper]
    while pending:
        above = pending.pop()
        for interface in facts.interfaces:
            under = interface.name in above.lower or interface.master == above.name
            if under and interface.name not in below and interface.name != upper.name:
                below[interface.name] = interface
                pending.append(interface)
    return [interface for interface in below.values() if interface.physical]


def rdma_interfaces(facts: Facts) -> frozenset[str]:
    """Interfaces over RDMA ports: `ib.*` checks their rate, MTU and flaps."""
    return frozenset(port.port.netdev for port in ports_of(facts) if port.port.netdev)


@cache
def number_of(name: str, field: Literal["mtu", "speed_mbits"]) -> Reader:
    """The reader of an interface's MTU, or of its speed in Mb/s."""
    return lambda facts: getattr(_link(facts, name), field, None)


@cache
def up_of(name: str) -> Callable[[Facts], bool | None]:
    """The reader of whether an interface has a link."""
    return lambda facts: is_up(link) if (link := _link(facts, name)) else None


def _link(facts: Facts, name: str) -> Interface | None:
    return next((link for link in facts.interfaces if link.name == name), None)


def is_up(interface: Interface) -> bool:
    """Whether frames can pass, as far as its state shows."""
    return interface.operstate.lower() not in ("down", "lowerlayerdown", "notpresent")


Kind = Literal["broken", "dropped", "flaps", "packets", ""]

_PER_QUEUE: Final = re.compile(
    r"(?:^|_)(?:[rt]x|ch|q|queue|prio|tc|ptp|xsk|xdp)_?[0-9]|^[\[(]?[0-9]"
)
_SKIP: Final = re.compile(r"xdp|xsk|vport|csum|cache|steer|if_down|tls|ipsec|filter|_bytes|octets")
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
_DROP_ADVICE: Final = (
    "look at flow control (ethtool -a {0}), at its ring (ethtool -g {0}) and at its host's load"
)
_FRAMES: Final[tuple[tuple[Kind, str, str], ...]] = (
    ("broken", "broken_frames_per_million", "reseat or replace {0}'s cable and clean its ends"),
    ("dropped", "dropped_frames_per_million", _DROP_ADVICE),
)
_MIN_FRAMES: Final = 3
"""Frames: one or two prove nothing, however few were received."""

_DAY_S: Final = 86400.0
_MILLION: Final = 1e6


def kind_of(name: str) -> Kind:
    """What a driver's counter counts; "" where that is no fault, or another check reports it."""
    low = name.lower()
    if _PER_QUEUE.search(low) or _SKIP.search(low):
        return ""
    return next((kind for kind, pattern in _KINDS if pattern.search(low)), "")


def frame_troubles(interface: Interface, facts: Facts, limit: Thresholds) -> Iterator[Deviation]:
    """Frames that came broken or found no room, and a link that came and went."""
    counters = (interface.ethernet.counters if interface.ethernet else None) or ()
    packets = _largest(counters, "packets")
    for kind, name, advice in _FRAMES:
        worst = _largest(counters, kind)
        if worst is None or worst.value < _MIN_FRAMES or packets is None:
            continue
        total = max(packets.value, worst.value)
        rate = worst.value / total * _MILLION
        if rate >= limit(name):
            note = f"{interface.name}: {worst.name} {worst.value} of {total} packets"
            share = f"{rate / 1e4:.3g} %" if rate >= 1e4 else f"{rate:.3g} in a million"  # noqa: PLR2004
            sentence = f"{note}: {share}, under {limit(name):g} in a million expected"
            yield Deviation(sentence, advice.format(interface.name), grave=False)
    flaps, most = flaps_per_day(interface, facts), limit("link_flaps_per_day")
    if flaps is not None and flaps >= most:
        downs = f"{interface.carrier_downs} times since boot, {flaps:.3g} a day"
        note = f"{interface.name} lost its link {downs}"
        advice = f"look at {interface.name}'s cable and its switch port"
        yield Deviation(f"{note}; under {most:g} a day expected", advice, grave=False)


def flaps_per_day(interface: Interface, facts: Facts) -> float | None:
    """How often its link went down since boot, per day; None where that is not known."""
    up_s = facts.time_s - facts.boot_s
    if interface.carrier_downs is None or up_s <= 0:
        return None
    return interface.carrier_downs / max(1.0, up_s / _DAY_S)


def undated_flaps(interface: Interface, facts: Facts, limit: Thresholds) -> str:
    """A number of lost links that may be too high, but has no start time; "" if there is none."""
    if facts.time_s > facts.boot_s or (interface.carrier_downs or 0) < limit("link_flaps_per_day"):
        return ""
    times = f"{interface.carrier_downs} times, and nothing says since when"
    return f"{interface.name} lost its link {times}"


def _largest(counters: tuple[Counter, ...], kind: str) -> Counter | None:
    same_kind = [counter for counter in counters if kind_of(counter.name) == kind]
    return max(same_kind, key=lambda counter: counter.value, default=None)


_CABLE: Final = "look at {0}'s cable, its module and its switch port's speed (ethtool {0})"
_TOLERANCE: Final = 0.97
"""Drivers round."""


def deviations(
    links: Sequence[Interface], facts: Facts, group: Group, *, grave: bool, limit: Thresholds
) -> Iterator[Deviation]:
    """What is wrong with these links. `grave`: the job's data go over them."""
    rdma = rdma_interfaces(facts)
    has_addresses = any(link.addresses for link in links)
    masters = {link.master for link in facts.interfaces}
    for link in links:
        if not is_up(link):
            if not has_addresses:  # else net.interface or `_down_links` reports it
                yield Deviation(f"{link.name} has no link", _CABLE.format(link.name), grave=False)
            continue
        if link.ethernet is not None and link.ethernet.duplex == "half":
            advice = f"let both ends of {link.name} negotiate (ethtool -s autoneg on)"
            yield Deviation(f"{link.name} runs half duplex, full is expected", advice)
        if link.name in masters or link.lower:
            yield from _down_links(link, facts, group, grave=grave)
        if link.name not in rdma:
            yield from _unusual_mtu(link, group, grave=grave)
            yield from _slow_links(link, links, group, grave=grave)
            yield from frame_troubles(link, facts, limit)


def without_expected_speed(links: Sequence[Interface], facts: Facts, group: Group) -> list[str]:
    """Links whose expected speed is unknown: neither peers nor the device itself show it."""
    rdma = rdma_interfaces(facts)
    return [
        link.name
        for link in links
        if link.physical and is_up(link) and link.speed_mbits and link.name not in rdma
        and (link.ethernet is None or link.ethernet.most_mbits is None)
        and decided(group.majority(number_of(link.name, "speed_mbits"))) is None
    ]  # fmt: skip


def speed(mbits: float) -> str:
    """100 Gb/s, 2.5 Gb/s, 100 Mb/s."""
    return f"{mbits / 1000:g} Gb/s" if mbits >= 1000 else f"{mbits:g} Mb/s"  # noqa: PLR2004


def _unusual_mtu(link: Interface, group: Group, *, grave: bool) -> Iterator[Deviation]:
    configured_mtu = link.ethernet.mtu_wanted if link.ethernet else None
    expected, origin = configured_mtu, "in its own configuration"
    vote = decided(group.majority(number_of(link.name, "mtu")))
    if expected is None and vote is not None:
        expected, origin = vote.value, on_most(vote, group)
    if link.mtu is None or expected is None or link.mtu == expected:
        return
    advice = f"ip link set {link.name} mtu {expected}; keep it so, and the switch port's not below"
    # A node with larger frames than the others' sends them none: connections agree on the smaller.
    sentence = f"{link.name}: MTU {link.mtu}, {expected} {origin}"
    yield Deviation(sentence, advice, grave=grave and link.mtu < expected)


def _slow_links(
    link: Interface, links: Sequence[Interface], group: Group, *, grave: bool
) -> Iterator[Deviation]:
    if not link.speed_mbits:
        return
    ethernet, advice = link.ethernet, _CABLE.format(link.name)
    seen = f"{link.name} runs at {speed(link.speed_mbits)}"
    if usual := decided(group.majority(number_of(link.name, "speed_mbits"))):
        if link.speed_mbits < usual.value * _TOLERANCE:
            sentence = f"{seen}, {speed(usual.value)} {on_most(usual, group)}"
            yield Deviation(sentence, advice, grave=grave)
        return
    bond_mbits = [p.speed_mbits or 0 for p in links if p.master and p.master == link.master]
    both_ends_mbits = min(ethernet.most_mbits or 0, ethernet.partner_mbits or 0) if ethernet else 0
    if link.speed_mbits < max(bond_mbits, default=0) * _TOLERANCE:
        sentence = f"{seen}, another link of {link.master} at {speed(max(bond_mbits))}"
        yield Deviation(sentence, advice, grave=grave)
    elif link.speed_mbits < both_ends_mbits * _TOLERANCE:
        sentence = f"{seen}, both its ends can do {speed(both_ends_mbits)}"
        yield Deviation(sentence, advice, grave=grave)
    elif ethernet and link.physical and link.speed_mbits < (ethernet.most_mbits or 0) * _TOLERANCE:
        sentence = f"{seen}, its device can do {speed(ethernet.most_mbits or 0)}"
        yield Deviation(sentence, advice, grave=False)
    elif fastest := _fastest_peer(link, group):
        sentence = f"{seen}, {speed(fastest)} on another node of group {group.name}"
        yield Deviation(sentence, advice, grave=False)


def _fastest_peer(link: Interface, group: Group) -> int | None:
    """The speed of the fastest peer: two nodes make no majority, but no link is too fast."""
    reader = number_of(link.name, "speed_mbits")
    fastest = max((mbits for facts in group.facts.values() if (mbits := reader(facts))), default=0)
    return fastest if (link.speed_mbits or 0) < fastest * _TOLERANCE else None


def _down_links(link: Interface, facts: Facts, group: Group, *, grave: bool) -> Iterator[Deviation]:
    """Links of a bond that are down: the bond goes on with the rest, at a part of its speed."""
    members = lower_devices(link, facts)
    for device in members:
        vote = decided(group.majority(up_of(device.name)))
        if is_up(device) or (vote is not None and not vote.value):
            continue
        up = sum(is_up(member) for member in members)
        sentence = f"{device.name} of {link.name} has no link; {up} of {len(members)} are up"
        yield Deviation(sentence, _CABLE.format(device.name), grave=grave)


def judge(
    facts: Facts, environ: Mapping[str, str] | None, group: Group, limit: Thresholds
) -> Verdict:
    """Compare speed, duplex, MTU, a bond's links and lost frames with configuration and peers."""
    network, env = facts.network, environ or {}
    if network is None or network.interfaces is None:
        if network is None and not any(problem.startswith("network") for problem in facts.problems):
            return not_run("no interfaces reported")
        return unknown("the interfaces could not be read", advice="look at ip link there")
    links = job_links(facts, env)
    if not links:
        return not_run("no interface here that the job's sockets could use")
    grave = data_over_sockets(facts, env)
    if verdict := conclude_deviations(deviations(links, facts, group, grave=grave, limit=limit)):
        return verdict
    rdma = rdma_interfaces(facts)
    plain = tuple(link for link in links if link.name not in rdma)
    if not plain:
        return ok(f"{', '.join(link.name for link in links)}: over RDMA ports, which ib.* checks")
    return _unknown_links(plain, facts, group, limit) or ok(
        "; ".join(map(_link_words, plain[:4])), links=[link.name for link in plain]
    )


def _unknown_links(
    links: tuple[Interface, ...], facts: Facts, group: Group, limit: Thresholds
) -> Verdict | None:
    unreported = [link.name for link in links if link.mtu is None and link.ethernet is None]
    if unreported:
        sentence = f"{', '.join(unreported)} did not report its link"
        return unknown(sentence, advice="look at mtu, speed and duplex in /sys/class/net")
    if undated := [sentence for link in links if (sentence := undated_flaps(link, facts, limit))]:
        return unknown(undated[0], advice="take a second reading after a known time")
    without_speed = without_expected_speed(links, facts, group)
    if not without_speed:
        return None
    sentence = f"nothing says what speed {', '.join(without_speed)} should have"
    advice = "look at ethtool there, or take a healthy node beside it"
    return unknown(f"{sentence} ({'; '.join(map(_link_words, links[:4]))})", advice=advice)


def _link_words(link: Interface) -> str:
    words = [speed(link.speed_mbits) if link.speed_mbits else "speed not reported"]
    if link.ethernet and link.ethernet.counters and not (link.speed_mbits or link.mtu):
        words = ["no more frames lost than usual"]
    words += [f"{link.ethernet.duplex} duplex"] if link.ethernet and link.ethernet.duplex else []
    words += [f"MTU {link.mtu}"] if link.mtu else []
    return f"{link.name}: {', '.join(words)}"


def test_net_ethernet(node: Node, conclude: Conclude) -> None:
    """The Ethernet links of a job's sockets run at full speed, with the frames of their peers."""
    conclude(judge(node.facts, node.environ, node.group, node.limit))
