"""The Ethernet links of a job's sockets run at full speed, with the frames of their peers.

What should be is told by this machine's configuration, by most nodes of the group, by the other
links of a bond, and by what both ends of a cable offer, in this order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from preflight.check import Check
from preflight.checks.gpu.deviations import Oddity, conclude_oddities
from preflight.checks.net.ethernet import (
    data_over_sockets,
    frame_troubles,
    is_up,
    job_links,
    mtu_of,
    over_rdma,
    parts,
    speed_of,
    undated_flaps,
    up_of,
)
from preflight.facts import Facts, Group, Node
from preflight.facts.network import Interface
from preflight.facts.node import decided
from preflight.verdict import Conclude, Verdict, not_run, ok, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight.facts.node import Majority


_CABLE: Final = "look at {0}'s cable, its module and its switch port's speed (ethtool {0})"
_TOLERANCE: Final = 0.97
"""Drivers round."""


def odd_links(
    links: Sequence[Interface], facts: Facts, group: Group, *, grave: bool
) -> Iterator[Oddity]:
    """Everything odd about these links. `grave`: the job's data go over them."""
    rdma = over_rdma(facts)
    addressed = any(one.addresses for one in links)
    every = (facts.network and facts.network.interfaces) or ()
    wholes = {name for one in every for name in (one.master, one.name if one.lower else "")}
    for one in links:
        if not is_up(one):
            if not addressed:  # else net.interface tells of it, or `_lost_parts`
                yield Oddity(f"{one.name} has no link", _CABLE.format(one.name), grave=False)
            continue
        if one.ethernet is not None and one.ethernet.duplex == "half":
            sentence = f"{one.name} runs half duplex, full is expected"
            yield Oddity(sentence, f"let both ends of {one.name} negotiate (ethtool -s autoneg on)")
        if one.name in wholes:
            yield from _lost_parts(one, facts, group, grave=grave)
        if one.name not in rdma:
            yield from _odd_mtu(one, group, grave=grave)
            yield from _slow(one, links, group, grave=grave)
            yield from frame_troubles(one, facts)


def unheld(links: Sequence[Interface], facts: Facts, group: Group) -> list[str]:
    """Links whose speed nothing says what it should be: neither peers nor the device itself."""
    rdma = over_rdma(facts)
    return [
        one.name
        for one in links
        if one.physical and is_up(one) and one.speed_mbits and one.name not in rdma
        if one.ethernet is None or one.ethernet.most_mbits is None
        if decided(group.majority(speed_of(one.name))) is None
    ]  # fmt: skip


def speed(mbits: float) -> str:
    """100 Gb/s, 2.5 Gb/s, 100 Mb/s."""
    return f"{mbits / 1000:g} Gb/s" if mbits >= 1000 else f"{mbits:g} Mb/s"  # noqa: PLR2004


def _odd_mtu(one: Interface, group: Group, *, grave: bool) -> Iterator[Oddity]:
    wanted = one.ethernet.mtu_wanted if one.ethernet else None
    expected, origin = wanted, "in its own configuration"
    vote = decided(group.majority(mtu_of(one.name)))
    if expected is None and vote is not None:
        expected, origin = vote.value, _by(vote, group)
    if one.mtu is None or expected is None or one.mtu == expected:
        return
    advice = f"ip link set {one.name} mtu {expected}; keep it so, and the switch port's not below"
    # A node with larger frames than the others' sends them none: connections agree on the smaller.
    sentence = f"{one.name}: MTU {one.mtu}, {expected} {origin}"
    yield Oddity(sentence, advice, grave=grave and one.mtu < expected)


def _slow(
    one: Interface, links: Sequence[Interface], group: Group, *, grave: bool
) -> Iterator[Oddity]:
    if not one.speed_mbits:
        return
    told, advice = one.ethernet, _CABLE.format(one.name)
    seen = f"{one.name} runs at {speed(one.speed_mbits)}"
    vote = group.majority(speed_of(one.name))
    if (usual := decided(vote)) is not None:
        if one.speed_mbits < usual.value * _TOLERANCE:
            yield Oddity(f"{seen}, {speed(usual.value)} {_by(usual, group)}", advice, grave=grave)
        return
    bonded = [p.speed_mbits or 0 for p in links if p.master and p.master == one.master]
    both = min(told.most_mbits or 0, told.partner_mbits or 0) if told else 0
    if one.speed_mbits < max(bonded, default=0) * _TOLERANCE:
        sentence = f"{seen}, another link of {one.master} at {speed(max(bonded))}"
        yield Oddity(sentence, advice, grave=grave)
    elif one.speed_mbits < both * _TOLERANCE:
        yield Oddity(f"{seen}, both its ends can do {speed(both)}", advice, grave=grave)
    elif told and one.physical and one.speed_mbits < (told.most_mbits or 0) * _TOLERANCE:
        sentence = f"{seen}, its device can do {speed(told.most_mbits or 0)}"
        yield Oddity(sentence, advice, grave=False)
    elif fastest := _fastest_peer(one, group):
        sentence = f"{seen}, {speed(fastest)} on another node of group {group.name}"
        yield Oddity(sentence, advice, grave=False)


def _fastest_peer(one: Interface, group: Group) -> int | None:
    """Of two nodes that differ neither is the rule; but no link is faster by mistake."""
    read = speed_of(one.name)
    fastest = max((mbits for facts in group.facts.values() if (mbits := read(facts))), default=0)
    return fastest if (one.speed_mbits or 0) < fastest * _TOLERANCE else None


def _lost_parts(one: Interface, facts: Facts, group: Group, *, grave: bool) -> Iterator[Oddity]:
    """Links of a bond that are down: it goes on with what is left, at a part of its speed."""
    own = parts(one, facts)
    for part in own:
        vote = decided(group.majority(up_of(part.name)))
        if is_up(part) or (vote is not None and not vote.value):
            continue
        left = sum(is_up(each) for each in own)
        sentence = f"{part.name} of {one.name} has no link; {left} of {len(own)} are up"
        yield Oddity(sentence, _CABLE.format(part.name), grave=grave)


def _by(vote: Majority[int], group: Group) -> str:
    return f"on {vote.votes} of {vote.of} nodes of group {group.name}"


CHECK = Check("net.ethernet", stage="facts", tier="prolog", requires=("reach.answer",))


def judge(facts: Facts, environ: Mapping[str, str] | None, group: Group) -> Verdict:
    """Hold speed, duplex, MTU, a bond's links and lost frames against configuration and peers."""
    network, env = facts.network, environ or {}
    if network is None or network.interfaces is None:
        if network is None and not any(said.startswith("network") for said in facts.problems):
            return not_run("no interfaces told")
        return unknown("the interfaces could not be read", advice="look at ip link there")
    links = job_links(facts, env)
    if not links:
        return not_run("no interface here that the job's sockets could use")
    odd = conclude_oddities(
        odd_links(links, facts, group, grave=data_over_sockets(facts, env)),
    )
    if odd is not None:
        return odd
    rdma = over_rdma(facts)
    told = tuple(one for one in links if one.name not in rdma)
    if not told:
        return ok(f"{', '.join(one.name for one in links)}: over RDMA ports, judged as those")
    return _untold(told, facts, group) or ok(
        "; ".join(map(_words, told[:4])), links=[one.name for one in told]
    )


def _untold(links: tuple[Interface, ...], facts: Facts, group: Group) -> Verdict | None:
    mute = [one.name for one in links if one.mtu is None and one.ethernet is None]
    if mute:
        said = f"{', '.join(mute)} would not tell its link"
        return unknown(said, advice="look at mtu, speed and duplex in /sys/class/net")
    if old := [said for one in links if (said := undated_flaps(one, facts))]:
        return unknown(old[0], advice="take a second reading after a known time")
    alone = unheld(links, facts, group)
    if not alone:
        return None
    said = f"nothing says what speed {', '.join(alone)} should have"
    advice = "look at ethtool there, or take a healthy node beside it"
    return unknown(f"{said} ({'; '.join(map(_words, links[:4]))})", advice=advice)


def _words(one: Interface) -> str:
    words = [speed(one.speed_mbits) if one.speed_mbits else "speed not told"]
    if one.ethernet and one.ethernet.counters and not (one.speed_mbits or one.mtu):
        words = ["no more frames lost than usual"]
    words += [f"{one.ethernet.duplex} duplex"] if one.ethernet and one.ethernet.duplex else []
    words += [f"MTU {one.mtu}"] if one.mtu else []
    return f"{one.name}: {', '.join(words)}"


def test_net_ethernet(node: Node, conclude: Conclude) -> None:
    """Joins a node, the job's environment there and the judgement; the frame does the rest."""
    conclude(judge(node.facts, node.environ, node.group))
