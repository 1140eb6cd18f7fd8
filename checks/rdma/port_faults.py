"""Which RDMA ports are down that should be up, and what their counters prove.

An unused port is switched off, or set to Ethernet; an InfiniBand port that is on and has no link
is seldom unused. The one exception is a card's second port, which often has no cable.

Counters run since the driver was loaded, at most since boot, so a rate over the time since boot is
too low rather than too high. A total of unknown age is compared with the node's other ports.

A port that is down proves most, then the counters with their rates; the log proves least.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from preflight.checks.deviations import Deviation, on_most
from preflight.checks.net.test_ethernet import flaps_per_day
from preflight.checks.rdma.ports import (
    ENOUGH_ALIKE,
    Port,
    active_ports,
    is_rail,
    netdev_of,
    ports_of,
)
from preflight.core.statistics import nearest_rank
from preflight.core.thresholds import Thresholds
from preflight.facts.boards import among, gpu_models
from preflight.facts.model import Facts
from preflight.facts.node import Group, decided
from preflight.facts.node_network import Interface
from preflight.fleet.model import Expected

_CABLE: Final = (
    "look at its cable and at the switch port; if it is not used, name those that are (hcas in the "
    "inventory)"
)


def unconnected_port(port: Port, facts: Facts, group: Group) -> Deviation | None:
    """What is wrong with a port that is down, where neither inventory nor peers decide."""
    if not _has_no_link(port):
        return None
    ports = ports_of(facts)
    comparable = [peer for peer in ports if peer.active or _has_no_link(peer)]
    infiniband = [peer for peer in comparable if peer.layer == port.layer]
    up = sum(peer.active for peer in infiniband)
    if up >= ENOUGH_ALIKE and _has_active_sibling(port, ports):
        return None
    if up:
        peers = f"{up} of {len(infiniband)} InfiniBand ports are ACTIVE"
        return Deviation(f"{port.seen}; {peers}", _CABLE, grave=False)
    # So many ports without a cable are not spare; one card beside Ethernet may well be.
    several = len(infiniband) >= ENOUGH_ALIKE
    may_idle = len(comparable) > len(infiniband) or idle_everywhere(facts, group)
    complete = not any(problem.startswith("nics") for problem in facts.problems)
    # A card or two of a live node may never have had a cable; those of a pasted text are in doubt.
    grave = complete and (several or (not facts.time_s and not may_idle))
    return Deviation(f"{port.seen}, and no InfiniBand port is ACTIVE", _CABLE, grave=grave)


def idle_everywhere(facts: Facts, group: Group) -> bool:
    """Whether most nodes of a group, and enough of them, have no port that is up now."""
    if not facts.time_s:  # saved texts come mostly from nodes that fail
        return False
    vote = decided(group.majority(among(active_ports, gpu_models(facts))))
    return vote is not None and vote.votes >= ENOUGH_ALIKE and not vote.value


def _has_no_link(port: Port) -> bool:
    down = bool(port.state) and not port.active
    return down and port.layer == "infiniband" and port.physical != "DISABLED"


def _has_active_sibling(port: Port, ports: Sequence[Port]) -> bool:
    """Whether another port of the same card is up."""
    return any(peer.active and _card(peer) == _card(port) for peer in ports)


def _card(port: Port) -> str:
    """The slot of its card: the ports of newer cards are PCI functions of one slot."""
    path = port.nic.pci_path
    return path[-1].rpartition(".")[0] if path else port.nic.name


_RESEAT_CABLE: Final = "reseat or replace its cable and look at the switch port; drain, recheck"
_CONFIGURE: Final = (
    "look at the subnet manager (sminfo) and at the switch port's partition; if the other ports "
    "are fine, reset the port (ibportstate) or reboot"
)
_ENABLE: Final = "enable it (ip link set DEV up; mlxconfig), or correct hcas in the inventory"
_EMPTY: Final = "compare with a listing from a good day, given beside it; repair or ignore the port"
_UNSTEADY: Final = ("LINKERRORRECOVERY", "PORTCONFIGURATIONTRAINING", "POLLING", "SLEEP")
_MOSTLY: Final = 4
"""At most one in so many ports of a kind may be down, for the others to prove it faulty."""


def down_ports(expected: Expected, facts: Facts, group: Group) -> list[Deviation]:
    """Ports that are not up although inventory, group or peers expect them to be."""
    down = [port for port in ports_of(facts) if port.state and not port.active]
    return [fault for port in down if (fault := _down_port(port, expected, facts, group))]


def unsteady_ports(facts: Facts) -> Iterator[Deviation]:
    """Active ports whose link was not up when read: it retrains, and data waits."""
    for port in ports_of(facts):
        if port.active and port.physical in _UNSTEADY:
            yield Deviation(f"{port.seen}, expected LinkUp", _RESEAT_CABLE, grave=False)


def idle_interfaces(facts: Facts) -> Iterator[Deviation]:
    """Active ports whose own interface is down, while those of their peers are up."""
    pairs = _port_interfaces(facts)
    for port, device in down_interfaces(facts):
        up = sum(interface.operstate in ("up", "unknown") for _, interface in pairs)
        yield Deviation(
            f"{port.name} is ACTIVE, but its interface {device.name} is down; "
            f"{up} of {len(pairs)} interfaces of active ports are up",
            f"ip link set {device.name} up; look for flaps in dmesg, reset the port, recheck",
        )


def down_interfaces(facts: Facts) -> list[tuple[Port, Interface]]:
    """Active ports and their interfaces that are down; none where most of them are."""
    pairs = _port_interfaces(facts)
    down = [(port, device) for port, device in pairs if device.operstate == "down"]
    up = sum(device.operstate in ("up", "unknown") for _, device in pairs)
    return [] if up < ENOUGH_ALIKE or up <= len(down) else down


def _port_interfaces(facts: Facts) -> list[tuple[Port, Interface]]:
    pairs = [(port, netdev_of(port, facts)) for port in ports_of(facts) if port.active]
    return [(port, device) for port, device in pairs if device and device.operstate]


def _down_port(port: Port, expected: Expected, facts: Facts, group: Group) -> Deviation | None:
    """The first source that knows decides: names in the inventory, the group, then numbers."""
    advice = _advice(port)
    if expected.hcas is not None and port.nic.name in expected.hcas:
        rail = expected.hcas.index(port.nic.name)
        return Deviation(f"{port.seen}, expected as rail {rail}", advice)
    vote = decided(group.majority(among(active_ports, gpu_models(facts))))
    if vote is not None and set(vote.value) & {p.name for p in ports_of(facts)}:
        if port.name not in vote.value:
            return None
        return Deviation(f"{port.seen}, ACTIVE {on_most(vote, group)}", advice)
    if expected.hcas is not None:
        return None
    return _without_names(port, expected, facts, group)


def _without_names(port: Port, expected: Expected, facts: Facts, group: Group) -> Deviation | None:
    ports = ports_of(facts)
    if _is_spare_function(port, ports):
        return None
    if port.of_fabric:
        sentence = f"{port.seen}: no other end; its link is lost, or it has no cable"
        return Deviation(sentence, _EMPTY, grave=False)
    if expected.nics is not None:
        return _missing_by_number(port, expected.nics, expected, facts)
    if _unconfigured(port):
        return Deviation(f"{port.seen}: no subnet manager has configured it", _CONFIGURE)
    deviation = _peer_deviation(port, ports)
    if deviation is None and is_rail(port, expected):
        return unconnected_port(port, facts, group)
    return deviation


def _missing_by_number(
    port: Port, number: int, expected: Expected, facts: Facts
) -> Deviation | None:
    """Ports with an unread state may be up: no other port is missing in their place."""
    rails = [p for p in ports_of(facts) if is_rail(p, expected)]
    up, unread = sum(p.active for p in rails), sum(not p.state for p in rails)
    unread += sum(not nic.ports for nic in facts.nics or ())
    if up + unread >= number or port not in rails:
        return None
    # A port that is switched off is unused where enough others are down that should be up.
    if port.physical == "DISABLED" and sum(p.physical != "DISABLED" for p in rails) >= number:
        return None
    return Deviation(f"{port.seen}: {up} of {number} expected ports are ACTIVE", _advice(port))


def _peer_deviation(port: Port, ports: Sequence[Port]) -> Deviation | None:
    disabled = port.physical == "DISABLED"
    same_kind = [p for p in ports if p.kind == port.kind and (disabled or p.physical != "DISABLED")]
    if not disabled and port.layer != "infiniband" and not _board_known(port):
        # `rdma link` and ibstatus print no board: a port that is on and has no link is in doubt.
        others = (p for p in ports if p.layer == port.layer and not _board_known(p))
        same_kind = [p for p in others if p.physical != "DISABLED"]
    active = sum(p.active for p in same_kind)
    if active < ENOUGH_ALIKE or _MOSTLY * (len(same_kind) - active) > len(same_kind):
        return None
    # One of a card's two Ethernet ports often has no cable, and one of any two is switched off.
    fabric = port.layer == "infiniband"
    if disabled and (not fabric or _has_active_sibling(port, ports)):
        return None
    kind = "ports of its kind" if _board_known(port) else "such ports"
    peer_words = f"{active} of {len(same_kind)} {kind} are ACTIVE"
    return Deviation(f"{port.seen}; {peer_words}", _advice(port), grave=fabric and not disabled)


def _board_known(port: Port) -> bool:
    return port.nic.kind != port.nic.name


_FUNCTIONS: Final = frozenset(f"MT{device}" for device in range(4114, 4127, 2))
"""Virtual functions of mlx5: the PCI IDs in Linux, drivers/net/ethernet/mellanox/mlx5/core/main.c.

One that no virtual machine uses is DOWN, and has the link of its card.
"""


def _is_spare_function(port: Port, ports: Sequence[Port]) -> bool:
    unused = (port.state, port.physical) == ("DOWN", "LINKUP") and port.nic.hca_type in _FUNCTIONS
    return unused and any(p.active and p.nic.hca_type not in _FUNCTIONS for p in ports)


def _unconfigured(port: Port) -> bool:
    return port.layer == "infiniband" and port.physical == "LINKUP" and not port.active


def _advice(port: Port) -> str:
    if _unconfigured(port):
        return _CONFIGURE
    return _ENABLE if port.physical == "DISABLED" else _RESEAT_CABLE


_HOUR_S: Final = 3600.0
_DAY_S: Final = 86400.0
_CLEAN_CABLE: Final = "reseat or replace the cable of {0} and clean its ends; drain, recheck"
_CONGESTION: Final = "look at flow control (PFC, ECN) and at the load on the switch port of {0}"
_FLAPPING: Final = "look at the cable and the switch port of {0}, and for link events in dmesg"


class Rule(Struct, frozen=True):
    """When a counter is too high: `limit` names a number of limits.toml, per `per_s` seconds."""

    limit: str
    per_s: float
    unit: str
    advice: str
    grave: bool = True


RULES: Final = {
    "symbol_error": Rule("symbol_errors_per_hour", _HOUR_S, "h", _CLEAN_CABLE),
    "link_error_recovery": Rule("link_recoveries_per_hour", _HOUR_S, "h", _CLEAN_CABLE),
    "port_rcv_errors": Rule("receive_errors_per_hour", _HOUR_S, "h", _CLEAN_CABLE, grave=False),
    "link_downed": Rule("link_flaps_per_day", _DAY_S, "d", _FLAPPING),
    "carrier_downs": Rule("link_flaps_per_day", _DAY_S, "d", _FLAPPING),
    "local_ack_timeout_err": Rule("ack_timeouts_per_s", 1, "s", _CONGESTION, grave=False),
    "port_xmit_discards": Rule("port_discards_per_s", 1, "s", _CONGESTION, grave=False),
    "roce_slow_restart": Rule("slow_restarts_per_s", 1, "s", _CONGESTION, grave=False),
}
"""Counters for which a rate is known to be too high."""

BREAKS: Final = {
    *("link_downed", "carrier_downs", "link_error_recovery", "local_link_integrity_errors"),
    *("excessive_buffer_overrun_errors", "symbol_error"),
}
"""Counters that stand still on a healthy link: one move between two looks is a fault now.

Source: NVSentinel's nic-health-monitor, which calls any increase of these fatal. It has
rnr_nak_retry_err among them: NVIDIA's list of mlx5 counters says that those are RNR NAKs that were
received and tried again, as any program makes that receives before it has posted.
"""


_MOST_COUNTED: Final = {"symbol_error": 65535, "port_rcv_errors": 65535,
                        "link_error_recovery": 255, "link_downed": 255}  # fmt: skip
"""Where InfiniBand's counters stop counting: PortCounters have 16 and 8 bits for these."""


def port_errors(facts: Facts, limit: Thresholds) -> Iterator[Deviation]:
    """Ports with a counter that moved, or that rose faster than its limit."""
    for port in ports_of(facts):
        yield from errors_of(port, facts, limit)


def errors_of(port: Port, facts: Facts, limit: Thresholds) -> Iterator[Deviation]:
    """What is wrong with one port's counters; `ib.port` reports a port that is down."""
    if port.state and not port.active:
        return
    up_s = facts.time_s - facts.boot_s
    yield from _rising(port)
    if up_s > 0:
        yield from _high_rates(port, up_s, limit)
    else:
        yield from _above_peers(port, facts, limit)


def totals_without_start(facts: Facts, limit: Thresholds) -> tuple[str, ...]:
    """Counters that may be too high, but have no start time."""
    if facts.time_s > facts.boot_s:
        return ()
    return tuple(
        f"{port.name} {counter.name} {counter.value}"
        for port in ports_of(facts)
        for counter in port.nonzero
        if counter.name in RULES and counter.value >= max(1.0, limit(RULES[counter.name].limit))
    )


def _rising(port: Port) -> Iterator[Deviation]:
    counters = port.port.counters
    for counter in counters.nonzero if counters else ():
        if counters and counter.moved and counter.name in BREAKS:
            rise = f"{port.name}: {counter.name} rose by {counter.moved} in {counters.apart_s:g} s"
            advice = RULES[counter.name].advice if counter.name in RULES else _CLEAN_CABLE
            sentence = f"{rise}, 0 on a sound link (now {counter.value})"
            yield Deviation(sentence, advice.format(port.name))


def _high_rates(port: Port, up_s: float, limit: Thresholds) -> Iterator[Deviation]:
    for counter in port.nonzero:
        rule = RULES.get(counter.name)
        if rule is None or (counter.moved and counter.name in BREAKS):
            continue
        max_rate = limit(rule.limit)
        # Loading the driver and training the link cost a few events, however short ago that was.
        rate = counter.value / max(up_s, _DAY_S if rule.per_s == _DAY_S else _HOUR_S) * rule.per_s
        if rate >= max_rate:
            since = f"{counter.value} in {up_s / _DAY_S:.1f} d since boot"
            measure = f"{port.name}: {rate:.3g} {counter.name}/{rule.unit} ({since})"
            sentence = f"{measure}, at most {max_rate:g}/{rule.unit}"
            yield Deviation(sentence, rule.advice.format(port.name), grave=rule.grave)
        elif counter.value == _MOST_COUNTED.get(counter.name):
            sentence = f"{port.name}: {counter.name} {counter.value}, which is all that its counter"
            advice = "reset the counters (perfquery -R), recheck after an hour"
            yield Deviation(f"{sentence} can hold: how many came is not known", advice, grave=False)


def _above_peers(port: Port, facts: Facts, limit: Thresholds) -> Iterator[Deviation]:
    """Compare totals without a start time with other ports, which counted for the same time."""
    excess = [e for e in port.nonzero if e.name in RULES and e.value >= limit(RULES[e.name].limit)]
    same_kind = [p for p in ports_of(facts) if p.kind == port.kind] if excess else []
    others = [p.port.counters for p in same_kind if p.name != port.name and p.port.counters]
    for counter in excess if len(others) >= ENOUGH_ALIKE else ():
        usual = nearest_rank([counters.value(counter.name) for counters in others], 0.5)
        if counter.value > 10 * usual:
            peers = f"{usual} on its {len(others)} peers"
            sentence = f"{port.name}: {counter.name} {counter.value}, {peers}"
            rule = RULES[counter.name]
            yield Deviation(sentence, rule.advice.format(port.name), grave=rule.grave)


def reporting_check(who: str, facts: Facts, limit: Thresholds) -> str:
    """The check that reports the link of this PCI address or interface; "" where none does."""
    ports = [port for port in ports_of(facts) if _names_port(who, port)]
    down = {port.name for port, _ in down_interfaces(facts)}
    if any((port.state and not port.active) or port.name in down for port in ports):
        return "ib.port"
    if any(True for port in ports for _ in errors_of(port, facts, limit)):
        return "ib.errors"
    rates = (flaps_per_day(link, facts) for link in facts.interfaces if link.name == who)
    max_flaps = limit("link_flaps_per_day")
    return "net.ethernet" if any(rate is not None and rate >= max_flaps for rate in rates) else ""


def counted_cause(facts: Facts, limit: Thresholds) -> str:
    """The cause of the counted errors: `ib.port` where only links that went down have counted."""
    faulty = [port for port in ports_of(facts) if any(True for _ in errors_of(port, facts, limit))]
    down = {port.name for port, _ in down_interfaces(facts)}
    return "ib.port" if faulty and all(port.name in down for port in faulty) else ""


def _names_port(device: str, port: Port) -> bool:
    bus = port.nic.pci_path[-1] if port.nic.pci_path else ""
    return device in (bus, port.port.netdev, *port.nic.netdevs) and bool(device)
