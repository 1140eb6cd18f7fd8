"""Which Ethernet links carry a job's sockets, and what each should be: promise, peers, other end.

Each reader here that takes `Facts` can be voted on by a group; None abstains.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from preflight.facts.rdma import ports_of
from preflight.facts.selected import gloo_interfaces, nccl_interfaces, nccl_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from preflight.facts.model import Facts
    from preflight.facts.network_model import Interface

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
