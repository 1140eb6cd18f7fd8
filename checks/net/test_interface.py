"""Whether what a job's variables select on a node leads to the other nodes at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from preflight.facts.addresses import is_loopback, parsed
from preflight.facts.odd_gpus import Oddity
from preflight.facts.selected import (
    first_choice,
    gloo_interfaces,
    nccl_interfaces,
    nccl_ports,
    parse_filter,
    subnet,
    to_others,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from preflight.facts.model import Facts
    from preflight.facts.network_model import Interface
    from preflight.facts.node import Group
    from preflight.facts.rdma import Port

_NAMES_SHOWN: Final = 6


def socket_choice(
    facts: Facts, environ: Mapping[str, str], group: Group, *, sure: bool
) -> Iterator[Oddity]:
    """NCCL's sockets. `sure`: the environment is the job's, so that what it leaves out counts."""
    ifname = environ.get("NCCL_SOCKET_IFNAME", "")
    family = environ.get("NCCL_SOCKET_FAMILY", "")
    chosen = nccl_interfaces(facts, ifname, family)
    given = f"NCCL_SOCKET_IFNAME={ifname}" if len(ifname) > 1 else "NCCL's own choice"
    if not chosen:
        has = _names(facts.network.interfaces if facts.network else None)
        yield Oddity(
            f"{given} selects no interface with an address here (there are {has})",
            "name one that every node has (a prefix such as eth), or none of those to leave out: ^",
        )
        return
    first = chosen[0]
    advice = f"set NCCL_SOCKET_IFNAME to what joins the nodes: {_better(facts, first)}"
    if odd := _dead_end(first, facts, group):
        yield Oddity(f"{given} selects {odd}", advice, grave=sure or first.loopback)
        return
    if others := _not_to_others(first, facts, group, environ):
        yield Oddity(f"{given} selects {others}", advice, grave=False)
        return
    vote = group.majority(first_choice(ifname, family))
    mine = (first.name, subnet(first))
    if vote is None or not vote.decides or mine[0] == vote.value[0] or mine[1] == vote.value[1]:
        return
    usual = f"{vote.value[0]} ({vote.value[1]}) on {vote.votes} of {vote.of} nodes"
    yield Oddity(f"{given} selects {first.name} ({mine[1]}) here, {usual}", advice, grave=False)


def gloo_choice(facts: Facts, environ: Mapping[str, str], group: Group) -> Iterator[Oddity]:
    """Gloo's interfaces, or where it binds by the host's own name if none is set."""
    ifname = environ.get("GLOO_SOCKET_IFNAME", "")
    if ifname:
        found, missing = gloo_interfaces(facts, ifname)
        if missing:
            has = _names(facts.network.interfaces if facts.network else None)
            sentence = f"GLOO_SOCKET_IFNAME names {missing[0]}, and there is none here (but {has})"
            yield Oddity(f"{sentence}; it takes whole names", "name an interface of every node")
        for one in found:
            if odd := _dead_end(one, facts, group):
                sentence = f"GLOO_SOCKET_IFNAME={ifname} selects {odd}"
                yield Oddity(sentence, "name the interface that joins the nodes")
        return
    own = facts.network.own_name if facts.network else None
    if own is None or own.error.startswith("no answer"):
        return
    if own.addresses and not all(is_loopback(each) for each in own.addresses):
        return
    where = own.addresses[0] if own.addresses else f"nowhere ({own.error})"
    yield Oddity(
        f"its own name {own.name} leads to {where}: gloo without GLOO_SOCKET_IFNAME "
        "listens there, where no other node comes",
        f"set GLOO_SOCKET_IFNAME={_better(facts, None)}, or correct /etc/hosts",
        grave=False,
    )


def hca_choice(facts: Facts, environ: Mapping[str, str], *, condemned: bool) -> Iterator[Oddity]:
    """NCCL_IB_HCA. `condemned`: ib.port has said which port is down, so that is not told again."""
    text = environ.get("NCCL_IB_HCA", "")
    if not text or facts.nics is None or environ.get("NCCL_IB_DISABLE", "0").strip() == "1":
        return
    told = f"NCCL_IB_HCA={text[:80]}"
    selected = nccl_ports(facts, text)
    active = [port for port in selected if port.active]
    has = _names(facts.nics)
    if not active and not condemned:
        sentence = f"{told} selects no active RDMA port here (there are {has})"
        yield Oddity(f"{sentence}: NCCL falls back to TCP sockets", "name devices that are there")
        return
    wanted = parse_filter(text)
    names = [nic.name for nic in facts.nics]
    for each in wanted.names:
        hit = [name for name in names if wanted.matches(each, name)]
        if not hit and not wanted.exclude:
            sentence = f"{told}: {each[0]} is no RDMA device here (there are {has})"
            yield Oddity(sentence, "correct the name; ^ and = count only at the very beginning")
        elif each[0] in hit and len(hit) > 1:
            more = ", ".join(name for name in hit if name != each[0])
            verb = "leaves out" if wanted.exclude else "selects"
            sentence = f"{told}: {each[0]} is a prefix, and {verb} {more} too"
            sign = "^=" if wanted.exclude else "="
            yield Oddity(sentence, f"begin the list with {sign} for whole names", grave=False)
    if not condemned:
        yield from _named_but_down(told, selected, [each[0] for each in wanted.names])


def _named_but_down(told: str, selected: tuple[Port, ...], named: list[str]) -> Iterator[Oddity]:
    for port in selected:
        if port.nic.name in named and port.state and not port.active:
            sentence = f"{told} names {port.nic.name}, but {port.name} is {port.words()}"
            advice = "bring the port up, or leave the device out on every node"
            yield Oddity(f"{sentence}: NCCL goes on without it, and its rail is lost", advice)


def _dead_end(interface: Interface, facts: Facts, group: Group) -> str:
    """Why an interface leads to no other node; "" where nothing speaks against it."""
    if interface.loopback:
        return f"{interface.name}, the loopback"
    if not interface.addresses:
        return f"{interface.name}, which has no address"
    if interface.operstate == "down" or not interface.up:
        return f"{interface.name}, which is down"
    if interface.physical:
        return ""
    address = interface.addresses[0]
    for name, other in group.facts.items():
        if other.host == facts.host:
            continue
        for one in (other.network.interfaces if other.network else None) or ():
            if one.name == interface.name and address in one.addresses:
                its = address.partition("/")[0]
                return f"{interface.name}, whose address {its} is {name}'s too"
    return ""


def _not_to_others(first: Interface, facts: Facts, group: Group, environ: Mapping[str, str]) -> str:
    """Why NCCL's choice is another interface than the one to the other nodes; "" where it is fine.

    Another one is fine where NCCL's data go over RDMA (the sockets then only carry its bootstrap)
    and other nodes have addresses in its subnet.
    """
    used = to_others(facts)
    if used is None or used.name == first.name or not facts.gpus:
        return ""
    rdma = environ.get("NCCL_IB_DISABLE", "0").strip() != "1" and any(
        port.active for port in nccl_ports(facts, environ.get("NCCL_IB_HCA", ""))
    )
    if rdma and _shared(first, facts, group):
        return ""
    return f"{first.name} ({subnet(first)}); {used.name} ({subnet(used)}) leads to the other nodes"


def _shared(interface: Interface, facts: Facts, group: Group) -> bool:
    """Whether another node has an address of its own in the interface's subnet."""
    mine = parsed(interface.addresses[0])
    if mine is None or mine.ip.is_link_local:  # such as the USB link to a node's own BMC
        return False
    theirs = [
        found.ip
        for other in group.facts.values()
        if other.host != facts.host
        for one in (other.network.interfaces if other.network else None) or ()
        for each in one.addresses
        if (found := parsed(each)) is not None and found.network == mine.network
    ]
    return bool(theirs) and mine.ip not in theirs


def _better(facts: Facts, instead_of: Interface | None) -> str:
    if (used := to_others(facts)) is not None and used is not instead_of:
        return used.name
    interfaces = (facts.network.interfaces if facts.network else None) or ()
    usable = [
        one.name
        for one in interfaces
        if one is not instead_of and one.up and not one.loopback and not one.master
        if any(":" not in each for each in one.addresses) and not one.name.startswith("docker")
    ]
    return usable[0] if usable else "an interface with an address"


def _names(parts: object) -> str:
    names = [str(getattr(part, "name", "")) for part in parts] if isinstance(parts, tuple) else []
    more = f", {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return (", ".join(names[:_NAMES_SHOWN]) + more) or "none"
