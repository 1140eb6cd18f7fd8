"""PCIe lets GPUs and NICs talk directly: neither ACS nor the IOMMU sends them round."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Group, Node
from preflight.facts.direct import mapping, obstacles, redirects, uses_rdma
from preflight.facts.oddities import conclude_oddities
from preflight.verdict import Conclude, Verdict, not_run, ok, unknown

CHECK = Check(
    "host.pci_acs",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung"),
)


def judge(facts: Facts, group: Group) -> Verdict:
    """Hold the redirects of PCIe ports and the IOMMU's mapping against the group."""
    if not uses_rdma(facts):
        return not_run("no GPUs beside an active RDMA port here")
    if facts.gpudirect is None:
        said = "the PCIe settings between GPUs and NICs could not be read"
        return unknown(said, advice="look at /sys/bus/pci and /sys/kernel/iommu_groups")
    odd = conclude_oddities(obstacles(facts, group))
    if odd is not None:
        return odd
    if redirects(facts) is None:
        return unknown(
            "ACS lies in PCIe configuration space, which only root may read",
            advice="as root: lspci -vvv | grep ACSCtl",
            grant="run the probe as root on the node (sudo), or give it CAP_SYS_ADMIN",
        )
    ports = facts.gpudirect.acs or ()
    iommu = mapping(facts) or "not judged here"
    said = f"{len(ports)} PCIe ports with ACS between GPUs and NICs, none redirects"
    return ok(f"{said}; IOMMU: {iommu}", iommu=facts.gpudirect.iommu)


def test_host_pci_acs(node: Node, conclude: Conclude) -> None:
    """Joins a node, its group and the judgement; the frame does the rest."""
    conclude(judge(node.facts, node.group))
