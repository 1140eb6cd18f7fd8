"""Every RDMA device is present, its ports are up, at full rate, and with few errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from preflight.check import Check
from preflight.checks.deviations import Deviation, conclude_deviations, on_most
from preflight.checks.rdma.port_faults import (
    RULES,
    counted_cause,
    down_ports,
    idle_everywhere,
    idle_interfaces,
    port_errors,
    totals_without_start,
    unsteady_ports,
)
from preflight.checks.rdma.ports import (
    Port,
    expected_layer,
    is_rail,
    most_common,
    mtus,
    netdev_of,
    nic_names,
    ports_of,
    rates,
)
from preflight.core.statistics import grouped
from preflight.core.text import count, natural
from preflight.core.thresholds import Thresholds
from preflight.facts import Facts, Group, Majority, Nic, Node
from preflight.facts.boards import among, gpu_models
from preflight.facts.node import decided
from preflight.fleet.model import Expected
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown

_ANSWER: Final = ("reach.answer",)
CHECKS = (
    Check("ib.port", stage="facts", tier="prolog", requires=_ANSWER, drains=True, heals=True),
    Check("ib.count", stage="facts", tier="prolog", requires=_ANSWER, drains=True),
    Check("ib.rate", stage="facts", tier="prolog", requires=_ANSWER, drains=True),
    Check("ib.errors", stage="facts", tier="prolog", requires=_ANSWER),
)


def judge_port(expected: Expected, facts: Facts, group: Group) -> Verdict:
    """Compare each port that is not up with the inventory, the group and its own peers."""
    if facts.nics is None:
        unreadable = any(problem.startswith("nics") for problem in facts.problems)
        if not (expected.nics or expected.hcas or unreadable):
            return not_run("no RDMA ports expected, none reported")
        return unknown("the RDMA ports could not be read", advice="look at /sys/class/infiniband")
    ports = ports_of(facts)
    if not ports and not facts.nics:
        return not_run("no RDMA devices here")
    down = down_ports(expected, facts, group)
    if verdict := conclude_deviations([*down, *idle_interfaces(facts), *unsteady_ports(facts)]):
        return verdict
    unreported = [nic.name for nic in facts.nics if not nic.ports]
    unreported += [port.name for port in ports if not port.state]
    if unreported:
        sentence = f"the state of {', '.join(unreported)} could not be read"
        return unknown(sentence, advice="look at the ports' state in /sys/class/infiniband")
    by_inventory = expected.nics is not None or expected.hcas is not None
    return _ports_verdict(ports, may_idle=by_inventory or idle_everywhere(facts, group))


def _ports_verdict(ports: Sequence[Port], *, may_idle: bool) -> Verdict:
    """No port is wrong; if none is up, `may_idle` says whether inventory or group allow that."""
    active = [port.name for port in ports if port.active]
    if not active and not may_idle:
        states = ", ".join(f"{port.name} {port.words()}" for port in ports[:4])
        sentence = f"no port is ACTIVE ({states}), and whether one should be is not known"
        advice = "name the ports that jobs use in the inventory (hcas, nics)"
        return unknown(sentence, advice=advice)
    idle = [f"{port.name} {port.words()}" for port in ports if not port.active]
    sentence = f"{count(len(active), 'port')} ACTIVE"
    if idle:
        sentence += f"; no known use: {', '.join(idle[:4])}" + (" ..." * (len(idle) > 4))  # noqa: PLR2004
    return ok(sentence, active=active, idle=idle)


def test_ib_port(node: Node, conclude: Conclude) -> None:
    """Every RDMA port that the job will use is up."""
    conclude(judge_port(node.expected, node.facts, node.group))


Usual = Majority[tuple[str, ...]]
FIND_DEVICE = "look for it in lspci and for mlx5 errors in dmesg; drain, power-cycle, recheck"


def judge_count(
    expected: Expected, nics: tuple[Nic, ...] | None, usual: Usual | None = None
) -> Verdict:
    """Compare the devices with the names or number in the inventory, or else with the group's."""
    usual_count = decided(usual)
    expected_count = len(expected.hcas) if expected.hcas is not None else expected.nics
    if not nics and not expected_count and not (usual_count and usual_count.value):
        return not_run("no RDMA devices here")
    if nics is None:
        return unknown("the RDMA devices could not be read", advice="look at /sys/class/infiniband")
    names = sorted((nic.name for nic in nics), key=natural)
    present = len([nic for nic in nics if _is_counted(nic, expected)])
    origin = "expected"
    if expected.hcas is not None:
        gone = [name for name in expected.hcas if name not in names]
        present = len(expected.hcas) - len(gone)
    else:
        gone = sorted(set(usual_count.value) - set(names), key=natural) if usual_count else []
    if expected_count is None and usual_count is not None:
        expected_count, present = len(usual_count.value), len(names)
        origin = f"on {usual_count.holders} of its group"
    if expected_count is not None and present < expected_count:
        details = f"; missing: {', '.join(gone)}" if len(gone) == expected_count - present else ""
        sentence = f"{present} RDMA devices, {expected_count} {origin}{details}"
        return fail(sentence, advice=FIND_DEVICE, devices=names, missing=gone)
    return ok(count(len(names), "RDMA device"), devices=names)


def _is_counted(nic: Nic, expected: Expected) -> bool:
    """Whether a device is of the expected kind; front ends of another link layer are not."""
    layers = {port.link_layer.lower() for port in nic.ports} - {""}
    return not layers or expected_layer(expected) in ("", *layers)


def test_ib_count(node: Node, conclude: Conclude) -> None:
    """Every node has the RDMA devices that the inventory expects of its group."""
    usual = node.group.majority(among(nic_names, gpu_models(node.facts)))
    conclude(judge_count(node.expected, node.facts.nics, usual))


_RETRAIN: Final = "reseat or replace its cable, check the switch port's speed; drain, recheck"
_TOLERANCE: Final = 0.97
"""Drivers round: some report 56 Gb/s as 54.5."""


def slow_ports(
    active: Sequence[Port], expected: Expected, facts: Facts, group: Group
) -> Iterator[Deviation]:
    """Active ports slower than the inventory, the group, their peers or their interface says."""
    vote = decided(group.majority(among(rates, gpu_models(facts))))
    by_group = dict(vote.value) if vote is not None else {}
    gbits = grouped((port.kind, port.gbits) for port in active)
    peers = {kind: most_common(values) for kind, values in gbits.items()}
    lanes = most_common(port.lanes for port in active)
    for port in active:
        if (rate := port.gbits) is None:
            continue
        expected_gbits, origin = _expected_rate(port, expected, active)
        if expected_gbits is None and vote is not None:
            expected_gbits, origin = by_group.get(port.name), on_most(vote, group)
        from_peers, infiniband = expected_gbits is None, port.layer == "infiniband"
        if from_peers:
            expected_gbits, origin = peers[port.kind], "on its peers"
        may_lack_lanes = from_peers and (expected_gbits is None or infiniband)
        if expected_gbits is not None and rate < expected_gbits * _TOLERANCE:
            # In the list of a fabric older machines are slow by intention; lost lanes are not.
            grave = not port.of_fabric or (port.lanes or 0) < (lanes or 0)
            sentence = f"{port.name} runs at {_rate(port)}, {expected_gbits:g} {origin}"
            yield Deviation(sentence, _RETRAIN, grave=grave)
        elif rate < (interface_gbits := _interface_gbits(port, facts)) * _TOLERANCE:
            interface = f"its interface {port.port.netdev} at {interface_gbits:g}"
            yield Deviation(f"{port.name} runs at {_rate(port)}, {interface}", _RETRAIN)
        elif port.lanes == 1 and len(active) > 1 and may_lack_lanes:
            # Ethernet may be made of one lane; of InfiniBand, slow ones prove nothing by number.
            faster = any(p.kind == port.kind and (p.gbits or 0) > rate for p in active)
            sentence = f"{port.name} runs on 1 lane ({port.port.rate}), 4 are usual"
            grave = infiniband and faster and not port.of_fabric
            yield Deviation(sentence, _RETRAIN, grave=grave)


def unusual_frames(active: Sequence[Port], facts: Facts, group: Group) -> Iterator[Deviation]:
    """Active Ethernet ports whose MTU or error correction is not that of their peers."""
    active = [port for port in active if port.layer == "ethernet"]
    vote = decided(group.majority(mtus))
    by_group = dict(vote.value) if vote is not None else {}
    mtu_of = dict(mtus(facts) or ())
    for port in active:
        mtu = mtu_of.get(port.name)
        expected, origin = by_group.get(port.name), on_most(vote, group) if vote else ""
        if expected is None:
            peers = [p.name for p in active if p.kind == port.kind]
            expected = most_common(mtu_of[name] for name in peers if name in mtu_of)
            origin = "on its peers"
        if mtu is not None and expected is not None and mtu < expected:
            sentence = f"{port.name}: MTU {mtu} of {port.port.netdev}, {expected} {origin}"
            yield Deviation(sentence, f"ip link set {port.port.netdev} mtu {expected}; keep it so")
        yield from _unusual_fec(port, active, facts)


def _unusual_fec(port: Port, active: Sequence[Port], facts: Facts) -> Iterator[Deviation]:
    fecs = {p.name: device.fec for p in active if (device := netdev_of(p, facts))}
    fec = fecs.get(port.name)
    usual = most_common(fecs[p.name] for p in active if p.kind == port.kind and fecs.get(p.name))
    if fec and usual and fec != usual:
        sentence = f"{port.name}: error correction {fec}, {usual} on its peers"
        advice = f"ethtool --set-fec {port.port.netdev} encoding {usual}, on the switch port too"
        yield Deviation(sentence, advice, grave=False)


def _expected_rate(
    port: Port, expected: Expected, active: Sequence[Port]
) -> tuple[float | None, str]:
    """The expected rate; a front end of another link layer has none."""
    if expected.nic_gbits is None or not is_rail(port, expected):
        return None, ""
    if expected.hcas is None and expected.nic_link is None:
        # Nothing says which ports are rails: those of the layer that most active ports have.
        layer = most_common(p.layer for p in active)
        if layer is not None and port.layer != layer:
            return None, ""
    least = expected.nic_gbits * _TOLERANCE
    fast = sum(is_rail(p, expected) and (p.gbits or 0.0) >= least for p in active)
    if expected.hcas is None and expected.nics is not None and fast >= expected.nics:
        return None, ""  # all rails are that fast: a slower port is for storage, or a front end
    return float(expected.nic_gbits), "expected"


def _interface_gbits(port: Port, facts: Facts) -> float:
    """The rate of its IPoIB interface, or 0; an Ethernet device's may be a bond's, or unset."""
    device = netdev_of(port, facts)
    return (device.speed_mbits or 0) / 1000 if device and port.layer == "infiniband" else 0.0


def _rate(port: Port) -> str:
    return port.port.rate if "Gb" in port.port.rate else f"{port.gbits:g} Gb/s"


def judge_rate(expected: Expected, facts: Facts, group: Group) -> Verdict:
    """Compare rate, lanes, MTU and error correction with inventory, group and own peers."""
    active = [port for port in ports_of(facts) if port.active]
    if not active:
        return not_run("no active RDMA port here")
    slow = slow_ports(active, expected, facts, group)
    if verdict := conclude_deviations([*slow, *unusual_frames(active, facts, group)]):
        return verdict
    if unreported := [port.name for port in active if port.gbits is None]:
        sentence = f"the rate of {', '.join(unreported)} could not be read"
        return unknown(sentence, advice="look at rate in /sys/class/infiniband/*/ports")
    rates = sorted({port.gbits or 0.0 for port in active}, reverse=True)
    speeds = ", ".join(f"{rate:g}" for rate in rates)
    by_port = {port.name: port.port.rate for port in active}
    return ok(f"{count(len(active), 'port')} at {speeds} Gb/s", rates=by_port)


def test_ib_rate(node: Node, conclude: Conclude) -> None:
    """Every active RDMA port runs at full rate, with the frames of its peers."""
    conclude(judge_rate(node.expected, node.facts, node.group))


def judge_errors(facts: Facts, limit: Thresholds) -> Verdict:
    """Compare counters that rose between two readings, and rates since boot, with their limits."""
    ports = [port for port in ports_of(facts) if port.active or not port.state]
    if not ports:
        return not_run("no active RDMA port here")
    ports = [port for port in ports if port.layer != "unspecified"]
    if not ports:
        return not_run("neither InfiniBand nor Ethernet (as EFA): no counter is known of it")
    if verdict := conclude_deviations(port_errors(facts, limit)):
        return replace(verdict, cause=counted_cause(facts, limit))
    if unreported := [port.name for port in ports if port.port.counters is None]:
        advice = "look at counters and hw_counters in /sys/class/infiniband/*/ports"
        advice += "; virtual functions have none: ask their host"
        return unknown(f"{', '.join(unreported)} did not report any error counter", advice=advice)
    if undated := totals_without_start(facts, limit):
        advice = "take a second reading after a known time, or check the live node"
        return unknown(f"{', '.join(undated)}: a total without a start time", advice=advice)
    counts = [port.port.counters.read for port in ports if port.port.counters]
    totals = {f"{p.name} {counter.name}": counter.value for p in ports for counter in p.nonzero}
    limited = sum(name.rpartition(" ")[2] in RULES for name in totals)
    more = [f"{limited} too few to matter"] * bool(limited)
    more += [f"{len(totals) - limited} that no limit names"] * (len(totals) > limited)
    note = f", but for {' and '.join(more)}" if more else ""
    summary = f"{sum(counts)} error counters of {count(len(ports), 'port')} at rest{note}"
    return ok(summary, totals=totals)


def test_ib_errors(node: Node, conclude: Conclude) -> None:
    """No RDMA port loses bits, flaps or resends more than a sound link does."""
    conclude(judge_errors(node.facts, node.limit))
