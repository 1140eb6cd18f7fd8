"""What the job's variables select is there, and every node finds the master by name."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from preflight.check import Check
from preflight.checks.env.test_nccl_conf import settings as conf_settings
from preflight.checks.gpu.deviations import Oddity, conclude_oddities
from preflight.checks.net.selected import (
    first_choice,
    gloo_interfaces,
    nccl_interfaces,
    nccl_ports,
    parse_filter,
    subnet,
    to_others,
)
from preflight.checks.rdma.port_faults import down_ports
from preflight.facts import Facts, Group, Node
from preflight.facts.node import addresses_of, family, is_loopback, parsed
from preflight.facts.words import count
from preflight.fleet.model import Promise
from preflight.verdict import Conclude, Verdict, not_run, ok, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from preflight.checks.rdma.ports import Port
    from preflight.facts.network import Interface, Resolved

CHECKS = (
    Check("net.interface", stage="facts", tier="prolog", requires=("reach.answer",)),
    Check("net.master_name", stage="facts", tier="prolog", requires=("reach.answer",)),
)


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
        has = _names(facts.interfaces)
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
        if ifname[0] in "^=":
            sentence = (
                f"GLOO_SOCKET_IFNAME={ifname}: gloo takes exact names, and knows no ^ and no ="
            )
            yield Oddity(sentence, "name an interface of every node")
        elif missing:
            has = _names(facts.interfaces)
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
            sentence = f"{told} names {port.nic.name}, but {port.seen}"
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
        for one in other.interfaces:
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
        for one in other.interfaces
        for each in one.addresses
        if (found := parsed(each)) is not None and found.network == mine.network
    ]
    return bool(theirs) and mine.ip not in theirs


def _better(facts: Facts, instead_of: Interface | None) -> str:
    if (used := to_others(facts)) is not None and used is not instead_of:
        return used.name
    usable = [
        one.name
        for one in facts.interfaces
        if one is not instead_of and one.up and not one.loopback and not one.master
        if any(":" not in each for each in one.addresses) and not one.name.startswith("docker")
    ]
    return usable[0] if usable else "an interface with an address"


def _names(parts: object) -> str:
    names = [str(getattr(part, "name", "")) for part in parts] if isinstance(parts, tuple) else []
    more = f", {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return (", ".join(names[:_NAMES_SHOWN]) + more) or "none"


def judge_interface(
    promised: Promise,
    facts: Facts,
    environ: Mapping[str, str] | None,
    group: Group,
    *,
    alone: bool,
) -> Verdict:
    """Resolve NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME and NCCL_IB_HCA as their readers do.

    NCCL also reads them from its files (nccl.conf), after the environment.
    """
    network, job = facts.network, environ or {}
    env = {**conf_settings(facts.nccl_conf or ()), **job}
    if network is None or network.interfaces is None:
        if environ is None and not any(said.startswith("network") for said in facts.problems):
            return not_run("no interfaces told, no job environment known")
        return unknown("the interfaces could not be read", advice="look at ip address there")
    if alone and not job:
        return not_run("one node alone, and no job environment known")
    condemned = any(one.grave for one in down_ports(promised, facts, group))
    odd = list(hca_choice(facts, env, condemned=condemned))
    if not alone:  # the job has other nodes to reach
        odd += socket_choice(facts, env, group, sure=environ is not None)
        odd += gloo_choice(facts, env, group)
    if (found := conclude_oddities(odd)) is not None:
        return found
    ifname = env.get("NCCL_SOCKET_IFNAME", "")
    sockets = nccl_interfaces(facts, ifname, env.get("NCCL_SOCKET_FAMILY", ""))
    first = f"{sockets[0].name} {sockets[0].addresses[0]}" if sockets else "no interface"
    given = f" (NCCL_SOCKET_IFNAME={ifname})" if ifname else ""
    said = f"NCCL's sockets: {first}{given}"
    active = [p.name for p in nccl_ports(facts, env.get("NCCL_IB_HCA", "")) if p.active]
    if active:
        said += f"; RDMA: {count(len(active), 'port')}"
    return ok(said, sockets=[one.name for one in sockets], ports=active)


def test_net_interface(node: Node, conclude: Conclude) -> None:
    """What the job's variables select on a node is there, is up, and leads to the other nodes."""
    alone = node.net.nodes == 1
    conclude(judge_interface(node.promised, node.facts, node.environ, node.group, alone=alone))


SLOW_S: Final = 1.0
_HOSTS: Final = "correct /etc/hosts or DNS on this node (getent ahosts {0})"


@cache
def answers(name: str) -> Callable[[Facts], tuple[str, ...] | None]:
    """The reader of where a name leads, for a vote of a group: one for all nodes."""

    def read(facts: Facts) -> tuple[str, ...] | None:
        found = found_of(facts, name)
        return None if found is None else tuple(sorted(found.addresses))

    return read


def found_of(facts: Facts, name: str) -> Resolved | None:
    """What a node said of a name."""
    names = facts.network.names if facts.network else ()
    return next((one for one in names if one.name == name), None)


def name_oddity(
    one: Resolved, facts: Facts, master: Facts | None, group: Group, *, promised: bool
) -> Oddity | None:
    """What is wrong with where a name leads here. `promised`: the job itself uses the name."""
    if not one.addresses:
        return _unknown_name(one, master, group, promised=promised)
    at_master = master is not None and same_machine(facts, master)
    advice = _HOSTS.format(one.name)
    if all(is_loopback(each) for each in one.addresses):
        if at_master:
            return None
        sentence = f"the master's name {one.name} leads to {_list(one)} here, which is this node"
        return Oddity(f"{sentence} itself; its ranks would wait for themselves", advice)
    vote = group.majority(answers(one.name))
    usual = vote.value if vote is not None and vote.decides else ()
    own = addresses_of(master) if master is not None else set()
    if usual and set(usual).isdisjoint(one.addresses) and not own & set(one.addresses):
        whom = f"{', '.join(usual[:2])} on {vote.votes} of {vote.of} nodes" if vote else ""
        return Oddity(f"the master's name {one.name} leads to {_list(one)} here, {whom}", advice)
    if not usual and own and own.isdisjoint(one.addresses):
        sentence = f"the master's name {one.name} leads to {_list(one)}, which none of its"
        return Oddity(f"{sentence} interfaces has", advice, grave=False)
    return _wrong_family(one, facts) or _slow(one)


def same_machine(a: Facts, b: Facts) -> bool:
    """Whether two answers come from one machine."""
    return a.host == b.host and abs(a.boot_s - b.boot_s) < SLOW_S


def _unknown_name(
    one: Resolved, master: Facts | None, group: Group, *, promised: bool
) -> Oddity | None:
    """A name that no node knows is one of our inventory, unless the job says otherwise."""
    there = found_of(master, one.name) if master is not None else None
    vote = group.majority(answers(one.name))
    usual = vote is not None and vote.decides and bool(vote.value)
    if not (promised or usual or (there is not None and there.addresses)):
        return None
    return Oddity(
        f"the master's name {one.name} leads nowhere here: {one.error}", _HOSTS.format(one.name)
    )


def _wrong_family(one: Resolved, facts: Facts) -> Oddity | None:
    """A name of IPv6 addresses alone is of no use to a node that has none."""
    versions = {family(each) for each in one.addresses}
    mine = {family(each) for each in addresses_of(facts) if not each.startswith("fe80")}
    if not mine or versions & mine:
        return None
    here, there = (f"IPv{next(iter(sorted(kinds)))}" for kinds in (mine, versions))
    sentence = f"the master's name {one.name} leads to {_list(one)}: only {there}, this node has"
    return Oddity(f"{sentence} only {here}", "give both ends an address of one family")


def _slow(one: Resolved) -> Oddity | None:
    if one.seconds < SLOW_S:
        return None
    sentence = (
        f"looking up the master's name {one.name} took {one.seconds:.1f} s, under 1 s is usual"
    )
    return Oddity(sentence, "look at the name servers in /etc/resolv.conf", grave=False)


def _list(one: Resolved) -> str:
    return ", ".join(one.addresses[:2])


def judge_master_name(
    facts: Facts, master: Facts | None, group: Group, job_says: str = "", *, alone: bool
) -> Verdict:
    """Hold where the name leads against the master's own addresses and the other nodes.

    `job_says`: MASTER_ADDR of the job, where that is known. `alone`: the fleet is this one node.
    """
    network = facts.network
    if network is None:
        if not any(said.startswith("network") for said in facts.problems):
            return not_run("no name was looked up here")
        return unknown("where names lead could not be told", advice="look at getent ahosts there")
    if not network.names:
        return _not_asked(alone=alone)
    looked = (
        name_oddity(one, facts, master, group, promised=one.name == job_says)
        for one in network.names
    )
    if (bad := conclude_oddities(odd for odd in looked if odd)) is not None:
        return bad
    found = {one.name: list(one.addresses) for one in network.names if one.addresses}
    if not found:
        names = ", ".join(one.name for one in network.names)
        return not_run(f"no node knows the name {names}; the job needs another for its master")
    name, its = next(iter(found.items()))
    return ok(f"the master {name} is {', '.join(its[:2])}", found=found)


def _not_asked(*, alone: bool) -> Verdict:
    if alone:
        return not_run("one node alone: there is no master to find")
    said = "the master's name was not looked up here: these facts were taken of a node alone"
    return unknown(said, advice="ask the nodes again, all in one run")


def test_net_master_name(node: Node, conclude: Conclude) -> None:
    """Every node finds the job's master by its name."""
    master = node.group.facts.get(node.net.master)
    said = (node.environ or {}).get("MASTER_ADDR", "")
    conclude(judge_master_name(node.facts, master, node.group, said, alone=node.net.nodes == 1))
