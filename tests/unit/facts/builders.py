"""Facts of made-up nodes, so that a test states only what matters to it."""

from __future__ import annotations

from functools import cache

from msgspec.structs import replace

from preflight.facts.machine import KernelLog, Software, Torch
from preflight.facts.model import (
    WIRE,
    Attempt,
    Driver,
    Facts,
    Gpu,
    GpuPair,
    GpuProcess,
    MasterPort,
    Mig,
    Nic,
    NicPort,
    NvLink,
    Ports,
    Process,
    Processes,
    Python,
    Rank,
)
from preflight.facts.node import Group, Net
from preflight.facts.node_network import (
    Counters,
    Gid,
    GpuDirect,
    Interface,
    Network,
    PcieLink,
    Resolved,
)
from tests.unit.facts.gpu_readings import health
from tests.unit.facts.machines import machine

ALICE = "alice"


def links(up: int, down: int = 0) -> tuple[NvLink, ...]:
    """NVLinks into a switch: the live ones first."""
    return tuple(
        NvLink(link=number, up=number < up, remote_kind="switch") for number in range(up + down)
    )


def gpu(index: int = 0, **changes: object) -> Gpu:
    """One H100 of eight: four per socket, its own PCIe switch, 18 NVLinks into the NVSwitches."""
    return replace(_healthy_gpu(index), **changes)


@cache
def _healthy_gpu(index: int) -> Gpu:
    socket = index // 4
    return Gpu(
        index=index,
        uuid=f"GPU-{index}a7c0000-0000-4000-8000-00000000000{index}",
        name="NVIDIA H100 80GB HBM3",
        bus_id=f"00000000:{index + 1}B:00.0",
        memory_total_mib=81559,
        memory_used_mib=4,
        mig_enabled=False,
        links=links(18),
        processes=(),
        pci_path=(
            f"pci0000:{socket}{index}",
            f"0000:{index}0:01.0",
            f"0000:{index}1:00.0",
            f"0000:{index}2:00.0",
            f"0000:{index + 1}b:00.0",
        ),
        numa=socket,
        health=health(),
        compute="9.0",
    )


def gpus(number: int = 8) -> tuple[Gpu, ...]:
    """The GPUs of a healthy node."""
    return tuple(gpu(index) for index in range(number))


def nic(index: int, **changes: object) -> Nic:
    """The NIC of rail `index`: behind the same PCIe switch as that GPU."""
    return replace(_healthy_nic(index), **changes)


@cache
def _healthy_nic(index: int) -> Nic:
    return Nic(
        name=f"mlx5_{index}",
        pci_path=(*(gpu(index).pci_path or ())[:3], f"0000:{index}2:01.0", f"0000:{index}c:00.0"),
        numa=index // 4,
        ports=(rdma_port(),),
        firmware="28.39.1002",
        board="MT_0000000838",
        hca_type="MT4129",
        relaxed_ordering=True,
        pcie=PcieLink(32.0, 16, 32.0, 16),
    )


def rdma_port(**changes: object) -> NicPort:
    """An InfiniBand port that is up at 400 Gb/s and has counted nothing."""
    one = NicPort(
        port=1,
        state="4: ACTIVE",
        phys_state="5: LinkUp",
        rate="400 Gb/sec (4X NDR)",
        link_layer="InfiniBand",
        counters=Counters(read=20, apart_s=0.25),
        gids=(Gid(0, "IB/RoCE v1", "fe80:0000:0000:0000:1070:fd03:0012:3456"),),
    )
    return replace(one, **changes)


def interface(name: str = "eth0", *addresses: str, **changes: object) -> Interface:
    """A physical interface that is up."""
    one = Interface(
        name, index=2, up=True, operstate="up", physical=True, mtu=1500, addresses=addresses
    )
    return replace(one, **changes)


LOOPBACK = Interface(
    "lo", index=1, up=True, operstate="unknown", loopback=True, addresses=("127.0.0.1/8", "::1/128")
)


def network(*interfaces: Interface, **changes: object) -> Network:
    """What a node tells of its network: the loopback, and eth0 unless others are given."""
    given = interfaces or (interface("eth0", "10.77.0.1/24"),)
    found = Resolved("h1", ("10.77.0.1",))
    one = Network(
        interfaces=(LOOPBACK, *given), ephemeral=(32768, 60999), own_name=found, names=(found,)
    )
    return replace(one, **changes)


def pairs(number: int = 8) -> tuple[GpuPair, ...]:
    """What NVML says of every two GPUs of a healthy node."""
    return tuple(
        GpuPair(a, b, "NODE" if a // 4 == b // 4 else "SYS", "ok", "ok")
        for a in range(number)
        for b in range(a + 1, number)
    )


def facts(host: str = "h1", **changes: object) -> Facts:
    """The answer of a healthy, idle node: 8 x H100 with NVLink and a NIC per rail."""
    return replace(_healthy_facts(), host=host, **changes)


@cache
def _healthy_facts() -> Facts:
    return Facts(
        wire=WIRE,
        nonce="n",
        host="h1",
        time_s=0,
        boot_s=0,
        seconds=0.1,
        user="root",
        root=True,
        kernel="6.1",
        python=Python("3.11.2", "/usr/bin/python3"),
        driver=Driver("answered", version="570.86.15", init_s=0.2, slowest_s=0.01),
        gpus=gpus(),
        gpu_pairs=pairs(),
        nics=tuple(nic(index) for index in range(8)),
        network=network(),
        gpudirect=GpuDirect(peermem=True, iommu="none", acs=(), machine="x86_64"),
        processes=Processes(seen=100, unreadable=0, notable=()),
        kernel_log=KernelLog("kmsg", seen=5000),
        software=software(),
        machine=machine(),
        nccl_conf=(),
    )


def software(**changes: object) -> Software:
    """A torch for H100 with its NVIDIA wheels."""
    archs = ("compute_90", "sm_75", "sm_80", "sm_86", "sm_90")
    torch = Torch("2.6.0+cu124", cuda="12.4", archs=archs)
    return replace(Software(torch=torch, nccl="2.21.5", cudnn="9.1.0.70"), **changes)


def with_gpu(index: int, base: Facts | None = None, **changes: object) -> Facts:
    """A healthy node but for one GPU."""
    healthy = base or facts()
    changed = tuple(
        replace(one, **changes) if one.index == index else one for one in healthy.gpus or ()
    )
    return replace(healthy, gpus=changed)


def group(*members: Facts) -> Group:
    """The nodes h1, h2, ... of group "train"."""
    return Group("train", {f"h{number}": one for number, one in enumerate(members, 1)})


def process(pid: int = 4242, **changes: object) -> Process:
    """A harmless process of alice whose parent is her shell."""
    one = Process(
        pid=pid,
        ppid=4000,
        state="S",
        user=ALICE,
        command="python train.py",
        age_s=7200,
        parent_command="-bash",
    )
    return replace(one, **changes)


def rank(pid: int = 4242, *, orphan: bool = False, **changes: object) -> Process:
    """A rank that torchrun started; an orphan's torchrun is gone and init has it."""
    parent = "/sbin/init" if orphan else "/usr/bin/python3 /usr/local/bin/torchrun train.py"
    one = process(
        pid,
        ppid=1 if orphan else 4000,
        parent_command=parent,
        rank=Rank(master_port="29500", elastic_run_id="none"),
    )
    return replace(one, **changes)


def holder(pid: int, mib: int, **changes: object) -> Process:
    """A process with GPU memory."""
    return process(pid, **{"gpu_mib": mib, "holds_gpu": True, **changes})


def seen(*notable: Process, scheduler: str = "none", unreadable: int = 0) -> Processes:
    """What the probe saw."""
    return replace(Processes(100, unreadable, notable), scheduler=scheduler)


def charged(index: int, used_mib: int, *charges: GpuProcess) -> Gpu:
    """A GPU with memory in use, and the processes to which NVML charges it."""
    return gpu(index, memory_used_mib=used_mib, processes=charges)


def mig_gpu(index: int, instances: int) -> Gpu:
    """A GPU in MIG mode."""
    uuids = (
        f"MIG-{index}{number}c0ffee-0000-4000-8000-000000000000" for number in range(instances)
    )
    return gpu(index, mig_enabled=True, mig=tuple(Mig(uuid) for uuid in uuids), links=links(0, 18))


def attempt(target: str, result: str = "ok", *, kind: str = "data", port: int = 40001) -> Attempt:
    """One connection."""
    return replace(Attempt(target, port, "data", "ok"), kind=kind, result=result)


def ports(*attempts: Attempt, master: MasterPort | None = None) -> Ports:
    """One node's report of the port stage."""
    return Ports(WIRE, "n", "h", 0.1, master, attempts)


def nets(results: dict[tuple[str, str], str], names: str = "h1 h2 h3 h4") -> dict[str, Net]:
    """Every node's view of a port stage in which all partner with all; h1 is the master.

    `results` holds what did not succeed, by (from, to); the key (from, "master") is for the
    master port alone.
    """
    nodes = names.split()
    master, tried = nodes[0], {}
    for node in nodes:
        others = [other for other in nodes if other != node]
        both = {other: results.get((node, other), "ok") for other in others}
        tried[node] = [attempt(other, result) for other, result in both.items()]
        if node != master:
            result = results.get((node, "master"), both[master])
            tried[node].append(attempt(master, result, kind="master", port=29500))
    at_master = tuple((n, one) for n in nodes for one in tried[n] if one.kind == "master")
    aimed = {
        node: tuple((n, one) for n in nodes for one in tried[n] if one.target == node)
        for node in nodes
    }
    return {
        node: Net(
            own=ports(*tried[node], master=free_port() if node == master else None),
            trouble="",
            master=master,
            is_master=node == master,
            master_port_origin="torchrun's default",
            to_me=aimed[node],
            others_to_master=at_master,
            others_to=aimed,
        )
        for node in nodes
    }


def free_port(**changes: object) -> MasterPort:
    """A master port that could be bound and was free again afterwards."""
    return replace(MasterPort(29500, bound=True, free_again=True), **changes)
