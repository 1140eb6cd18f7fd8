"""`ib.pcie`: lanes and generation of NICs against group, own peers, card and port."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.checks.net.test_nic_log import judge as judge_log
from preflight.checks.rdma.test_port import judge_rate
from preflight.checks.rdma.test_slots import judge_pcie
from preflight.core.thresholds import SHIPPED
from preflight.facts.machine import KernelLog, LogLine
from preflight.facts.node_network import PcieLink
from preflight.fleet.model import Expected
from preflight.verdict import Outcome, Verdict
from tests.unit.facts.builders import facts, group, nic, rdma_port

if TYPE_CHECKING:
    from preflight.facts.model import Facts

WHOLE = PcieLink(32.0, 16, 32.0, 16)
HALF = replace(WHOLE, width=8)
SLOW = replace(WHOLE, gts=16.0)
VIRTUAL = PcieLink()
NARROW = (
    "mlx5_core 0000:{}: 252.056 Gb/s available PCIe bandwidth, limited by 32.0 GT/s PCIe "
    "x8 link at 0000:97:01.0 (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)"
)


def node(*odd: int, link: PcieLink | None = HALF, host: str = "h1") -> Facts:
    """A node whose NICs of these numbers have another PCIe link."""
    return facts(host, nics=tuple(nic(at, pcie=link if at in odd else WHOLE) for at in range(8)))


def verdict_of(one: Facts, *others: Facts) -> Verdict:
    """What ib.pcie says of a node among others."""
    return judge_pcie(one, group(one, *others))


@pytest.mark.proves("ib.pcie", passes="eight NICs on PCIe 5 x16, and a group that is built with x8")
def test_sound_slots() -> None:
    """What all nodes have is as it should be, as long as it carries the port."""
    assert verdict_of(node()).sentence == "8 RDMA devices on PCIe 5 x16"
    port = rdma_port(rate="200 Gb/sec (2X NDR)")
    built = facts(nics=(nic(0, pcie=HALF, ports=(port,)),))
    assert verdict_of(built, built, built).outcome is Outcome.OK


@pytest.mark.proves("ib.pcie", finds="a NIC with half its lanes, or a generation lower")
@pytest.mark.parametrize(
    ("link", "others", "words"),
    [
        (HALF, 2, "mlx5_3: PCIe 5 x8, PCIe 5 x16 on 2 of 3 nodes of group train"),
        (SLOW, 2, "mlx5_3: PCIe 4 x16, PCIe 5 x16 on 2 of 3 nodes of group train"),
        (HALF, 0, "mlx5_3: PCIe 5 x8, PCIe 5 x16 on the other NICs of its kind"),
    ],
)
def test_a_loose_card(link: PcieLink, others: int, words: str) -> None:
    """By its group, else by its own peers."""
    verdict = verdict_of(node(3, link=link), *(node(host=f"h{at}") for at in range(2, 2 + others)))
    assert (verdict.outcome, verdict.sentence) == (Outcome.FAIL, words)
    assert "reseat mlx5_3" in verdict.advice


def test_a_lone_card() -> None:
    """Without peers the card's own word is a warning; so is a slot slower than its port."""
    lone = verdict_of(facts(nics=(nic(0, pcie=HALF),)))
    assert (lone.outcome, lone.sentence) == (
        Outcome.WARN,
        "mlx5_0: PCIe 5 x8, PCIe 5 x16 is what the card can do",
    )
    slot = facts(nics=(nic(0, pcie=PcieLink(32.0, 8, 32.0, 8)),))
    assert verdict_of(slot).sentence == "mlx5_0: PCIe 5 x8 carries 252 Gb/s, its port 400"


def test_one_finding_of_a_narrow_link() -> None:
    """The kernel's line counts only of a NIC that sysfs does not tell of, and here alone."""
    bus = (nic(0).pci_path or ("",))[-1].removeprefix("0000:")

    def logged(one: Facts, where: str) -> Facts:
        return replace(
            one, kernel_log=KernelLog("kmsg", 5000, lines=(LogLine(NARROW.format(where)),))
        )

    assert verdict_of(logged(node(), bus)).outcome is Outcome.OK
    assert "mlx5_0: PCIe 5 x8" in verdict_of(logged(node(0), bus)).sentence
    ethernet_only = verdict_of(logged(node(), "f1:00.0"))
    assert (ethernet_only.outcome, ethernet_only.sentence[:13]) == (Outcome.WARN, "0000:f1:00.0:")
    blind = [
        logged(facts(nics=(nic(0, pcie=VIRTUAL, ports=(rdma_port(rate=rate),)),)), bus)
        for rate in ("400 Gb/sec (4X NDR)", "200 Gb/sec (4X HDR)")
    ]
    assert [verdict_of(one).outcome for one in blind] == [Outcome.WARN, Outcome.NOT_RUN]
    assert judge_log(logged(node(0), bus), limit=SHIPPED).outcome is Outcome.OK


@pytest.mark.proves("ib.pcie", unknown="a NIC whose link the kernel does not report")
def test_unread_links() -> None:
    """Missing files are unknown; a virtual function has none to tell, a node without NICs too."""
    assert verdict_of(node(2, link=None)).outcome is Outcome.UNKNOWN
    assert verdict_of(facts(nics=(nic(0, pcie=VIRTUAL),))).outcome is Outcome.NOT_RUN
    assert verdict_of(facts(nics=())).outcome is Outcome.NOT_RUN
    assert verdict_of(facts(nics=None)).outcome is Outcome.NOT_RUN


@pytest.mark.parametrize("layer", ["", "InfiniBand"])
@pytest.mark.parametrize("known", [{}, {"board": ""}, {"board": "", "hca_type": ""}])
def test_cards_without_a_name_are_no_peers(layer: str, known: dict[str, str]) -> None:
    """Three front ends that can do less, beside five rails: another kind, or no known kind."""
    fast = rdma_port(link_layer=layer)
    slow = replace(fast, rate="100 Gb/sec (4X EDR)")
    rails = [nic(at, ports=(fast,), **known) for at in range(5)]
    words = {"board": "MT_0000000359", "hca_type": "MT4123", **known}
    least = PcieLink(16.0, 8, 16.0, 8)
    front = [nic(at, pcie=least, ports=(slow,), **words) for at in range(5, 8)]
    one = facts(nics=(*rails, *front))
    assert verdict_of(one).outcome is Outcome.OK
    assert judge_rate(Expected(), one, group(one)).outcome is not Outcome.FAIL
