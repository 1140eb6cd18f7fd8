"""Which active RDMA ports run below what they should: one slow rail slows every collective."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from preflight.facts.odd_gpus import Oddity
from preflight.facts.rdma import is_rail, most, mtus, netdev_of, ports_of, rates

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preflight.facts.model import Facts
    from preflight.facts.node import Group
    from preflight.facts.rdma import Port
    from preflight.fleet.model import Promise

_RETRAIN: Final = "reseat or replace its cable, check the switch port's speed; drain, recheck"
_TOLERANCE: Final = 0.97
"""Drivers round: 56 Gb/s is told as 54.5 by some."""


def slow_ports(promised: Promise, facts: Facts, group: Group) -> Iterator[Oddity]:
    """Active ports below the promise, the group, their own peers, or their own interface."""
    active = [port for port in ports_of(facts) if port.active]
    vote = group.majority(rates)
    by_group = vote if vote is not None and vote.decides else None
    for port in active:
        if port.gbits is None:
            continue
        expected, origin = _expected(port, promised, active)
        if expected is None and by_group is not None:
            expected = dict(by_group.value).get(port.name)
            origin = f"on {by_group.votes} of {by_group.of} nodes of group {group.name}"
        if expected is None:
            expected = most(p.gbits for p in active if p.kind == port.kind)
            origin = "on its peers"
        if expected is not None and port.gbits < expected * _TOLERANCE:
            # In the list of a fabric older machines are slow by intention; lost lanes are not.
            grave = not port.of_fabric or (port.lanes or 0) < (most(p.lanes for p in active) or 0)
            sentence = f"{port.name} runs at {_rate(port)}, {expected:g} {origin}"
            yield Oddity(sentence, _RETRAIN, grave=grave)
        elif (told := _interface_gbits(port, facts)) and port.gbits < told * _TOLERANCE:
            sentence = f"{port.name} runs at {_rate(port)}, its interface {port.port.netdev} at"
            yield Oddity(f"{sentence} {told:g}", _RETRAIN)
        elif expected is None and port.lanes == 1 and len(active) > 1:
            sentence = f"{port.name} runs on 1 lane ({port.port.rate}), 4 are usual"
            yield Oddity(sentence, _RETRAIN, grave=False)


def odd_frames(facts: Facts, group: Group) -> Iterator[Oddity]:
    """Ethernet ports whose MTU or error correction is not that of their peers."""
    active = [port for port in ports_of(facts) if port.active and port.layer == "ethernet"]
    vote = group.majority(mtus)
    by_group = dict(vote.value) if vote is not None and vote.decides else {}
    own = dict(mtus(facts) or ())
    for port in active:
        mtu = own.get(port.name)
        expected, origin = by_group.get(port.name), ""
        if vote is not None and expected is not None:
            origin = f"on {vote.votes} of {vote.of} nodes of group {group.name}"
        if expected is None:
            expected = most(own[p.name] for p in active if p.kind == port.kind and p.name in own)
            origin = "on its peers"
        if mtu is not None and expected is not None and mtu < expected:
            sentence = f"{port.name}: MTU {mtu} of {port.port.netdev}, {expected} {origin}"
            yield Oddity(sentence, f"ip link set {port.port.netdev} mtu {expected}; keep it so")
        yield from _odd_fec(port, active, facts)


def _odd_fec(port: Port, active: Sequence[Port], facts: Facts) -> Iterator[Oddity]:
    corrected = {p.name: device.fec for p in active if (device := netdev_of(p, facts))}
    mine = corrected.get(port.name)
    usual = most(corrected[p.name] for p in active if p.kind == port.kind and corrected.get(p.name))
    if mine and usual and mine != usual:
        sentence = f"{port.name}: error correction {mine}, {usual} on its peers"
        advice = f"ethtool --set-fec {port.port.netdev} encoding {usual}, on the switch port too"
        yield Oddity(sentence, advice, grave=False)


def _expected(port: Port, promised: Promise, active: Sequence[Port]) -> tuple[float | None, str]:
    """The promised rate; a front end of another link layer is none of its business."""
    if promised.nic_gbits is None or not is_rail(port, promised):
        return None, ""
    if promised.hcas is None and promised.nic_link is None:
        # Nothing says which ports are rails: those of the layer that most active ports have.
        layer = most(p.layer for p in active)
        if layer is not None and port.layer != layer:
            return None, ""
    return float(promised.nic_gbits), "promised"


def _interface_gbits(port: Port, facts: Facts) -> float | None:
    """What its IPoIB interface says; that of an Ethernet device may be a bond's, or unset."""
    device = netdev_of(port, facts)
    if port.layer != "infiniband" or device is None or device.speed_mbits is None:
        return None
    return device.speed_mbits / 1000


def _rate(port: Port) -> str:
    return port.port.rate if "Gb" in port.port.rate else f"{port.gbits:g} Gb/s"
