"""How a host is set up: its container, the clocks of its cores, its PCIe bridges."""

from __future__ import annotations

from preflight.check import Check
from preflight.checks.gpu.deviations import conclude_oddities
from preflight.checks.rdma.direct import mapping, obstacles, redirects, uses_rdma
from preflight.facts import Facts, Group, Majority, Node
from preflight.facts.machine import Governor
from preflight.facts.node import decided, others
from preflight.facts.words import count
from preflight.verdict import Conclude, Verdict, not_run, ok, unknown, warn

CHECKS = (
    Check("host.container", stage="facts", tier="prolog", requires=("reach.answer",)),
    Check("host.governor", stage="facts", tier="prolog", requires=("reach.answer",)),
    Check(
        "host.pci_acs", stage="facts", tier="prolog", requires=("reach.answer", "host.driver_hung")
    ),
)


SHOW = {
    "kubernetes": "hostPID: true in the pod's spec",
    "docker": "docker run --pid=host",
    "podman": "podman run --pid=host",
    "apptainer": "apptainer without --pid",
    "hidepid": "this login the group of the mount of /proc (gid=), or mount it without hidepid",
}
NSENTER = "the process table of the machine: start it there, not in the container"


def judge_container(facts: Facts) -> Verdict:
    """Whether all processes of the machine are seen; only a missing privilege, so no fault."""
    container = facts.machine.container if facts.machine else None
    if container is None or container.hidden_by is None:
        return unknown(
            "it cannot be told whether a container hides part of the machine",
            advice="mount /proc there",
        )
    where = f"in a container ({container.kind})" if container.kind else "no container"
    if not container.hidden_by:
        return ok(f"{where}; nothing hides other processes")
    seen = facts.processes.seen if facts.processes else 0
    grant = SHOW.get(container.kind or container.hidden_by, NSENTER)
    grant = SHOW["hidepid"] if container.hidden_by == "hidepid" else grant
    what = (
        "other users' processes (hidepid)"
        if container.hidden_by == "hidepid"
        else ("processes of the machine and of other containers")
    )
    load = facts.machine.load if facts.machine else None
    busy = f"; the load average of all is {load.one_minute:.1f}" if load is not None else ""
    return unknown(
        f"{where}: {what} are hidden, {seen} seen{busy}",
        advice=f"to have leftovers and load of others judged, grant {grant}",
        grant=grant,
    )


def test_host_container(node: Node, conclude: Conclude) -> None:
    """What a container hides from us, leftovers of other jobs above all, is not judged: say so."""
    conclude(judge_container(node.facts))


STEADY = "performance"
ADVICE = "cpupower frequency-set -g performance, and make it last (tuned-adm profile hpc-compute)"
BIOS = "compare the power settings of its BIOS (OS control of P-states) with a node that has them"


def judge_governor(facts: Facts, usual: Majority[tuple[str, ...]] | None = None) -> Verdict:
    """Every CPU under the governor that keeps its clock up; a VM has none to choose."""
    governors = facts.machine.governors if facts.machine else None
    if governors is None:
        return unknown("CPU frequency governors could not be read", advice="mount /sys there")
    alike = decided(usual)
    if not governors and alike is not None and alike.value:
        said = f"no CPU frequency governor here; {others(alike, ', '.join(alike.value))}"
        return warn(said, advice=BIOS)
    if not governors:
        return not_run("its firmware or hypervisor steers CPU frequencies, no governor does")
    slow = [one for one in governors if one.name != STEADY]
    if not slow:
        return ok(f"{count(sum(one.cpus for one in governors), 'CPU')} under {STEADY}")
    seen = ", ".join(words(one) for one in slow)
    of = sum(one.cpus for one in governors)
    expected = f"{STEADY} is expected"
    if alike is not None and alike.value == (STEADY,):
        expected = others(alike, STEADY)
    return warn(
        f"{seen} of {of}; {expected}", advice=ADVICE, governors=[words(g) for g in governors]
    )


def words(one: Governor) -> str:
    """192 CPUs under powersave (intel_pstate)."""
    return f"{count(one.cpus, 'CPU')} under {one.name or '?'} ({one.driver or 'driver unknown'})"


def names_of(facts: Facts) -> tuple[str, ...] | None:
    """For the vote of a group."""
    if facts.machine is None or facts.machine.governors is None:
        return None
    return tuple(sorted({one.name for one in facts.machine.governors}))


def test_host_governor(node: Node, conclude: Conclude) -> None:
    """Cores that clock down between messages make every small collective wait for them."""
    conclude(judge_governor(node.facts, node.group.majority(names_of)))


def judge_pci_acs(facts: Facts, group: Group) -> Verdict:
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
    """PCIe lets GPUs and NICs talk directly: neither ACS nor the IOMMU sends them round."""
    conclude(judge_pci_acs(node.facts, node.group))
