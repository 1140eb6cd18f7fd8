"""Which interfaces and RDMA devices a job's variables really select on one node.

A prefix selects more than it names, a leading "^" or "=" counts for the whole list, and NCCL's
default is seldom the interface that the user wants. Rules as in NCCL's socket.cc
(ncclFindInterfaces, v2.18.6 to v2.30.7; in v2.30 its loop is in os/linux.cc), utils.cc and init.cc,
and in torch's ProcessGroupGloo and GlooDeviceFactory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final

from msgspec import Struct

from preflight.checks.rdma.ports import Port, ports_of
from preflight.checks.software.test_versions import version
from preflight.core.text import whole
from preflight.facts.model import Facts, read_once
from preflight.facts.node import ip_version, parse_address
from preflight.facts.node_network import Interface

_AUTOMATIC: Final = ("ib", "^docker,lo,virbr", "docker", "lo", "virbr")
"""What NCCL tries in turn where NCCL_SOCKET_IFNAME is not set; the first that hits is taken."""

_AUTOMATIC_BEFORE_2_28: Final = ("ib", "^docker,lo", "docker", "lo")
_SKIPS_DOWN: Final = (2, 28)
"""The first NCCL that passes over interfaces which are not running, and over libvirt's bridges."""

_FAMILIES: Final = {"AF_INET": 4, "AF_INET6": 6}


class Filter(Struct, frozen=True):
    """NCCL_SOCKET_IFNAME or NCCL_IB_HCA, taken apart as NCCL does."""

    names: tuple[tuple[str, int | None], ...]
    """(name or prefix, port)"""
    exclude: bool
    exact: bool

    def hits(self, name: str, port: int | None = None) -> bool:
        """Whether NCCL may take it."""
        if not self.names:
            return not self.exclude
        return self.exclude != any(self.matches(word, name, port) for word in self.names)

    def matches(self, entry: tuple[str, int | None], name: str, port: int | None = None) -> bool:
        """Whether one word of the list names this device and port."""
        word, word_port = entry
        name_matches = name == word if self.exact else name.startswith(word)
        return name_matches and (word_port is None or port is None or word_port == port)


@cache
def parse_filter(text: str) -> Filter:
    """Take a list apart: "^" and "=" count where they lead the whole text, and nowhere else."""
    exclude = text.startswith("^")
    rest = text[exclude:]
    exact = rest.startswith("=")
    names = []
    for word in rest[exact:].split(","):
        name, _, port = word.partition(":")
        if name:
            number = port.partition(":")[0]
            names.append((name, whole(number[:18])))
    return Filter(tuple(names), exclude=exclude, exact=exact)


def nccl_interfaces(facts: Facts, ifname: str, family: str = "") -> tuple[Interface, ...]:
    """The interfaces of NCCL's sockets, in its order; the first carries its bootstrap."""
    interfaces = _by_family(facts)[_FAMILIES.get(family)]
    if len(ifname) > 1:  # NCCL takes no notice of a single character
        return _select(interfaces, ifname)
    nccl = version(facts.software.nccl or "") if facts.software else ()
    automatic: tuple[str, ...] = _AUTOMATIC
    if nccl and nccl < _SKIPS_DOWN:
        automatic = _AUTOMATIC_BEFORE_2_28
    else:
        interfaces = [interface for interface in interfaces if interface.running]
    return next((hit for text in automatic if (hit := _select(interfaces, text))), ())


def peer_interface(facts: Facts) -> Interface | None:
    """The interface by which this node reaches the other nodes of the run; None if not known."""
    network = facts.network
    if network is None or not network.source_address:
        return None
    return next(
        (
            interface
            for interface in network.interfaces or ()
            if not interface.loopback
            if any(ip.partition("/")[0] == network.source_address for ip in interface.addresses)
        ),
        None,
    )


def gloo_interfaces(facts: Facts, ifname: str) -> tuple[list[Interface], list[str]]:
    """(those that GLOO_SOCKET_IFNAME names, names of which there is none): whole names only."""
    by_name = {interface.name: interface for interface in facts.interfaces}
    names = [name for name in ifname.split(",") if name]
    return [by_name[n] for n in names if n in by_name], [n for n in names if n not in by_name]


def nccl_ports(facts: Facts, hca: str) -> tuple[Port, ...]:
    """The RDMA ports that NCCL_IB_HCA selects, active or not."""
    selection = parse_filter(hca)
    return tuple(p for p in ports_of(facts) if selection.hits(p.nic.name, p.port.port))


def hca_of(environ: Mapping[str, str] | None) -> str:
    """NCCL_IB_HCA of the job; "" where nothing is known or set."""
    return (environ or {}).get("NCCL_IB_HCA", "")


def data_over_sockets(facts: Facts, environ: Mapping[str, str]) -> bool:
    """Whether NCCL's data, and not only its bootstrap, go over its sockets."""
    if environ.get("NCCL_IB_DISABLE", "").strip() == "1":
        return True
    return not any(port.active for port in nccl_ports(facts, hca_of(environ)))


def subnet(interface: Interface) -> str:
    """The network of its first address: "10.77.0.0/24"; "" without one."""
    address = parse_address(interface.addresses[0]) if interface.addresses else None
    return "" if address is None else str(address.network)


@cache
def first_choice(ifname: str, family: str) -> Callable[[Facts], tuple[str, str] | None]:
    """The reader of (interface, subnet) for a vote of a group: one for all nodes that set this."""

    def read_first(facts: Facts) -> tuple[str, str] | None:
        interfaces = nccl_interfaces(facts, ifname, family)
        return (interfaces[0].name, subnet(interfaces[0])) if interfaces else None

    return read_first


@read_once
def _by_family(facts: Facts) -> dict[int | None, list[Interface]]:
    """By family, as getifaddrs(3) lists them: those with IPv4 first; of IPv6 not the loopback."""
    versions = [(link, set(map(ip_version, link.addresses))) for link in facts.interfaces]
    v4 = [link for link, families in versions if 4 in families]  # noqa: PLR2004  IPv4
    v6 = [link for link, families in versions if 6 in families and not link.loopback]  # noqa: PLR2004
    return {4: v4, 6: v6, None: [*v4, *(link for link in v6 if link not in v4)]}


def _select(interfaces: Sequence[Interface], text: str) -> tuple[Interface, ...]:
    selection = parse_filter(text)
    return tuple(interface for interface in interfaces if selection.hits(interface.name))
