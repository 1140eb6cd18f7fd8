"""NICs in their PCIe slots, and their way to the GPUs' memory.

The expected link is that of most nodes of the group, else of the node's other NICs of that board,
else what the card can do; whatever it is, a link must carry the rate of its ports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Final

from preflight.check import Check
from preflight.checks.deviations import Deviation, conclude_deviations, on_most
from preflight.checks.net.test_nic_log import logged_events
from preflight.checks.rdma.ports import Port, most_common, ports_of
from preflight.checks.software.test_versions import version
from preflight.facts import Facts, Group, Node
from preflight.facts.boards import among, gpu_models
from preflight.facts.model import Nic
from preflight.facts.node import decided
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn

_ANSWER: Final = ("reach.answer",)
CHECKS = (
    Check("ib.pcie", stage="facts", tier="prolog", requires=_ANSWER, drains=True),
    Check("ib.gpudirect", stage="facts", tier="prolog", requires=(*_ANSWER, "host.driver_hung")),
)


_RESEAT: Final = (
    "drain; reseat {0} or its riser, compare slot and BIOS (width, bifurcation) with a sound node"
)
_GENERATIONS: Final = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""By GT/s."""

_FIRST_128B130B_GTS: Final = 8.0
"""From this rate on, 130 bits carry 128; at a lower rate, ten bits carry eight."""


def slot_deviations(facts: Facts, group: Group) -> Iterator[Deviation]:
    """NICs with fewer lanes or a lower generation than they should have, or than ports need."""
    nics = [nic for nic in facts.nics or () if nic.pcie is not None and nic.pcie.width]
    for nic in nics:
        if deviation := _below_usual(nic, facts, group) or _below_port_rate(nic, facts):
            yield deviation
    yield from _log_deviations(facts, {bus for nic in nics if (bus := _bus(nic))})


@cache
def link_reader(name: str) -> Callable[[Facts], tuple[float, int] | None]:
    """The reader of (GT/s, lanes) of a NIC, for a vote of a group: one for all nodes."""

    def read_link(facts: Facts) -> tuple[float, int] | None:
        return next((_link(nic) for nic in facts.nics or () if nic.name == name), None)

    return read_link


def _below_usual(nic: Nic, facts: Facts, group: Group) -> Deviation | None:
    own_link = _link(nic)
    if own_link is None or nic.pcie is None:
        return None
    vote = decided(group.majority(among(link_reader(nic.name), gpu_models(facts))))
    peers = [peer for peer in facts.nics or () if peer.kind == nic.kind]
    if vote is not None:
        grave, expected, origin = True, vote.value, on_most(vote, group)
    elif peers_link := most_common(filter(None, map(_link, peers))):
        grave, expected, origin = True, peers_link, "on the other NICs of its kind"
    else:
        # A slot may be wired so, or a virtual machine show it so: only peers can tell.
        expected = (nic.pcie.gts_max or 0.0, nic.pcie.width_max or 0)
        grave, origin = False, "is what the card can do"
    if expected[0] <= own_link[0] and expected[1] <= own_link[1]:
        return None
    sentence = f"{nic.name}: {_link_words(own_link)}, {_link_words(expected)} {origin}"
    return Deviation(sentence, _RESEAT.format(nic.name), grave=grave)


def _below_port_rate(nic: Nic, facts: Facts) -> Deviation | None:
    """Whatever all nodes have: a port faster than its slot never reaches its rate."""
    link = _link(nic)
    ports = [port for port in ports_of(facts) if port.nic is nic and port.active]
    port_gbits = max([port.gbits or 0.0 for port in ports], default=0.0)
    if link is None or gbits(*link) >= port_gbits:
        return None
    capacity = f"{nic.name}: {_link_words(link)} carries {gbits(*link):.0f} Gb/s"
    return Deviation(f"{capacity}, its port {port_gbits:g}", _RESEAT.format(nic.name), grave=False)


def _log_deviations(facts: Facts, known_buses: set[str]) -> Iterator[Deviation]:
    """Lines of the driver's start, for NICs whose PCIe link could not be read."""
    narrow = {event.device: event for event in logged_events(facts) if event.kind == "narrow"}
    for bus, event in narrow.items():
        if bus not in known_buses and not _carries_port(event.have_gbits, bus, facts):
            sentence = f"{bus}: its PCIe link is narrower than it can use ({event.note})"
            yield Deviation(sentence, _RESEAT.format(bus), grave=False)


def _carries_port(have_gbits: float, bus: str, facts: Facts) -> bool:
    """Whether the slot carries the port's own rate; if that is unknown, the line is reported."""
    nics = [nic for nic in facts.nics or () if _bus(nic) == bus]
    rates = [Port(nic, port).gbits or 0.0 for nic in nics for port in nic.ports]
    return any(rates) and have_gbits >= max(rates)


def gbits(gts: float, width: int) -> float:
    """What a link carries one way, Gb/s, without headers: 128 of 130 bits, before that 8 of 10."""
    return gts * width * (128 / 130 if gts >= _FIRST_128B130B_GTS else 0.8)


def _link(nic: Nic) -> tuple[float, int] | None:
    pcie = nic.pcie
    return (pcie.gts, pcie.width) if pcie is not None and pcie.gts and pcie.width else None


def _link_words(link: tuple[float, int] | None) -> str:
    """PCIe 5 x16."""
    if link is None:
        return "no PCIe link reported"
    return f"PCIe {_GENERATIONS.get(link[0], f'{link[0]:g} GT/s')} x{link[1]}"


def _bus(nic: Nic) -> str:
    return nic.pci_path[-1] if nic.pci_path else ""


def judge_pcie(facts: Facts, group: Group) -> Verdict:
    """Compare lanes and generation with group, own peers, the card, and the port's rate."""
    if verdict := conclude_deviations(slot_deviations(facts, group)):
        return verdict
    nics = facts.nics or ()
    if not nics:
        return not_run("no RDMA devices here")
    unreported = [nic.name for nic in nics if nic.pcie is None and nic.pci_path is not None]
    if unreported:
        sentence = f"the PCIe link of {', '.join(unreported)} could not be read"
        return unknown(sentence, advice="look at current_link_width in /sys/bus/pci/devices")
    with_link = [nic for nic in nics if nic.pcie is not None and nic.pcie.width]
    if not with_link:
        return not_run("RDMA devices without a PCIe link of their own: virtual, or not reported")
    links = {nic.name: _link_words(_link(nic)) for nic in with_link}
    kinds = ", ".join(sorted(set(links.values())))
    return ok(f"{len(with_link)} RDMA devices on {kinds}", links=links)


def test_ib_pcie(node: Node, conclude: Conclude) -> None:
    """Every RDMA device has all its PCIe lanes at full speed: half a slot is half a rail."""
    conclude(judge_pcie(node.facts, node.group))


_DMABUF_KERNEL: Final = (5, 12)
"""First kernel whose ib_core takes dma-buf; NCCL's documentation of NCCL_DMABUF_ENABLE."""


def uses_rdma(facts: Facts) -> bool:
    """Whether there are GPUs and NICs that could talk directly; EFA and the like do not count."""
    layers = {port.layer for port in ports_of(facts) if port.active}
    return bool(facts.gpus) and bool(layers & {"infiniband", "ethernet"})


def gpu_memory_path(facts: Facts) -> str | None:
    """Name the way by which NICs reach GPU memory: "" for none, None where that is not known."""
    direct = facts.gpudirect
    if direct is None:
        return None
    if direct.peermem:
        return "nvidia_peermem"
    dmabuf = direct.open_modules if version(facts.kernel) >= _DMABUF_KERNEL else False
    if dmabuf:
        return "dma-buf"
    return None if direct.peermem is None or dmabuf is None else ""


LOAD_PEERMEM = "modprobe nvidia_peermem and load it at boot; or the driver's open modules (dma-buf)"


def judge_gpudirect(facts: Facts, group: Group) -> Verdict:
    """Look for nvidia_peermem, or for a kernel and a driver that do dma-buf."""
    if not uses_rdma(facts):
        return not_run("no GPUs beside an active RDMA port here")
    path = gpu_memory_path(facts)
    if path is None:
        return unknown(
            "neither the kernel's modules nor the driver's kind show whether NICs reach GPUs",
            advice="look at lsmod for nvidia_peermem and at /proc/driver/nvidia/version",
        )
    if path:
        return ok(f"NICs reach GPU memory by {path}", way=path)
    vote = decided(group.majority(gpu_memory_path))
    sentence = f"no nvidia_peermem, and no dma-buf on kernel {facts.kernel} with this driver"
    if vote is not None and vote.value:
        usual_path = f"{vote.value} {on_most(vote, group)}"
        return fail(f"{sentence}; {usual_path}", advice=LOAD_PEERMEM)
    effect = "NCCL copies through host memory, at about half the rate"
    return warn(f"{sentence}: {effect}", advice=LOAD_PEERMEM)


def test_ib_gpudirect(node: Node, conclude: Conclude) -> None:
    """NICs can read and write GPU memory themselves."""
    conclude(judge_gpudirect(node.facts, node.group))
