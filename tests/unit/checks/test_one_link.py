"""One sick link is one finding, although its port, its counters and the kernel's log show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from preflight.checks.net.test_ethernet import judge as judge_ethernet
from preflight.checks.net.test_nic_log import judge as judge_log
from preflight.checks.rdma.test_port import judge_errors, judge_port
from preflight.core.registry import Entry
from preflight.core.thresholds import SHIPPED
from preflight.facts.machine import KernelLog, LogLine
from preflight.facts.node_network import Counter, Counters
from preflight.fleet.model import Expected
from preflight.report.findings import findings
from tests.unit.facts.builders import facts, group, interface, network, nic, rdma_port

if TYPE_CHECKING:
    from preflight.facts.model import Facts
    from preflight.facts.node_network import Interface
    from preflight.report.findings import Finding

DAY_S = 86400.0
BUS = (nic(3).pci_path or ("",))[-1]
ADDRESSED = interface("eth0", "10.77.0.1/24", ethernet=None)


def node(*texts: str, cables: tuple[Interface, ...] = (), flaps: int = 0, **port: Any) -> Facts:
    """A node, up for a day, whose mlx5_3 has this port and the log 40 of each of these lines."""
    counters = Counters(20, 0.25, (Counter("link_downed", flaps),) if flaps else ())
    odd = nic(3, ports=(rdma_port(netdev="ib3", counters=counters, **port),), netdevs=("ib3",))
    nics = tuple(odd if at == 3 else nic(at) for at in range(8))
    lines = tuple(LogLine(text, DAY_S - 900, DAY_S - 60, 40) for text in texts)
    return facts(
        nics=nics,
        network=network(ADDRESSED, *cables),
        kernel_log=KernelLog("kmsg", 5000, lines=lines),
        time_s=DAY_S + 1000,
        boot_s=1000.0,
    )


def found(one: Facts) -> tuple[Finding, ...]:
    """What a person is shown of a node."""
    its = group(one)
    verdicts = {
        "ib.port": judge_port(Expected(), one, its),
        "ib.errors": judge_errors(one, limit=SHIPPED),
        "net.kernel_log": judge_log(one, limit=SHIPPED),
        "net.ethernet": judge_ethernet(one, None, its, limit=SHIPPED),
    }
    return findings(Entry(check, "h1", ("h1",), verdict) for check, verdict in verdicts.items())


DOWN: dict[str, Any] = {"state": "1: DOWN", "phys_state": "2: Polling"}
LOST = f"mlx5_core {BUS} ib3: Link down"
CABLE = (
    f"mlx5_core {BUS}: Port module event[error]: module 3, Cable error, Bad or unsupported cable"
)


@pytest.mark.parametrize(
    ("one", "check", "words"),
    [
        (node(LOST, flaps=40), "ib.errors", "mlx5_3/1: 40 link_downed/d"),
        (node(LOST, flaps=40, **DOWN), "ib.port", "mlx5_3/1 is DOWN (Polling)"),
        (node(LOST, CABLE, flaps=40, **DOWN), "ib.port", "mlx5_3/1 is DOWN (Polling)"),
        (node(LOST), "net.kernel_log", f"{BUS} 40 times"),
        (node(CABLE), "net.kernel_log", "cable or optical module reports a fault"),
    ],
)
def test_one_link_is_one_finding(one: Facts, check: str, words: str) -> None:
    """Whoever knows most tells: the port that is down, else its counters, else the log."""
    (only,) = found(one)
    assert only.check == check
    assert words in only.sentence


def test_two_links_are_two_findings() -> None:
    """A port that is down hides no finding of another NIC."""
    other = (nic(5).pci_path or ("",))[-1]
    one = node(LOST, CABLE.replace(BUS, other), flaps=40, **DOWN)
    assert [(each.check, other in each.sentence) for each in found(one)] == [
        ("ib.port", False),
        ("net.kernel_log", True),
    ]


def test_an_interface_that_fell() -> None:
    """Its port is ACTIVE, its carrier was lost 40 times: that is why it is down."""
    cables = [interface(f"ib{at}", operstate="down" if at == 3 else "up") for at in range(8)]
    one = node(LOST, flaps=40, cables=tuple(cables))
    ports = tuple(
        replace(each, ports=(replace(each.ports[0], netdev=f"ib{at}"),))
        for at, each in enumerate(one.nics or ())
    )
    (only,) = found(replace(one, nics=ports))
    assert (only.check, "ib.errors" in only.also) == ("ib.port", True)


def test_a_plain_interface_that_flaps() -> None:
    """The log's line and the interface's own count are one finding."""
    one = node("eth0: Link is Down")
    flapping = interface("eth0", "10.77.0.1/24", carrier_downs=40)
    (only,) = found(replace(one, network=network(flapping)))
    assert {only.check, *only.also} == {"net.ethernet", "net.kernel_log"}
