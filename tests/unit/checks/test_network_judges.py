"""`net.interface`, `net.master_name`, `net.ephemeral_ports`: what a job meets before connecting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from preflight.checks.net.selected import nccl_ports, parse_filter
from preflight.checks.net.test_interface import judge_interface
from preflight.checks.net.test_interface import judge_master_name as judge_name
from preflight.checks.net.test_ports import judge_ephemeral_ports as judge_range
from preflight.core.thresholds import SHIPPED
from preflight.facts.node_network import ConfFile, ConfSetting, Interface, Network, Resolved
from preflight.fleet.model import Expected, Fleet, Host, Job
from preflight.verdict import Outcome, Verdict
from tests.unit.facts.builders import facts, group, interface, network, nic, rdma_port, software

if TYPE_CHECKING:
    from preflight.facts.model import Facts

FOUND = Resolved("h1", ("10.77.0.1",))
DOCKER = interface("docker0", "172.17.0.1/16", index=3, physical=False)


def host(number: int, *more: Interface, eth: str = "eth0", **changes: object) -> Facts:
    """Node h1, h2, ... at 10.77.0.1, ... which has looked up its own name and the master's."""
    name, address = f"h{number}", f"10.77.0.{number}"
    its: dict[str, object] = {"own_name": Resolved(name, (address,)), "names": (FOUND,), **changes}
    return facts(name, network=network(interface(eth, f"{address}/24"), *more, **its))


def choice(one: Facts, environ: dict[str, str] | None, *others: Facts) -> Verdict:
    """What net.interface says of a node among others."""
    return judge_interface(Expected(), one, environ, group(one, *others), alone=not others)


@pytest.mark.parametrize(
    ("text", "hit"),
    [
        ("", "eth0 eth1 ib0 lo"),
        ("eth", "eth0 eth1"),
        ("eth1,ib", "eth1 ib0"),
        ("=eth", ""),
        ("=eth0,ib0", "eth0 ib0"),
        ("^eth", "ib0 lo"),
        ("^=eth0", "eth1 ib0 lo"),
        ("^eth,lo", "ib0"),
        ("^=eth0,^=lo", "eth1 ib0 lo"),
        ("=^eth0", ""),
        (" eth0", ""),
    ],
)
def test_how_nccl_reads_a_list(text: str, hit: str) -> None:
    """Prefixes; ^ and = count at the very beginning only, and ^ before =."""
    names = ["eth0", "eth1", "ib0", "lo"]
    assert [name for name in names if parse_filter(text).hits(name)] == hit.split()


def test_ports_in_a_list_of_devices() -> None:
    """mlx5_1 selects mlx5_10 too; a port after a colon leaves out the others."""
    both = (rdma_port(), rdma_port(port=2))
    one = facts(nics=(nic(1, ports=both), nic(10, ports=both)))
    assert [port.name for port in nccl_ports(one, "mlx5_1:2")] == ["mlx5_1/2", "mlx5_10/2"]
    assert [port.name for port in nccl_ports(one, "=mlx5_1:2:0")] == ["mlx5_1/2"]
    assert [port.name for port in nccl_ports(one, "^mlx5_10")] == ["mlx5_1/1", "mlx5_1/2"]


@given(st.text(max_size=40), st.text(max_size=20))
def test_no_list_breaks_the_reader(text: str, name: str) -> None:
    """Whatever people write, it selects or not."""
    assert parse_filter(text).hits(name) in (True, False)


@pytest.mark.proves(
    "net.interface", passes="a node where the job's names select eth0 and eight HCAs"
)
@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (None, "NCCL's sockets: eth0 10.77.0.1/24; RDMA: 8 ports"),
        ({}, "eth0"),
        ({"NCCL_SOCKET_IFNAME": "eth", "GLOO_SOCKET_IFNAME": "eth0"}, "(NCCL_SOCKET_IFNAME=eth)"),
        ({"NCCL_IB_HCA": "=mlx5_0,mlx5_1"}, "RDMA: 2 ports"),
        ({"NCCL_IB_HCA": "^mlx5_7"}, "RDMA: 7 ports"),
        ({"NCCL_IB_HCA": "nonsense", "NCCL_IB_DISABLE": "1"}, "eth0"),
    ],
)
def test_a_sound_choice(environ: dict[str, str] | None, words: str) -> None:
    """Docker's bridge beside it does no harm: NCCL takes it last."""
    verdict = choice(host(1, DOCKER), environ, host(2, DOCKER))
    assert (verdict.outcome, words in verdict.sentence) == ("ok", True), verdict.sentence


@pytest.mark.proves(
    "net.interface", finds="an interface that is missing, the loopback, down, or shared"
)
@pytest.mark.proves(
    "net.interface", finds="NCCL_IB_HCA that selects nothing, too much, or a dead port"
)
@pytest.mark.parametrize(
    ("environ", "outcome", "words"),
    [
        ({"NCCL_SOCKET_IFNAME": "bond0"}, "fail", "selects no interface with an address here"),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, "fail", "there are lo, eth0, docker0, eth9"),
        ({"NCCL_SOCKET_IFNAME": "lo"}, "fail", "selects lo, the loopback"),
        ({"NCCL_SOCKET_IFNAME": "docker"}, "fail", "whose address 172.17.0.1 is h2's too"),
        ({"NCCL_SOCKET_IFNAME": "eth9"}, "fail", "eth9, which is down"),
        ({"GLOO_SOCKET_IFNAME": "^lo,docker"}, "fail", "exact names, and knows no ^"),
        ({"GLOO_SOCKET_IFNAME": "eth"}, "fail", "names eth, and there is none here"),
        ({"GLOO_SOCKET_IFNAME": "eth0,lo"}, "fail", "selects lo, the loopback"),
        ({"NCCL_IB_HCA": "rdma"}, "fail", "selects no active RDMA port here"),
        ({"NCCL_IB_HCA": "=mlx5_0,=mlx5_1"}, "fail", "=mlx5_1 is no RDMA device here"),
        ({"NCCL_IB_HCA": "mlx5_1"}, "warn", "mlx5_1 is a prefix, and selects mlx5_10 too"),
        ({"NCCL_IB_HCA": "=mlx5_10"}, "fail", "mlx5_10/1 is DOWN (Disabled)"),
    ],
)  # fmt: skip
def test_a_wrong_choice(environ: dict[str, str], outcome: str, words: str) -> None:
    """Each says what is selected, what is there, and what to write instead."""
    down = interface("eth9", "10.99.0.1/24", index=9, operstate="down")
    off = rdma_port(state="1: DOWN", phys_state="3: Disabled")
    cards = (*(facts().nics or ()), nic(10, ports=(off,)))
    one = replace(host(1, DOCKER, down), nics=cards)
    if environ == {"NCCL_IB_HCA": "=mlx5_10"}:
        cards = (*cards, nic(11))
        environ = {"NCCL_IB_HCA": "=mlx5_10,mlx5_11"}
        one = replace(one, nics=cards)
    verdict = choice(one, environ, host(2, DOCKER))
    assert (verdict.outcome, words in verdict.sentence) == (outcome, True), verdict.sentence
    assert verdict.advice


@pytest.mark.proves(
    "net.interface", finds="a host name that resolves to the loopback, which gloo would then use"
)
def test_where_gloo_listens_by_itself() -> None:
    """Debian's 127.0.1.1 is a warning, unless the job names the interface."""
    one = host(1, own_name=Resolved("h1", ("127.0.1.1",)))
    verdict = choice(one, {}, host(2))
    assert verdict.outcome is Outcome.WARN
    assert "its own name h1 leads to 127.0.1.1" in verdict.sentence
    assert "GLOO_SOCKET_IFNAME=eth0" in verdict.advice
    assert choice(one, {"GLOO_SOCKET_IFNAME": "eth0"}, host(2)).outcome is Outcome.OK


@pytest.mark.proves(
    "net.interface", finds="a host name that resolves to an address which the node does not have"
)
def test_where_gloo_cannot_listen() -> None:
    """It takes the loopback then; one address of the node among several is enough."""
    one = host(1, own_name=Resolved("h1", ("10.99.99.99",)))
    verdict = choice(one, {}, host(2))
    assert verdict.outcome is Outcome.WARN
    assert "its own name h1 leads to 10.99.99.99, which none of its interfaces" in verdict.sentence
    assert "listens on the loopback" in verdict.sentence
    assert "GLOO_SOCKET_IFNAME=eth0" in verdict.advice
    both = host(1, own_name=Resolved("h1", ("10.99.99.99", "10.77.0.1")))
    assert choice(both, {}, host(2)).outcome is Outcome.OK


@pytest.mark.proves("net.interface", finds="a loopback that is down, on a node of a fleet or alone")
def test_a_loopback_that_is_down() -> None:
    """The node cannot connect to its own address, as ranks beside a master must."""
    one = host(1)
    assert one.network is not None
    lo, *others = one.network.interfaces or ()
    down = replace(one.network, interfaces=(replace(lo, up=False), *others))
    for peers in ((), (host(2),)):
        verdict = choice(replace(one, network=down), None, *peers)
        assert verdict.outcome is Outcome.FAIL
        assert "lo is down" in verdict.sentence
        assert verdict.advice == "ip link set lo up"


@pytest.mark.proves("net.interface", finds="another interface on another subnet than on most nodes")
def test_unlike_the_group() -> None:
    """A routed fabric has a subnet per rack: only another name on another subnet is odd."""
    others = [host(number) for number in (2, 3, 4)]
    odd = replace(
        host(1),
        network=network(
            interface("eno1", "192.168.7.1/24"), own_name=Resolved("h1", ("10.0.0.1",))
        ),
    )
    verdict = choice(odd, {}, *others)
    assert verdict.outcome is Outcome.WARN
    assert "selects eno1 (192.168.7.0/24) here, eth0 (10.77.0.0/24) on 3 of 4" in verdict.sentence
    routed = replace(
        host(1),
        network=network(interface("eth0", "10.78.0.1/24"), own_name=Resolved("h1", ("10.78.0.1",))),
    )
    assert choice(routed, {}, *others).outcome is Outcome.OK


@pytest.mark.proves(
    "net.interface", finds="an interface that NCCL chooses and that does not reach the others"
)
@pytest.mark.parametrize(
    ("cni", "environ", "nccl", "chosen"),
    [
        (interface("cni0", "10.244.{}.1/24", index=1, physical=False), None, "2.27.3",
         "NCCL's own choice selects cni0 (10.244.1.0/24); eth0 (10.77.0.0/24) leads to the"),
        (interface("usb0", "169.254.3.{}/24", index=1), None, "2.30.7",
         "NCCL's own choice selects usb0 (169.254.3.0/24); eth0"),
        (interface("docker0", "172.17.{}.1/24", physical=False),
         {"NCCL_SOCKET_IFNAME": "docker,eth"}, "2.30.7",
         "NCCL_SOCKET_IFNAME=docker,eth selects docker0 (172.17.1.0/24); eth0"),
        (interface("virbr0", "192.168.{}.1/24", index=1, physical=False), None, "2.27.3",
         "NCCL's own choice selects virbr0"),
        (interface("virbr0", "192.168.{}.1/24", index=1, physical=False), None, "2.28.3", ""),
        (interface("ib0", "10.9.{}.1/24", operstate="down", index=1), None, "2.28.3", ""),
        (interface("ib0", "10.9.0.{}/24", index=3), None, "2.30.7", ""),
    ],
)  # fmt: skip
def test_another_way_than_to_the_others(
    cni: Interface, environ: dict[str, str] | None, nccl: str, chosen: str
) -> None:
    """All nodes are built alike, so no vote shows it; eth0 is where their addresses lead.

    libvirt's bridge and what is down count until 2.28; another network that all have is fine.
    """
    nodes = [
        replace(
            host(number, source_address=f"10.77.0.{number}"),
            software=software(nccl=nccl),
        )
        for number in (1, 2)
    ]
    nodes = [
        replace(one, network=replace(one.network, interfaces=tuple(sorted(
            (replace(cni, addresses=(cni.addresses[0].format(number),)),
             *(one.network.interfaces or ())),
            key=lambda each: (not each.loopback, each.index)
        ))))
        for number, one in enumerate(nodes, 1) if one.network
    ]  # fmt: skip
    verdict = choice(nodes[0], environ, nodes[1])
    assert chosen in verdict.sentence
    assert verdict.outcome is (Outcome.WARN if chosen else Outcome.OK), verdict.sentence
    if chosen:
        assert "set NCCL_SOCKET_IFNAME to what joins the nodes: eth0" in verdict.advice


def test_sockets_over_another_network_than_the_one_measured() -> None:
    """Without RDMA the job's data go there: a network that all nodes have is reported, too."""
    nodes = [
        replace(
            facts(f"h{number}", nics=()),
            network=network(
                interface("mgmt0", f"10.9.0.{number}/24"),
                interface("eth0", f"10.77.0.{number}/24", index=3),
                source_address=f"10.77.0.{number}", own_name=Resolved("h", ("10.77.0.1",)),
            ),
        )
        for number in (1, 2)
    ]  # fmt: skip
    assert "selects mgmt0 (10.9.0.0/24); eth0" in choice(nodes[0], None, nodes[1]).sentence
    cpus = [replace(one, gpus=None) for one in nodes]
    assert choice(cpus[0], None, cpus[1]).outcome is Outcome.OK


def test_nccl_reads_its_files_too() -> None:
    """/etc/nccl.conf names the interface, where the job's environment does not."""
    conf = ConfFile("/etc/nccl.conf", "system", (ConfSetting("NCCL_SOCKET_IFNAME", "docker0"),))
    one = replace(host(1, DOCKER), nccl_conf=(conf,))
    assert "selects docker0" in choice(one, {}, host(2, DOCKER)).sentence
    own = choice(one, {"NCCL_SOCKET_IFNAME": "eth0"}, host(2, DOCKER))
    assert own.outcome is Outcome.OK


@pytest.mark.proves("net.interface", unknown="the interfaces cannot be read")
def test_unread_interfaces() -> None:
    """Without interfaces nothing is selected; a node alone has no other to reach."""
    assert choice(facts(network=None), {"NCCL_SOCKET_IFNAME": "eth0"}).outcome is Outcome.UNKNOWN
    hung = facts(network=None, problems=("network: no answer in time",))
    assert choice(hung, None).outcome is Outcome.UNKNOWN
    assert choice(facts(), None).outcome is Outcome.NOT_RUN
    assert choice(facts(), {"NCCL_SOCKET_IFNAME": "lo"}).outcome is Outcome.OK


def named(*its: str, error: str = "", seconds: float = 0.0, number: int = 2) -> Facts:
    """Node h2, where the master's name leads to these addresses."""
    return host(number, names=(Resolved("h1", its, error, seconds),))


def name(one: Facts, *others: Facts, job: str = "h1", master: Facts | None = None) -> Verdict:
    """What net.master_name says of a node; the master is h1."""
    return judge_name(one, master or host(1), group(one, *others), job, alone=False)


@pytest.mark.proves("net.master_name", passes="a name that leads to the master's address")
def test_the_master_is_found() -> None:
    """Its own address; the loopback on the master itself; one for all behind a router."""
    assert name(named("10.77.0.1")).sentence == "the master h1 is 10.77.0.1"
    itself = host(1, names=(Resolved("h1", ("127.0.1.1",)),))
    assert name(itself, master=itself).outcome is Outcome.OK
    outside = [named("203.0.113.5", number=number) for number in (2, 3, 4)]
    assert name(outside[0], *outside[1:]).outcome is Outcome.OK


@pytest.mark.proves("net.master_name", unknown="a node that was probed alone")
def test_no_lookups() -> None:
    """A node alone has no master to find; for a node of a fleet no lookup means unknown."""
    asked_alone = host(2, names=(), own_name=None)
    lone = judge_name(asked_alone, None, group(asked_alone), alone=True)
    assert (lone.outcome, "one node alone" in lone.sentence) == (Outcome.NOT_RUN, True)
    verdict = name(asked_alone, host(1))
    assert verdict.outcome is Outcome.UNKNOWN
    assert "was not looked up here" in verdict.sentence
    among = choice(asked_alone, {"NCCL_SOCKET_IFNAME": "bond0"}, host(1))
    assert among.outcome is Outcome.FAIL
    assert choice(asked_alone, None, host(1)).outcome is Outcome.OK


@pytest.mark.proves(
    "net.master_name", finds="a master's name that leads to the loopback, another node or nowhere"
)
@pytest.mark.parametrize(
    ("one", "outcome", "words"),
    [
        (named("127.0.1.1"), "fail", "leads to 127.0.1.1 here, which is this node itself"),
        (named("10.77.0.9"), "fail", "leads to 10.77.0.9 here, 10.77.0.1 on 3 of 4 nodes"),
        (named(error="Name or service not known"), "fail", "leads nowhere here: Name or service"),
        (named(error="no answer in 4 s"), "fail", "no answer in 4 s"),
        (named("10.77.0.1", seconds=2.5), "warn", "took 2.5 s"),
    ],
)
def test_the_master_is_not_found(one: Facts, outcome: str, words: str) -> None:
    """Reported with the address on most other nodes."""
    verdict = name(one, host(1), host(3), host(4))
    assert (verdict.outcome, words in verdict.sentence) == (outcome, True), verdict.sentence
    assert verdict.advice


def test_one_family_only() -> None:
    """An IPv6 address is of no use to a node that has IPv4 alone."""
    six = interface("eth0", "fd00::1/64")
    master = facts("h1", network=network(six, own_name=FOUND))
    verdict = name(named("fd00::1"), master=master)
    assert verdict.outcome is Outcome.FAIL
    assert "only IPv6, this node has only IPv4" in verdict.sentence


def test_a_name_of_our_own_inventory() -> None:
    """A name that no node knows is no fault, unless it is the job's."""
    one, other = (named(error="Name or service not known", number=at) for at in (1, 2))
    assert name(other, one, job="", master=one).outcome is Outcome.NOT_RUN
    assert name(other, one, job="h1", master=one).outcome is Outcome.FAIL


@pytest.mark.proves("net.master_name", unknown="the node's network section is missing")
def test_unread_names() -> None:
    """No section is no answer."""
    assert name(facts("h2", network=None, problems=("network: x",))).outcome is Outcome.UNKNOWN


def test_which_names_are_looked_up() -> None:
    """The job's own, else the master's address; what a shell must expand is none; alone: none."""
    hosts = (Host(name="h1", address="10.0.0.1"), Host(name="h2", address="10.0.0.2"))
    assert Fleet(hosts=hosts, origin="").master_names == ("10.0.0.1",)
    job = Job(environ={"": {"MASTER_ADDR": "gpu001"}, "h2": {"MASTER_ADDR": "$(hostname)"}})
    assert Fleet(hosts=hosts, origin="", job=job).master_names == ("gpu001",)
    assert Fleet(hosts=hosts[:1], origin="").master_names == ()


def ranged(low: int, high: int, reserved: str = "", port: int | None = 29500) -> Verdict:
    """What net.ephemeral_ports says of a range."""
    one = facts(network=Network(ephemeral=(low, high), reserved=reserved))
    return judge_range(one, port, "torchrun's default", limit=SHIPPED)


@pytest.mark.proves("net.ephemeral_ports", passes="the kernel's default range")
@pytest.mark.proves(
    "net.ephemeral_ports", finds="a master port inside the range, and a range too small"
)
@pytest.mark.proves("net.ephemeral_ports", unknown="/proc/sys cannot be read")
def test_ephemeral_ports() -> None:
    """On the master its port must be outside, or reserved."""
    assert ranged(32768, 60999).sentence.startswith("28232 ports for outgoing connections")
    risky = ranged(1024, 65535)
    assert risky.outcome is Outcome.WARN
    assert (
        "port 29500 (torchrun's default) is inside the ephemeral range 1024-65535" in risky.sentence
    )
    assert "below 1024" in risky.advice
    assert ranged(1024, 65535, reserved="80,29400-29510").outcome is Outcome.OK
    assert ranged(1024, 65535, port=None).outcome is Outcome.OK
    few = ranged(60000, 60999)
    assert few.sentence == (
        "1000 ports for outgoing connections (60000-60999), 8192 are the least for a large job"
    )
    assert judge_range(facts(network=Network()), None, "", limit=SHIPPED).outcome is Outcome.UNKNOWN
    assert judge_range(facts(network=None), None, "", limit=SHIPPED).outcome is Outcome.NOT_RUN
