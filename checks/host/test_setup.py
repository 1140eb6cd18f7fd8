"""How a host is set up: its container, the clocks of its cores, its PCIe bridges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from preflight.check import Check
from preflight.checks.deviations import Deviation, conclude_deviations
from preflight.checks.rdma.test_slots import uses_rdma
from preflight.core.text import count, first_few
from preflight.facts import Facts, Group, Majority, Node
from preflight.facts.machine import Governor
from preflight.facts.node import decided, majority_text
from preflight.verdict import Conclude, Verdict, not_run, ok, unknown, warn

_ANSWER: Final = ("reach.answer",)
CHECKS = (
    Check("host.container", stage="facts", tier="prolog", requires=_ANSWER),
    Check("host.governor", stage="facts", tier="prolog", requires=_ANSWER),
    Check("host.pci_acs", stage="facts", tier="prolog", requires=(*_ANSWER, "host.driver_hung")),
)


SHOW_PROCESSES = {
    "kubernetes": "hostPID: true in the pod's spec",
    "docker": "docker run --pid=host",
    "podman": "podman run --pid=host",
    "apptainer": "apptainer without --pid",
    "hidepid": "this login the group of the mount of /proc (gid=), or mount it without hidepid",
}
NSENTER = "the process table of the machine: start it there, not in the container"


def judge_container(facts: Facts) -> Verdict:
    """Whether all processes of the machine are visible; hidden ones are unknown, never a fault."""
    container = facts.machine.container if facts.machine else None
    if container is None or container.hidden_by is None:
        sentence = "whether a container hides part of the machine could not be read"
        return unknown(sentence, advice="mount /proc there")
    container_words = f"in a container ({container.kind})" if container.kind else "no container"
    if not container.hidden_by:
        return ok(f"{container_words}; nothing hides other processes")
    number = facts.processes.seen if facts.processes else 0
    grant = SHOW_PROCESSES.get(container.kind or container.hidden_by, NSENTER)
    processes = "processes of the machine and of other containers"
    if container.hidden_by == "hidepid":
        grant, processes = SHOW_PROCESSES["hidepid"], "other users' processes (hidepid)"
    load = facts.machine.load if facts.machine else None
    load_words = f"; the load average of all is {load.one_minute:.1f}" if load is not None else ""
    return unknown(
        f"{container_words}: {processes} are hidden, {number} seen{load_words}",
        advice=f"to check leftovers and other users' load, grant {grant}",
        grant=grant,
    )


def test_host_container(node: Node, conclude: Conclude) -> None:
    """A container that hides processes, leftovers of other jobs above all, is reported."""
    conclude(judge_container(node.facts))


FULL_CLOCK = "performance"
SET_GOVERNOR = (
    "cpupower frequency-set -g performance, and make it last (tuned-adm profile hpc-compute)"
)
BIOS = "compare the power settings of its BIOS (OS control of P-states) with a node that has them"


def judge_governor(facts: Facts, usual: Majority[tuple[str, ...]] | None = None) -> Verdict:
    """Every CPU uses the governor that keeps its clock up; a VM has none to choose."""
    governors = facts.machine.governors if facts.machine else None
    if governors is None:
        return unknown("CPU frequency governors could not be read", advice="mount /sys there")
    vote = decided(usual)
    if not governors and vote is not None and vote.value:
        sentence = f"no CPU frequency governor here; {majority_text(vote, ', '.join(vote.value))}"
        return warn(sentence, advice=BIOS)
    if not governors:
        return not_run("its firmware or hypervisor sets CPU frequencies, no governor does")
    slow = [governor for governor in governors if governor.name != FULL_CLOCK]
    cpus = sum(governor.cpus for governor in governors)
    if not slow:
        return ok(f"{count(cpus, 'CPU')} under {FULL_CLOCK}")
    slow_words = ", ".join(map(governor_words, slow))
    expected = f"{FULL_CLOCK} is expected"
    if vote is not None and vote.value == (FULL_CLOCK,):
        expected = majority_text(vote, FULL_CLOCK)
    all_words = list(map(governor_words, governors))
    return warn(f"{slow_words} of {cpus}; {expected}", advice=SET_GOVERNOR, governors=all_words)


def governor_words(governor: Governor) -> str:
    """192 CPUs under powersave (intel_pstate)."""
    driver = governor.driver or "driver unknown"
    return f"{count(governor.cpus, 'CPU')} under {governor.name or '?'} ({driver})"


def governor_names(facts: Facts) -> tuple[str, ...] | None:
    """The governors of a node's CPUs, each once, for the group's vote."""
    if facts.machine is None or facts.machine.governors is None:
        return None
    return tuple(sorted({governor.name for governor in facts.machine.governors}))


def test_host_governor(node: Node, conclude: Conclude) -> None:
    """Cores that clock down between messages make every small collective wait for them."""
    conclude(judge_governor(node.facts, node.group.majority(governor_names)))


_GRACE: Final = "aarch64"
"""There GPUs are always behind the SMMU, and its translation costs nothing of the kind."""

_CLEAR: Final = (
    "clear ACS on it (setpci -s {0} ECAP_ACS+6.w=0) at boot, or switch it off in the BIOS"
)
_NAMED: Final = 3
_IOMMU_PT: Final = "boot with iommu=pt (or intel_iommu=off / amd_iommu=off), recheck"


def redirecting_ports(facts: Facts) -> tuple[str, ...] | None:
    """PCIe ports that send traffic between GPU and NIC up to the root complex."""
    if facts.gpudirect is None or facts.gpudirect.acs is None:
        return None
    ports = facts.gpudirect.acs
    return tuple(port.bus_id for port in ports if port.redirects and not port.translated)


def iommu_mapping(facts: Facts) -> str | None:
    """How the IOMMU maps the devices: none, identity, or the kernel's word for translation."""
    direct = facts.gpudirect
    return None if direct is None or direct.machine == _GRACE else direct.iommu


def strict_nics(facts: Facts) -> tuple[str, ...] | None:
    """NICs whose writes may not overtake one another."""
    nics = facts.nics or ()
    if not nics or any(nic.relaxed_ordering is None for nic in nics):
        return None
    return tuple(nic.name for nic in nics if not nic.relaxed_ordering)


def detours(facts: Facts, group: Group) -> Iterator[Deviation]:
    """Settings that send traffic between GPUs and NICs on a detour."""
    redirecting, vote = redirecting_ports(facts), decided(group.majority(redirecting_ports))
    if redirecting:
        grave, usual_setting = False, "none should"
        if vote is not None and not vote.value:
            grave, usual_setting = True, f"none does on {vote.holders}"
        ports = first_few(redirecting, _NAMED)
        finding = f"ACS redirects the traffic between GPUs and NICs at {ports}; {usual_setting}"
        yield Deviation(finding, _CLEAR.format(redirecting[0]), grave=grave)
    mapping, usual = iommu_mapping(facts), decided(group.majority(iommu_mapping))
    if mapping is not None and mapping.startswith("DMA"):
        grave, usual_setting = False, "identity expected"
        if usual is not None and not usual.value.startswith("DMA"):
            grave, usual_setting = True, f"{usual.value} on {usual.holders}"
        finding = f"the IOMMU translates for GPUs and NICs ({mapping})"
        yield Deviation(f"{finding}, {usual_setting}", _IOMMU_PT, grave=grave)
    strict, peers_strict = strict_nics(facts), decided(group.majority(strict_nics))
    if strict and peers_strict is not None and not peers_strict.value:
        usual_setting = f"on for all on {peers_strict.holders}"
        advice = "set PCI_WR_ORDERING=1 (mlxconfig), or relaxed ordering in the BIOS"
        sentence = f"relaxed ordering is off for {first_few(strict, _NAMED)}, {usual_setting}"
        yield Deviation(sentence, advice, grave=False)


def judge_pci_acs(facts: Facts, group: Group) -> Verdict:
    """Compare the redirects of PCIe ports and the IOMMU's mapping with the group's."""
    if not uses_rdma(facts):
        return not_run("no GPUs beside an active RDMA port here")
    if facts.gpudirect is None:
        sentence = "the PCIe settings between GPUs and NICs could not be read"
        return unknown(sentence, advice="look at /sys/bus/pci and /sys/kernel/iommu_groups")
    if verdict := conclude_deviations(detours(facts, group)):
        return verdict
    if redirecting_ports(facts) is None:
        return unknown(
            "ACS lies in PCIe configuration space, which only root may read",
            advice="as root: lspci -vvv | grep ACSCtl",
            grant="run the probe as root on the node (sudo), or give it CAP_SYS_ADMIN",
        )
    ports = facts.gpudirect.acs or ()
    iommu = iommu_mapping(facts) or "not checked here"
    sentence = f"{len(ports)} PCIe ports with ACS between GPUs and NICs, none redirects"
    return ok(f"{sentence}; IOMMU: {iommu}", iommu=facts.gpudirect.iommu)


def test_host_pci_acs(node: Node, conclude: Conclude) -> None:
    """PCIe lets GPUs and NICs talk directly: neither ACS nor the IOMMU sends them on a detour."""
    conclude(judge_pci_acs(node.facts, node.group))
