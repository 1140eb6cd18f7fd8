"""Every device is as fast under load as its peers: kernels, memory, PCIe, NICs."""

from __future__ import annotations

from msgspec.structs import replace

from preflight.check import Check
from preflight.checks.burn.words import conclude as held
from preflight.facts import Node
from preflight.facts.burn import Burn
from preflight.verdict import Conclude, Outcome, Verdict, not_run, unknown

GEMM = Check(
    "burn.gemm",
    stage="local",
    tier="standard",
    requires=("burn.device",),
    disturbs=True,
)

GEMM_SLOW = (
    "look at clocks, heat and power limit of {0} (nvidia-smi -q -d PERFORMANCE); else exclude it"
)


def judge_gemm(burn: Burn | None) -> Verdict:
    """Hold each device against the others of its kind, here and on other nodes."""
    return held(burn, ("gemm_tflops",), what="bf16 GEMM", advice=GEMM_SLOW)


def test_burn_gemm(node: Node, conclude: Conclude) -> None:
    """Every device multiplies matrices as fast as its peers: the slow one of eight holds up all."""
    conclude(judge_gemm(node.burn))


MEMORY = Check(
    "burn.memory",
    stage="local",
    tier="standard",
    requires=("burn.device",),
    disturbs=True,
)

MEMORY_SLOW = "look at the memory clock, ECC and remapped rows of {0}; reset it, then recheck"


def judge_memory(burn: Burn | None) -> Verdict:
    """Hold each device's memory against that of the others of its kind."""
    return held(burn, ("memory_gbs",), what="memory copy", advice=MEMORY_SLOW)


def test_burn_memory(node: Node, conclude: Conclude) -> None:
    """Every device's memory moves data as fast as its peers': a lost stack or a low clock shows."""
    conclude(judge_memory(node.burn))


LAUNCH = Check(
    "burn.launch",
    stage="local",
    tier="standard",
    requires=("burn.device",),
    disturbs=True,
)

LAUNCH_SLOW = "look at the CPU governor, other load and the driver settings near {0}"


def judge_launch(burn: Burn | None) -> Verdict:
    """Hold the time from call to result against the others'."""
    return held(burn, ("launch_us",), what="kernel launch", advice=LAUNCH_SLOW)


def test_burn_launch(node: Node, conclude: Conclude) -> None:
    """Every device starts its smallest kernel as soon as its peers: slow CPUs and drivers show."""
    conclude(judge_launch(node.burn))


PCIE = Check(
    "burn.pcie",
    stage="local",
    tier="standard",
    requires=("burn.device",),
    disturbs=True,
)

PCIE_SLOW = "look at PCIe generation and width of {0} under load, its slot or riser, ACS and IOMMU"


def judge_pcie(burn: Burn | None) -> Verdict:
    """Hold both directions against GPUs with as near a side of the host."""
    return held(burn, ("h2d_gbs", "d2h_gbs"), what="host copies", advice=PCIE_SLOW)


def test_burn_pcie(node: Node, conclude: Conclude) -> None:
    """Every GPU talks to the host as fast as its peers, from near and far NUMA sides."""
    conclude(judge_pcie(node.burn))


P2P = Check(
    "burn.p2p",
    stage="local",
    tier="standard",
    requires=("burn.device",),
    disturbs=True,
)

P2P_SLOW = "look at NVLink errors and link counts (nvidia-smi nvlink -s -e) and peer access: {0}"


def judge_p2p(burn: Burn | None) -> Verdict:
    """Hold each way against those joined alike, here and on other nodes."""
    if burn is not None and (burn.state, burn.kind, burn.devices) == ("measured", "cuda", 1):
        return not_run("1 GPU here: no other to copy to")
    return held(burn, ("p2p_gbs",), what="copy", advice=P2P_SLOW)


def test_burn_p2p(node: Node, conclude: Conclude) -> None:
    """Every two GPUs of a node copy to each other as fast as pairs that are joined alike."""
    conclude(judge_p2p(node.burn))


HOST = Check(
    "burn.host",
    stage="local",
    tier="standard",
    requires=("burn.device",),
    disturbs=True,
)

HOST_SLOW = "look at missing or slow DIMMs (dmidecode, EDAC), the CPU governor and other load: {0}"


def judge_host(burn: Burn | None) -> Verdict:
    """Hold each NUMA side against the others that have as many CPUs."""
    return held(
        burn, ("host_copy_gbs", "host_gflops"), what="host memory and CPUs", advice=HOST_SLOW
    )


def test_burn_host(node: Node, conclude: Conclude) -> None:
    """Each side of the host moves and computes as fast as its peers: DIMMs and governors show."""
    conclude(judge_host(node.burn))


NIC = Check(
    "burn.nic",
    stage="local",
    tier="standard",
    requires=("burn.device",),
    disturbs=True,
)

NIC_SLOW = "look at PCIe generation and width of {0}, its firmware, and its error counters"
FAILED = "run ib_write_bw by hand on it, against 127.0.0.1; look at memlock and the port's state"


def judge_nic(burn: Burn | None) -> Verdict:
    """A NIC that cannot be measured is unknown; without perftest nothing is said of any."""
    if burn is not None and burn.state == "measured":
        failed = [one.removeprefix("nic ") for one in burn.troubles if one.startswith("nic ")]
        if burn.nic_absent:
            return not_run(burn.nic_absent)
        verdict = held(burn, ("nic_gbits",), what="loopback", advice=NIC_SLOW)
        if failed and verdict.outcome is not Outcome.FAIL:
            verdict = unknown(f"ib_write_bw failed on {'; '.join(failed)}", advice=FAILED)
        if burn.nics_no_time:
            return replace(verdict, sentence=verdict.sentence + _no_time(burn, len(failed)))
        return verdict
    return held(burn, ("nic_gbits",), what="loopback", advice=NIC_SLOW)


def _no_time(burn: Burn, failed: int) -> str:
    left = burn.nics_no_time
    nics = len(left) + len(burn.of("nic_gbits")) + failed
    return f"; no time for {len(left)} of {nics} NICs: {', '.join(left)}"


def test_burn_nic(node: Node, conclude: Conclude) -> None:
    """Every RDMA NIC carries to itself what its peers do: its slot and its engine, without a cable."""  # noqa: E501  `preflight checks` prints it
    conclude(judge_nic(node.burn))


CHECKS = (GEMM, MEMORY, LAUNCH, PCIE, P2P, HOST, NIC)
