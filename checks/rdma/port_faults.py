"""Which RDMA ports are down that should be up: many machines have ports that nobody uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from preflight.facts.odd_gpus import Oddity
from preflight.facts.rdma import ENOUGH_ALIKE, active_ports, is_rail, netdev_of, ports_of
from preflight.facts.searching_ports import searching

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preflight.facts.model import Facts
    from preflight.facts.network_model import Interface
    from preflight.facts.node import Group
    from preflight.facts.rdma import Port
    from preflight.fleet.model import Promise

RESEAT: Final = "reseat or replace its cable and look at the switch port; drain, recheck"
_CONFIGURE: Final = (
    "look at the subnet manager (sminfo) and at the switch port's partition; if the other ports "
    "are fine, reset the port (ibportstate) or reboot"
)
_ENABLE: Final = "enable it (ip link set DEV up; mlxconfig), or correct hcas in the inventory"
_EMPTY: Final = "compare with a listing of a good day, given beside it; mend or ignore the port"
_UNSTEADY: Final = ("LINKERRORRECOVERY", "PORTCONFIGURATIONTRAINING", "POLLING", "SLEEP")
_MOSTLY: Final = 4
"""One in so many ports of a kind may be down for the rest to speak against it."""


def down_ports(promised: Promise, facts: Facts, group: Group) -> list[Oddity]:
    """Ports that are not up, as far as anything says that they should be."""
    ports = ports_of(facts)
    down = [port for port in ports if port.state and not port.active]
    return [odd for port in down if (odd := _judged(port, promised, ports, facts, group))]


def unsteady_ports(facts: Facts) -> Iterator[Oddity]:
    """Active ports whose link was not up when looked at: it trains anew, and data waits."""
    for port in ports_of(facts):
        if port.active and port.physical in _UNSTEADY:
            yield Oddity(f"{port.name} is {port.words()}, expected LinkUp", RESEAT, grave=False)


def idle_interfaces(facts: Facts) -> Iterator[Oddity]:
    """Active ports whose own interface is down, while those of their peers are up."""
    for port, device in fallen(facts):
        told = _interfaces(facts)
        up = sum(one.operstate in ("up", "unknown") for _, one in told)
        yield Oddity(
            f"{port.name} is ACTIVE, but its interface {device.name} is down; "
            f"{up} of {len(told)} interfaces of active ports are up",
            f"ip link set {device.name} up; look for flaps in dmesg, reset the port, recheck",
        )


def fallen(facts: Facts) -> list[tuple[Port, Interface]]:
    """Active ports and their interfaces that are down; none where most of them are."""
    told = _interfaces(facts)
    down = [(port, device) for port, device in told if device.operstate == "down"]
    up = sum(device.operstate in ("up", "unknown") for _, device in told)
    return [] if up < ENOUGH_ALIKE or up <= len(down) else down


def _interfaces(facts: Facts) -> list[tuple[Port, Interface]]:
    paired = [(port, netdev_of(port, facts)) for port in ports_of(facts) if port.active]
    return [(port, device) for port, device in paired if device and device.operstate]


def _judged(
    port: Port, promised: Promise, ports: Sequence[Port], facts: Facts, group: Group
) -> Oddity | None:
    """The first that knows decides: the promise by name, the group, the promise by number."""
    seen = f"{port.name} is {port.words()}"
    advice = _advice(port)
    if promised.hcas is not None and port.nic.name in promised.hcas:
        rail = promised.hcas.index(port.nic.name)
        return Oddity(f"{seen}, promised as rail {rail}", advice)
    vote = group.majority(active_ports)
    if vote is not None and vote.decides and set(vote.value) & {p.name for p in ports}:
        if port.name not in vote.value:
            return None
        whom = f"ACTIVE on {vote.votes} of {vote.of} nodes of group {group.name}"
        return Oddity(f"{seen}, {whom}", advice)
    return (
        None if promised.hcas is not None else _without_names(port, promised, ports, facts, group)
    )


def _without_names(
    port: Port, promised: Promise, ports: Sequence[Port], facts: Facts, group: Group
) -> Oddity | None:
    seen = f"{port.name} is {port.words()}"
    if port.of_fabric:
        return Oddity(f"{seen}: no other end; its link is lost, or it has no cable", _EMPTY, False)  # noqa: FBT003
    if promised.nics is not None:
        return _by_number(port, promised.nics, promised, ports)
    if _stuck(port):
        return Oddity(f"{seen}: no subnet manager has configured it", _CONFIGURE)
    odd = _unlike_peers(port, ports)
    if odd is None and is_rail(port, promised):
        odd = searching(port, ports, facts, group)
    return odd


def _by_number(port: Port, wanted: int, promised: Promise, ports: Sequence[Port]) -> Oddity | None:
    rails = [p for p in ports if is_rail(p, promised)]
    up = sum(p.active for p in rails)
    if up >= wanted or port not in rails or _unused_first(port, rails, wanted):
        return None
    seen = f"{port.name} is {port.words()}"
    return Oddity(f"{seen}: {up} of {wanted} promised ports are ACTIVE", _advice(port))


def _unlike_peers(port: Port, ports: Sequence[Port]) -> Oddity | None:
    seen = f"{port.name} is {port.words()}"
    alike = [p for p in ports if p.kind == port.kind and p.physical != "DISABLED"]
    active = sum(p.active for p in alike)
    if port.physical == "DISABLED" or active < ENOUGH_ALIKE or _few(active, len(alike)):
        return None
    whom = f"{active} of {len(alike)} ports of its kind are ACTIVE"
    # Of two Ethernet ports of a card one often has no cable: on purpose.
    return Oddity(f"{seen}; {whom}", _advice(port), grave=port.layer == "infiniband")


def _few(active: int, alike: int) -> bool:
    return _MOSTLY * (alike - active) > alike


def _unused_first(port: Port, rails: Sequence[Port], promised: int) -> bool:
    """Whether enough other ports are down that were meant to be up rather than this one."""
    if port.physical != "DISABLED":
        return False
    return sum(p.physical != "DISABLED" for p in rails) >= promised


def _stuck(port: Port) -> bool:
    return port.layer == "infiniband" and port.physical == "LINKUP" and not port.active


def _advice(port: Port) -> str:
    if _stuck(port):
        return _CONFIGURE
    return _ENABLE if port.physical == "DISABLED" else RESEAT
