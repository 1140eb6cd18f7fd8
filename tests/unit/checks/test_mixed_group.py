"""A group of two kinds of machines: a healthy one of the fewer is another model, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.commands.read import fact_checks
from preflight.core.registry import load_folder, shipped_folder
from preflight.facts.machine import Memory
from preflight.facts.node import Group, Net, Node, Reach
from preflight.facts.node_network import PcieLink
from preflight.fleet.model import Expected, Job
from tests.unit.checks.gpu_judges import judge
from tests.unit.facts.builders import links, nic, rdma_port
from tests.unit.facts.gpu_builders import node
from tests.unit.facts.gpu_readings import quiet_link

if TYPE_CHECKING:
    from preflight.facts.model import Facts

CHECKS = [one for one in load_folder(shipped_folder()) if one.check.id in fact_checks()]


def dgx_a100(host: str) -> Facts:
    """A healthy node of the generation before: fewer NVLinks, NICs, watts and memory."""
    one = node(
        name="NVIDIA A100-SXM4-80GB", memory_total_mib=81920, links=links(12), fabric_state=None,
        lacks=("fabric_state",), pcie_gen=4, pcie_gen_max=4, power_limit_w=400.0,
        power_default_w=400.0, link_errors=tuple(quiet_link(at, mbps=25781) for at in range(12)),
    )  # fmt: skip
    hdr = (rdma_port(rate="200 Gb/sec (4X HDR)"),)
    slot = PcieLink(16.0, 16, 16.0, 16)
    nics = tuple(nic(at, ports=hdr, board="MT_0000000223", pcie=slot) for at in range(6))
    memory = Memory(total_mib=524288, available_mib=500000)
    machine = replace(one.machine, memory=memory) if one.machine else None
    return replace(one, host=host, nics=nics, machine=machine)


def failures(*members: Facts) -> set[str]:
    """The checks that fail for the first of these nodes."""
    group = Group("train", {f"h{at}": one for at, one in enumerate(members)})
    it = Node(
        name="h0", expected=Expected(), reach=Reach("openssh"), facts=group.facts["h0"],
        group=group, job=Job(), net=Net(nodes=4),
    )  # fmt: skip
    verdicts = {one.check.id: one.conclude(it) for one in CHECKS}
    return {check for check, verdict in verdicts.items() if verdict.makes_not_ready}


def test_a_node_with_other_gpus_is_not_drained_for_them() -> None:
    """Its links, lanes, watts and NICs are those of its own kind: only its model is a finding."""
    assert failures(dgx_a100("h0"), *[node()] * 3) == {"gpu.model"}
    assert failures(node(), *[dgx_a100("h1")] * 3) == {"gpu.model"}


def cards(width: int, most: int) -> Facts:
    """Eight cards, the third in a slot of these lanes."""
    one = node(name="NVIDIA L40S", links=(), pcie_gen=4, pcie_gen_max=4)
    lanes = {"pcie_width": width, "pcie_width_max": most}
    gpus = [
        replace(gpu, health=replace(gpu.health, **lanes)) if gpu.health and gpu.index == 2 else gpu
        for gpu in one.gpus or ()
    ]
    return replace(one, gpus=tuple(gpus))


def test_a_slot_that_is_narrower_on_every_node() -> None:
    """So the machines are built; what only this node has, or what the slot could do, is a fault."""
    built, whole = cards(8, 8), cards(16, 16)
    assert judge("gpu.pcie", built, built, built).outcome == "ok"
    assert judge("gpu.pcie", built, whole, whole).outcome == "fail"
    assert judge("gpu.pcie", cards(8, 16), built, built).outcome == "fail"
    assert judge("gpu.pcie", built).outcome == "warn"
    assert judge("gpu.pcie", cards(8, 16)).outcome == "fail"


def test_a_fault_shows_among_nodes_of_its_own_kind() -> None:
    """Two of the three other nodes are of the same kind, and decide."""
    whole = node()
    short = replace(whole, nics=(whole.nics or ())[:7], gpus=(whole.gpus or ())[:7])
    assert {"gpu.count", "ib.count"} <= failures(short, whole, whole, dgx_a100("h3"))
