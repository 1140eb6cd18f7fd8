"""The interfaces that the job's variables select exist, and every node finds the master."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final

from preflight.check import Check
from preflight.checks.deviations import Deviation, conclude_deviations
from preflight.checks.env.test_nccl_conf import conf_settings
from preflight.checks.net.selected import (
    data_over_sockets,
    first_choice,
    gloo_interfaces,
    nccl_interfaces,
    nccl_ports,
    parse_filter,
    peer_interface,
    subnet,
)
from preflight.checks.rdma.port_faults import down_ports
from preflight.core.text import count
from preflight.facts import Facts, Group, Nic, Node
from preflight.facts.node import addresses_of, decided, ip_version, is_loopback, parse_address
from preflight.facts.node_network import Interface, Resolved
from preflight.fleet.model import Expected
from preflight.verdict import Conclude, Verdict, not_run, ok, unknown

CHECKS = (
    Check("net.interface", stage="facts", tier="prolog", requires=("reach.answer",)),
    Check("net.master_name", stage="facts", tier="prolog", requires=("reach.answer",)),
)


_NAMES_SHOWN: Final = 6


def socket_choice(
    facts: Facts, environ: Mapping[str, str], group: Group, *, env_known: bool
) -> Iterator[Deviation]:
    """NCCL's sockets. `env_known`: the environment is the job's, so unset variables count too."""
    ifname = environ.get("NCCL_SOCKET_IFNAME", "")
    family = environ.get("NCCL_SOCKET_FAMILY", "")
    interfaces = nccl_interfaces(facts, ifname, family)
    setting = f"NCCL_SOCKET_IFNAME={ifname}" if len(ifname) > 1 else "NCCL's own choice"
    if not interfaces:
        has = _names(facts.interfaces)
        sentence = f"{setting} selects no interface with an address here (there are {has})"
        advice = "name one that every node has (a prefix such as eth)"
        yield Deviation(sentence, f"{advice}, or none of those to leave out: ^")
        return
    first = interfaces[0]
    advice = f"set NCCL_SOCKET_IFNAME to what joins the nodes: {_better_name(facts, first)}"
    if problem := _why_unreachable(first, facts, group):
        yield Deviation(f"{setting} selects {problem}", advice, grave=env_known or first.loopback)
        return
    if other_network := _not_to_others(first, facts, group, environ):
        yield Deviation(f"{setting} selects {other_network}", advice, grave=False)
        return
    vote = decided(group.majority(first_choice(ifname, family)))
    if vote is None or first.name == vote.value[0] or subnet(first) == vote.value[1]:
        return
    usual_choice = f"{vote.value[0]} ({vote.value[1]}) on {vote.holders}"
    choice = f"{setting} selects {first.name} ({subnet(first)}) here"
    yield Deviation(f"{choice}, {usual_choice}", advice, grave=False)


def gloo_choice(facts: Facts, environ: Mapping[str, str], group: Group) -> Iterator[Deviation]:
    """Gloo's interfaces, or where it binds by the host's own name if none is set."""
    ifname = environ.get("GLOO_SOCKET_IFNAME", "")
    if ifname:
        interfaces, missing = gloo_interfaces(facts, ifname)
        if ifname[0] in "^=":
            sentence = "gloo takes exact names, and knows no ^ and no ="
            advice = "name an interface of every node"
            yield Deviation(f"GLOO_SOCKET_IFNAME={ifname}: {sentence}", advice)
        elif missing:
            has = _names(facts.interfaces)
            sentence = f"GLOO_SOCKET_IFNAME names {missing[0]}, and there is none here (but {has})"
            yield Deviation(f"{sentence}; it takes whole names", "name an interface of every node")
        for interface in interfaces:
            if problem := _why_unreachable(interface, facts, group):
                sentence = f"GLOO_SOCKET_IFNAME={ifname} selects {problem}"
                yield Deviation(sentence, "name the interface that joins the nodes")
        return
    lookup = facts.network.own_name if facts.network else None
    if lookup is None or lookup.error.startswith("no answer"):
        return
    local = addresses_of(facts)
    remote = [address for address in lookup.addresses if not is_loopback(address)]
    if any(address in local or "%" in address for address in remote) or (remote and not local):
        return
    where = lookup.addresses[0] if lookup.addresses else f"nowhere ({lookup.error})"
    listens = "listens there"
    if remote:  # gloo takes the loopback instead of an address to which it cannot bind
        where = f"{_ips(lookup)}, which none of its interfaces has"
        listens = "listens on the loopback"
    yield Deviation(
        f"its own name {lookup.name} leads to {where}: gloo without GLOO_SOCKET_IFNAME "
        f"{listens}, where no other node can connect",
        f"set GLOO_SOCKET_IFNAME={_better_name(facts, None)}, or correct /etc/hosts",
        grave=False,
    )


def hca_choice(
    facts: Facts, environ: Mapping[str, str], *, down_reported: bool
) -> Iterator[Deviation]:
    """NCCL_IB_HCA. `down_reported`: ib.port reports the port that is down, so this does not."""
    text = environ.get("NCCL_IB_HCA", "")
    if not text or facts.nics is None or environ.get("NCCL_IB_DISABLE", "0").strip() == "1":
        return
    setting = f"NCCL_IB_HCA={text[:80]}"
    ports = nccl_ports(facts, text)
    active = [port for port in ports if port.active]
    has = _names(facts.nics)
    if not active and not down_reported:
        sentence = f"{setting} selects no active RDMA port here (there are {has})"
        sentence += ": NCCL falls back to TCP sockets"
        yield Deviation(sentence, "name devices that are there")
        return
    selection = parse_filter(text)
    names = [nic.name for nic in facts.nics]
    for word in selection.names:
        matched = [name for name in names if selection.matches(word, name)]
        if not matched and not selection.exclude:
            sentence = f"{setting}: {word[0]} is no RDMA device here (there are {has})"
            yield Deviation(sentence, "correct the name; ^ and = count only at the very beginning")
        elif word[0] in matched and len(matched) > 1:
            others = ", ".join(name for name in matched if name != word[0])
            verb = "leaves out" if selection.exclude else "selects"
            sentence = f"{setting}: {word[0]} is a prefix, and {verb} {others} too"
            sign = "^=" if selection.exclude else "="
            yield Deviation(sentence, f"begin the list with {sign} for whole names", grave=False)
    named_devices = () if down_reported else [word[0] for word in selection.names]
    for port in ports:
        if port.nic.name in named_devices and port.state and not port.active:
            sentence = f"{setting} names {port.nic.name}, but {port.seen}"
            advice = "bring the port up, or leave the device out on every node"
            yield Deviation(f"{sentence}: NCCL goes on without it, and loses its rail", advice)


def loopback_down(facts: Facts) -> Iterator[Deviation]:
    """A node's own addresses lead through its loopback, also where no process uses 127.0.0.1."""
    for interface in facts.interfaces:
        if interface.loopback and not interface.up:
            sentence = f"{interface.name} is down: no process here can connect to this node itself"
            yield Deviation(sentence, f"ip link set {interface.name} up")


def _why_unreachable(interface: Interface, facts: Facts, group: Group) -> str:
    """Why an interface leads to no other node; "" where no reason is known."""
    if interface.loopback:
        return f"{interface.name}, the loopback"
    if not interface.addresses:
        return f"{interface.name}, which has no address"
    if interface.operstate == "down" or not interface.up:
        return f"{interface.name}, which is down"
    if interface.physical:
        return ""
    address = interface.addresses[0]
    for name, peer_facts in group.facts.items():
        if peer_facts.host == facts.host:
            continue
        for link in peer_facts.interfaces:
            if link.name == interface.name and address in link.addresses:
                ip = address.partition("/")[0]
                return f"{interface.name}, whose address {ip} is {name}'s too"
    return ""


def _not_to_others(first: Interface, facts: Facts, group: Group, environ: Mapping[str, str]) -> str:
    """Why NCCL's choice is another interface than the one to the other nodes; "" where it is fine.

    Another one is fine where NCCL's data go over RDMA (the sockets then only carry its bootstrap)
    and other nodes have addresses in its subnet.
    """
    used = peer_interface(facts)
    if used is None or used.name == first.name or not facts.gpus:
        return ""
    if not data_over_sockets(facts, environ) and _subnet_has_peer(first, facts, group):
        return ""
    return f"{first.name} ({subnet(first)}); {used.name} ({subnet(used)}) leads to the other nodes"


def _subnet_has_peer(interface: Interface, facts: Facts, group: Group) -> bool:
    """Whether another node has an address of its own in the interface's subnet."""
    local = parse_address(interface.addresses[0])
    if local is None or local.ip.is_link_local:  # such as the USB link to a node's own BMC
        return False
    peer_ips = [
        peer.ip
        for other in group.facts.values()
        if other.host != facts.host
        for link in other.interfaces
        for text in link.addresses
        if (peer := parse_address(text)) is not None and peer.network == local.network
    ]
    return bool(peer_ips) and local.ip not in peer_ips


def _better_name(facts: Facts, instead_of: Interface | None) -> str:
    if (used := peer_interface(facts)) is not None and used is not instead_of:
        return used.name
    usable = [
        link.name
        for link in facts.interfaces
        if link is not instead_of and link.up and not link.loopback and not link.master
        if any(":" not in ip for ip in link.addresses) and not link.name.startswith("docker")
    ]
    return usable[0] if usable else "an interface with an address"


def _names(parts: Sequence[Interface | Nic]) -> str:
    names = [part.name for part in parts]
    more = f", {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return (", ".join(names[:_NAMES_SHOWN]) + more) or "none"


def judge_interface(
    expected: Expected,
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
        if environ is None and not any(summary.startswith("network") for summary in facts.problems):
            return not_run("no interfaces reported, no job environment known")
        return unknown("the interfaces could not be read", advice="look at ip address there")
    deviations = list(loopback_down(facts))
    if alone and not job and not deviations:
        return not_run("one node alone, and no job environment known")
    down_reported = any(deviation.grave for deviation in down_ports(expected, facts, group))
    deviations += hca_choice(facts, env, down_reported=down_reported)
    if not alone:  # the job has other nodes to reach
        deviations += socket_choice(facts, env, group, env_known=environ is not None)
        deviations += gloo_choice(facts, env, group)
    if (verdict := conclude_deviations(deviations)) is not None:
        return verdict
    ifname = env.get("NCCL_SOCKET_IFNAME", "")
    sockets = nccl_interfaces(facts, ifname, env.get("NCCL_SOCKET_FAMILY", ""))
    first = f"{sockets[0].name} {sockets[0].addresses[0]}" if sockets else "no interface"
    setting = f" (NCCL_SOCKET_IFNAME={ifname})" if ifname else ""
    summary = f"NCCL's sockets: {first}{setting}"
    active = [p.name for p in nccl_ports(facts, env.get("NCCL_IB_HCA", "")) if p.active]
    if active:
        summary += f"; RDMA: {count(len(active), 'port')}"
    return ok(summary, sockets=[interface.name for interface in sockets], ports=active)


def test_net_interface(node: Node, conclude: Conclude) -> None:
    """The interfaces that the job's variables select exist, are up, and lead to the other nodes."""
    alone = node.net.nodes == 1
    conclude(judge_interface(node.expected, node.facts, node.environ, node.group, alone=alone))


SLOW_S: Final = 1.0
_HOSTS: Final = "correct /etc/hosts or DNS on this node (getent ahosts {0})"


@cache
def name_addresses(name: str) -> Callable[[Facts], tuple[str, ...] | None]:
    """The reader of where a name leads, for a vote of a group: one for all nodes."""

    def read_addresses(facts: Facts) -> tuple[str, ...] | None:
        lookup = lookup_of(facts, name)
        return None if lookup is None else tuple(sorted(lookup.addresses))

    return read_addresses


def lookup_of(facts: Facts, name: str) -> Resolved | None:
    """A node's lookup of a name."""
    names = facts.network.names if facts.network else ()
    return next((lookup for lookup in names if lookup.name == name), None)


def name_deviation(
    lookup: Resolved, facts: Facts, master: Facts | None, group: Group, *, expected: bool
) -> Deviation | None:
    """What is wrong with where a name leads here. `expected`: the job itself uses the name."""
    if not lookup.addresses:
        return _unknown_name(lookup, master, group, expected=expected)
    advice = _HOSTS.format(lookup.name)
    answer = f"the master's name {lookup.name} leads to {_ips(lookup)}"
    if all(is_loopback(address) for address in lookup.addresses):
        if master is not None and same_machine(facts, master):
            return None
        sentence = f"{answer} here, which is this node itself; its ranks would wait for themselves"
        return Deviation(sentence, advice)
    vote = decided(group.majority(name_addresses(lookup.name)))
    usual = vote.value if vote is not None else ()
    addresses = addresses_of(master) if master is not None else set()
    if usual and set(usual).isdisjoint(lookup.addresses) and not addresses & set(lookup.addresses):
        usual_answer = f"{', '.join(usual[:2])} on {vote.holders}" if vote else ""
        return Deviation(f"{answer} here, {usual_answer}", advice)
    if not usual and addresses and addresses.isdisjoint(lookup.addresses):
        return Deviation(f"{answer}, which none of its interfaces has", advice, grave=False)
    return _wrong_family(lookup, facts) or _slow_lookup(lookup)


def same_machine(a: Facts, b: Facts) -> bool:
    """Whether two answers come from one machine."""
    return a.host == b.host and abs(a.boot_s - b.boot_s) < SLOW_S


def _unknown_name(
    answer: Resolved, master: Facts | None, group: Group, *, expected: bool
) -> Deviation | None:
    """A name that no node knows is a name of our inventory, unless the job uses it."""
    at_master = lookup_of(master, answer.name) if master is not None else None
    vote = decided(group.majority(name_addresses(answer.name)))
    usual = vote is not None and vote.value
    if not (expected or usual or (at_master is not None and at_master.addresses)):
        return None
    sentence = f"the master's name {answer.name} leads nowhere here: {answer.error}"
    return Deviation(sentence, _HOSTS.format(answer.name))


def _wrong_family(answer: Resolved, facts: Facts) -> Deviation | None:
    """A name with IPv6 addresses only is useless to a node without IPv6."""
    versions = {ip_version(ip) for ip in answer.addresses}
    own_versions = {ip_version(ip) for ip in addresses_of(facts) if not ip.startswith("fe80")}
    if not own_versions or versions & own_versions:
        return None
    local, remote = (f"IPv{next(iter(sorted(kinds)))}" for kinds in (own_versions, versions))
    sentence = f"the master's name {answer.name} leads to {_ips(answer)}: only {remote}, this node"
    return Deviation(f"{sentence} has only {local}", "give both ends an address of one family")


def _slow_lookup(answer: Resolved) -> Deviation | None:
    if answer.seconds < SLOW_S:
        return None
    took = f"looking up the master's name {answer.name} took {answer.seconds:.1f} s"
    advice = "look at the name servers in /etc/resolv.conf"
    return Deviation(f"{took}, under 1 s is usual", advice, grave=False)


def _ips(answer: Resolved) -> str:
    return ", ".join(answer.addresses[:2])


def judge_master_name(
    facts: Facts, master: Facts | None, group: Group, job_says: str = "", *, alone: bool
) -> Verdict:
    """Compare the name's addresses with the master's own addresses and with the other nodes.

    `job_says`: the job's name for the master, if known. `alone`: the fleet is this one node.
    """
    network = facts.network
    if network is None:
        if not any(problem.startswith("network") for problem in facts.problems):
            return not_run("no name was looked up here")
        sentence = "the addresses of names could not be looked up"
        return unknown(sentence, advice="look at getent ahosts there")
    if not network.names:
        return _no_lookup(alone=alone)
    deviations = (
        name_deviation(answer, facts, master, group, expected=answer.name == job_says)
        for answer in network.names
    )
    if (verdict := conclude_deviations(finding for finding in deviations if finding)) is not None:
        return verdict
    ips = {answer.name: list(answer.addresses) for answer in network.names if answer.addresses}
    if not ips:
        names = ", ".join(answer.name for answer in network.names)
        return not_run(f"no node knows the name {names}; the job needs another for its master")
    name, addresses = next(iter(ips.items()))
    return ok(f"the master {name} is {', '.join(addresses[:2])}", found=ips)


def _no_lookup(*, alone: bool) -> Verdict:
    if alone:
        return not_run("one node alone: there is no master to find")
    sentence = "the master's name was not looked up here: these facts were read from one node alone"
    return unknown(sentence, advice="read all nodes again, in one run")


def test_net_master_name(node: Node, conclude: Conclude) -> None:
    """Every node finds the job's master by its name."""
    master = node.group.facts.get(node.net.master)
    job_says, alone = node.job.master_address(node.name), node.net.nodes == 1
    conclude(judge_master_name(node.facts, master, node.group, job_says, alone=alone))
