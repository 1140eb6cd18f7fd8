"""What an RDMA port's error counters prove: a total proves little, a rate or a move much.

Counters run since the driver was loaded, at most since boot, so a rate over the time since boot is
too low rather than too high. A total of unknown age is held against the other ports of the node.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING, Final

from preflight.facts.limits import limit
from preflight.facts.odd_gpus import Oddity
from preflight.facts.rdma import ENOUGH_ALIKE, ports_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preflight.facts.model import Facts
    from preflight.facts.rdma import Port

_HOUR_S: Final = 3600.0
_DAY_S: Final = 86400.0
_RESEAT: Final = "reseat or replace the cable of {0} and clean its ends; drain, recheck"
_CONGESTION: Final = "look at flow control (PFC, ECN) and at the load on the switch port of {0}"
_FLAPPING: Final = "look at the cable and the switch port of {0}, and for link events in dmesg"


@dataclass(frozen=True, slots=True)
class Rule:
    """When a counter is too high: `limit` names a number of limits.toml, per `per_s` seconds."""

    limit: str
    per_s: float
    unit: str
    advice: str
    grave: bool = True


RULES: Final = {
    "symbol_error": Rule("symbol_errors_per_hour", _HOUR_S, "h", _RESEAT),
    "link_error_recovery": Rule("link_recoveries_per_hour", _HOUR_S, "h", _RESEAT),
    "port_rcv_errors": Rule("receive_errors_per_hour", _HOUR_S, "h", _RESEAT, grave=False),
    "link_downed": Rule("link_flaps_per_day", _DAY_S, "d", _FLAPPING),
    "carrier_downs": Rule("link_flaps_per_day", _DAY_S, "d", _FLAPPING),
    "local_ack_timeout_err": Rule("ack_timeouts_per_s", 1, "s", _CONGESTION, grave=False),
    "port_xmit_discards": Rule("port_discards_per_s", 1, "s", _CONGESTION, grave=False),
    "roce_slow_restart": Rule("slow_restarts_per_s", 1, "s", _CONGESTION, grave=False),
}
"""Counters with a rate that is known to be too high."""

BREAKS: Final = frozenset(
    {
        *("link_downed", "carrier_downs", "link_error_recovery", "local_link_integrity_errors"),
        *("excessive_buffer_overrun_errors", "rnr_nak_retry_err", "symbol_error"),
    }
)
"""Counters that stand still on a healthy link: one move between two looks is a fault now.

Source: NVSentinel's nic-health-monitor, which calls any increase of these fatal.
"""


def port_errors(facts: Facts) -> Iterator[Oddity]:
    """Ports with a counter that moved, or that rose faster than its limit."""
    for port in ports_of(facts):
        yield from errors_of(port, facts)


def errors_of(port: Port, facts: Facts) -> Iterator[Oddity]:
    """The same of one port; what a port that is down has lost, ib.port tells."""
    if port.state and not port.active:
        return
    up_s = facts.time_s - facts.boot_s
    yield from _moving(port)
    if up_s > 0:
        yield from _too_fast(port, up_s)
    else:
        yield from _beyond_peers(port, ports_of(facts))


def undated(facts: Facts) -> tuple[str, ...]:
    """Counters that could be too high, or not: nothing says for how long they have counted."""
    if facts.time_s > facts.boot_s:
        return ()
    return tuple(
        f"{port.name} {one.name} {one.value}"
        for port in ports_of(facts)
        for one in (port.port.counters.nonzero if port.port.counters else ())
        if one.name in RULES and one.value >= max(1.0, limit(RULES[one.name].limit))
    )


def _moving(port: Port) -> Iterator[Oddity]:
    counters = port.port.counters
    for one in counters.nonzero if counters else ():
        if counters and one.moved and one.name in BREAKS:
            seen = f"{port.name}: {one.name} rose by {one.moved} in {counters.apart_s:g} s"
            advice = RULES[one.name].advice if one.name in RULES else _RESEAT
            yield Oddity(f"{seen}, 0 on a sound link (now {one.value})", advice.format(port.name))


def _too_fast(port: Port, up_s: float) -> Iterator[Oddity]:
    for one in port.port.counters.nonzero if port.port.counters else ():
        rule = RULES.get(one.name)
        if rule is None or (one.moved and one.name in BREAKS):
            continue
        most = limit(rule.limit)
        # Loading the driver and training the link cost a few events, however short ago that was.
        rate = one.value / max(up_s, _DAY_S if rule.per_s == _DAY_S else _HOUR_S) * rule.per_s
        if rate >= most:
            since = f"{one.value} in {up_s / _DAY_S:.1f} d since boot"
            seen = f"{port.name}: {rate:.3g} {one.name}/{rule.unit} ({since})"
            sentence = f"{seen}, at most {most:g}/{rule.unit}"
            yield Oddity(sentence, rule.advice.format(port.name), grave=rule.grave)


def _beyond_peers(port: Port, ports: Sequence[Port]) -> Iterator[Oddity]:
    """Of totals without a date only this is sure: other ports have been through the same time."""
    others = [p for p in ports if p.name != port.name and p.kind == port.kind and p.port.counters]
    if len(others) < ENOUGH_ALIKE:
        return
    for one in port.port.counters.nonzero if port.port.counters else ():
        rule = RULES.get(one.name)
        usual = median_low(p.port.counters.value(one.name) for p in others if p.port.counters)
        if rule is not None and one.value >= limit(rule.limit) and one.value > 10 * usual:
            seen = f"{port.name}: {one.name} {one.value}, {usual} on its {len(others)} peers"
            yield Oddity(seen, rule.advice.format(port.name), grave=rule.grave)
