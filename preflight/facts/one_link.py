"""Which check tells of a sick link: its port, its counters and the kernel's log all show the same.

The port that is down knows most, then the counters with their rates, and the log least.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from preflight.facts.down_ports import fallen
from preflight.facts.ethernet_counts import flaps_per_day
from preflight.facts.limits import limit
from preflight.facts.port_errors import errors_of
from preflight.facts.rdma import ports_of

if TYPE_CHECKING:
    from preflight.facts.model import Facts
    from preflight.facts.rdma import Port

PORT: Final = "ib.port"
COUNTERS: Final = "ib.errors"
ETHERNET: Final = "net.ethernet"


def teller(who: str, facts: Facts) -> str:
    """The check whose finding the link of this PCI address or interface is; "" where it is new."""
    ports = [port for port in ports_of(facts) if _is(who, port)]
    if any(port.state and not port.active for port in ports) or _fell(ports, facts):
        return PORT
    if any(True for port in ports for _ in errors_of(port, facts)):
        return COUNTERS
    interfaces = (facts.network.interfaces if facts.network else None) or ()
    rates = (flaps_per_day(one, facts) for one in interfaces if one.name == who)
    many = limit("link_flaps_per_day")
    return ETHERNET if any(rate is not None and rate >= many for rate in rates) else ""


def counted_cause(facts: Facts) -> str:
    """The cause of what the counters tell: `ib.port` where only links that fell have counted."""
    odd = [port for port in ports_of(facts) if any(True for _ in errors_of(port, facts))]
    fell = {port.name for port, _ in fallen(facts)}
    return PORT if odd and all(port.name in fell for port in odd) else ""


def _fell(ports: list[Port], facts: Facts) -> bool:
    fell = {port.name for port, _ in fallen(facts)}
    return any(port.name in fell for port in ports)


def _is(who: str, port: Port) -> bool:
    bus = port.nic.pci_path[-1] if port.nic.pci_path else ""
    return who in (bus, port.port.netdev, *port.nic.netdevs) and bool(who)
