"""`net.ethernet`: the links of a job's sockets against configuration, peers and their other end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from preflight.checks.net.test_ethernet import judge, kind_of
from preflight.core.thresholds import SHIPPED
from preflight.facts.node_network import Counter, Ethernet
from preflight.verdict import Outcome, Verdict
from tests.unit.facts.builders import facts, group, interface, network, nic, rdma_port

if TYPE_CHECKING:
    from preflight.facts.model import Facts
    from preflight.facts.node_network import Interface

SOUND = Ethernet("full", most_mbits=100_000, counters=(Counter("rx_packets", 10**9),))
BOTH = replace(SOUND, partner_mbits=100_000)
DAY_S = 86400.0


def link(name: str = "eth0", *addresses: str, **changes: Any) -> Interface:
    """An interface at 100 Gb/s with jumbo frames."""
    sound: dict[str, Any] = {"speed_mbits": 100_000, "mtu": 9000, "ethernet": SOUND, **changes}
    return interface(name, *addresses, **sound)


def node(number: int = 1, *more: Interface, rdma: bool = False, **changes: Any) -> Facts:
    """Node h1, h2, ... whose sockets go over eth0; its data too, unless it has RDMA."""
    eth0 = link("eth0", f"10.77.0.{number}/24", **changes)
    nics = tuple(nic(at) for at in range(8)) if rdma else ()
    return facts(f"h{number}", nics=nics, network=network(eth0, *more))


def bonded(number: int = 1, *, odd: dict[str, Any] | None = None) -> Facts:
    """A node whose bond0 has two links, the second changed so."""
    parts = [
        link("eth1", master="bond0", index=3),
        link("eth2", master="bond0", index=4, **(odd or {})),
    ]
    whole = link(
        "bond0", f"10.77.0.{number}/24", index=5, physical=False, lower=("eth1", "eth2"),
        speed_mbits=200_000, ethernet=Ethernet("full", 0),
    )  # fmt: skip
    return facts(f"h{number}", nics=(), network=network(*parts, whole))


def verdict_of(one: Facts, *others: Facts, environ: dict[str, str] | None = None) -> Verdict:
    """What net.ethernet says of a node among others."""
    return judge(one, environ, group(one, *others), limit=SHIPPED)


@pytest.mark.proves("net.ethernet", passes="a node at the speed and with the MTU of its peers")
def test_sound_links() -> None:
    """The sentence has the numbers, and a bond's links; ib.* checks what carries RDMA."""
    verdict = verdict_of(node(), node(2), node(3))
    assert (verdict.outcome, verdict.sentence) == (
        Outcome.OK,
        "eth0: 100 Gb/s, full duplex, MTU 9000",
    )
    assert verdict_of(bonded()).sentence.startswith(
        "bond0: 200 Gb/s, full duplex, MTU 9000; eth1: 100"
    )
    port = rdma_port(link_layer="Ethernet", netdev="eth0")
    roce = replace(node(mtu=1500), nics=(nic(0, ports=(port,)),))
    assert verdict_of(roce, node(2), node(3)).sentence == "eth0: over RDMA ports, which ib.* checks"
    virtual = node(speed_mbits=None, physical=False, ethernet=Ethernet(most_mbits=0))
    assert verdict_of(virtual).sentence == "eth0: speed not reported, MTU 9000"
    spare = link("eth9", index=9, mtu=1500, operstate="down")
    assert verdict_of(node(1, spare), node(2), node(3)).outcome is Outcome.OK


@pytest.mark.proves("net.ethernet", finds="a speed or MTU below that of most nodes, or half duplex")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mtu": 1500}, "eth0: MTU 1500, 9000 on 3 of 4 nodes of group train"),
        ({"speed_mbits": 25_000}, "eth0 runs at 25 Gb/s, 100 Gb/s on 3 of 4 nodes of group train"),
        ({"ethernet": Ethernet("half", 100_000)}, "eth0 runs half duplex, full is expected"),
        (
            {"mtu": 1500, "ethernet": Ethernet("full", 100_000, mtu_wanted=9000)},
            "eth0: MTU 1500, 9000 in its own configuration",
        ),
    ],
)
def test_an_odd_link(changes: dict[str, Any], words: str) -> None:
    """A fault where the job's data go over it; a warning where only its bootstrap does."""
    others = [node(number) for number in (2, 3, 4)]
    verdict = verdict_of(node(**changes), *others)
    assert (verdict.outcome, verdict.sentence) == (Outcome.FAIL, words)
    assert "eth0" in verdict.advice
    beside_rdma = verdict_of(node(rdma=True, **changes), *others)
    assert beside_rdma.outcome is (Outcome.FAIL if "duplex" in words else Outcome.WARN)
    disabled = verdict_of(node(rdma=True, **changes), *others, environ={"NCCL_IB_DISABLE": "1"})
    assert disabled.outcome is Outcome.FAIL


def test_larger_frames_than_the_others_harm_less() -> None:
    """Connections agree on the smaller: a warning."""
    assert verdict_of(node(mtu=9216), node(2), node(3)).outcome is Outcome.WARN


@pytest.mark.proves("net.ethernet", finds="a link slower than both its ends can do, without peers")
def test_a_slow_link_without_peers() -> None:
    """Both ends could: a fault. Only its own device could, or one other node does: a warning."""
    slow: dict[str, Any] = {"speed_mbits": 10_000}
    verdict = verdict_of(node(ethernet=BOTH, **slow))
    assert (verdict.outcome, verdict.sentence) == (
        Outcome.FAIL,
        "eth0 runs at 10 Gb/s, both its ends can do 100 Gb/s",
    )
    own = verdict_of(node(**slow))
    assert (own.outcome, own.sentence) == (
        Outcome.WARN,
        "eth0 runs at 10 Gb/s, its device can do 100 Gb/s",
    )
    two = verdict_of(node(ethernet=Ethernet("full"), **slow), node(2))
    assert (two.outcome, two.sentence) == (
        Outcome.WARN,
        "eth0 runs at 10 Gb/s, 100 Gb/s on another node of group train",
    )


@pytest.mark.proves("net.ethernet", finds="a bond that has lost a link, or whose links differ")
def test_a_bond() -> None:
    """It works on with what is left; where most nodes have that link down, it is meant so."""
    lost = bonded(odd={"operstate": "down", "speed_mbits": None})
    verdict = verdict_of(lost)
    assert (verdict.outcome, verdict.sentence) == (
        Outcome.FAIL,
        "eth2 of bond0 has no link; 1 of 2 are up",
    )
    everywhere = [bonded(at, odd={"operstate": "down", "speed_mbits": None}) for at in (2, 3)]
    assert verdict_of(lost, *everywhere).outcome is Outcome.OK
    slow = verdict_of(bonded(odd={"speed_mbits": 25_000, "ethernet": Ethernet("full", 0)}))
    assert slow.sentence == "eth2 runs at 25 Gb/s, another link of bond0 at 100 Gb/s"


@pytest.mark.proves("net.ethernet", finds="broken and dropped frames, and a link that flaps")
@pytest.mark.parametrize(
    ("counters", "words"),
    [
        ({"rx_crc_errors_phy": 5000}, "rx_crc_errors_phy 5000 of 1000000000 packets: 5 in a"),
        ({"rx_discards_phy": 2 * 10**7}, "20000000 of 1000000000 packets: 2 %, under 1000 in a"),
        ({"rx_crc_errors": 2, "rx_prio0_discards": 10**9, "tx_errors_phy": 9}, ""),
    ],
)
def test_lost_frames(counters: dict[str, int], words: str) -> None:
    """By their share of all packets; two broken ones, and what is counted twice, are nothing."""
    counted = tuple(Counter(name, value) for name, value in counters.items())
    one = node(ethernet=replace(SOUND, counters=(*(SOUND.counters or ()), *counted)))
    verdict = verdict_of(one)
    assert verdict.outcome is (Outcome.WARN if words else Outcome.OK)
    assert words in verdict.sentence
    flapping = replace(node(carrier_downs=40), boot_s=0, time_s=4 * DAY_S)
    assert "eth0 lost its link 40 times since boot, 10 a day" in verdict_of(flapping).sentence


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rx_crc_errors", "broken"), ("port.rx_crc_errors", "broken"), ("rx_fcs_errors", "broken"),
        ("rx_symbol_err_phy", "broken"), ("rx_out_of_buffer", "dropped"),
        ("rx_missed_errors", "dropped"), ("port.rx_no_buffer_count", "dropped"),
        ("rx_total_discard_pkts", "dropped"), ("link_down_events_phy", "flaps"),
        ("rx_packets_phy", "packets"), ("rx_if_down_packets", ""), ("rx_prio3_discards", ""),
        ("rx0_csum_none", ""), ("rx-0.rx_packets", ""), ("tx_discards_phy", ""),
        ("rx_csum_unnecessary", ""), ("rx_1024_to_1518_bytes_phy", ""), ("[0]: rx_discards", ""),
    ],
)  # fmt: skip
def test_what_drivers_mean(name: str, kind: str) -> None:
    """mlx5, i40e, ixgbe, bnxt: one thing under many names."""
    assert kind_of(name) == kind


@given(st.text(max_size=60))
def test_no_name_breaks_the_reader(name: str) -> None:
    """Whatever a driver calls its counters."""
    assert kind_of(name) in ("broken", "dropped", "flaps", "packets", "")


@pytest.mark.proves(
    "net.ethernet", unknown="interfaces that report no link, or nothing to compare it with"
)
def test_unread_links() -> None:
    """No interfaces, no MTU, or a speed that nothing says should be another."""
    assert verdict_of(facts(network=None, problems=("network: x",))).outcome is Outcome.UNKNOWN
    assert verdict_of(node(mtu=None, ethernet=None)).outcome is Outcome.UNKNOWN
    assert verdict_of(node(ethernet=Ethernet("full"))).outcome is Outcome.UNKNOWN
    assert verdict_of(facts(network=None)).outcome is Outcome.NOT_RUN
    assert verdict_of(facts(network=replace(network(), interfaces=()))).outcome is Outcome.NOT_RUN
