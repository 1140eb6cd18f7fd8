"""The facts of one node that was never there, as whole as the probe tells them of a real one."""

from __future__ import annotations

from msgspec.structs import replace

from preflight.facts.machine import KernelLog, LogLine
from preflight.facts.model import Driver, Facts, Gpu
from preflight.facts.node_network import (
    AcsPort,
    Counter,
    Ethernet,
    GpuDirect,
    Interface,
    Network,
    Resolved,
)
from tests.unit.facts import builders, machines

GPUS = 8
ENVIRONMENT = (
    "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 NCCL_DEBUG=WARN NCCL_IB_HCA=mlx5 NCCL_IB_TIMEOUT=22 "
    "NCCL_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=12 TORCH_NCCL_TRACE_BUFFER_SIZE=2000 "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1"
)
"""What the job sets; all of it reads well."""

_SOUND = Ethernet("full", most_mbits=100000, counters=(Counter("rx_packets", 10**9),))
_LACKS = ("memory_temperature_c", "repair_pending", "fan_pct", "retired_pages")
_SWITCHES = ("0000:05:00.0", "0000:06:00.0", "0000:07:00.0", "0000:08:00.0")


def facts(place: int, name: str, *, nonce: str, master: str, drawing: str, lacking: int) -> Facts:
    """Node `place` of a fleet; `lacking` of its GPUs are gone, and then its matrix is not read."""
    number = GPUS - lacking
    return builders.facts(
        name,
        nonce=nonce,
        driver=Driver(
            "answered",
            version="570.86.15",
            seconds=0.31,
            counted=number,
            init_s=0.2,
            slowest_s=0.01,
            slowest_call="nvmlDeviceGetPciInfo of GPU 2",
        ),
        gpus=tuple(_gpu(place, gpu) for gpu in builders.gpus(number)),
        gpu_pairs=builders.pairs(number),
        network=_network(place, name, master),
        gpudirect=_direct(),
        topo_text=None if lacking else drawing,
        processes=builders.seen(builders.process(), builders.process(4243, state="Z", age_s=0.1)),
        kernel_log=_log(),
        machine=machines.machine(
            serial=f"DGX{place:08}",
            file_systems=(
                machines.file_system(),
                machines.shm(),
                machines.nfs("/data"),
                machines.nfs("/home"),
            ),
        ),
    )


def _gpu(place: int, gpu: Gpu) -> Gpu:
    """Each card has a name of its own, each link an end, and each board something it lacks."""
    ends = tuple(
        replace(link, remote=_SWITCHES[link.link % len(_SWITCHES)]) for link in gpu.links or ()
    )
    health = replace(gpu.health, lacks=_LACKS, retired_pages=None) if gpu.health else None
    uuid = f"GPU-{gpu.index}a7c{place:04x}{gpu.uuid[12:]}"
    return replace(gpu, minor=gpu.index, uuid=uuid, links=ends, health=health)


def _network(place: int, name: str, master: str) -> Network:
    """One interface with an address and one without over each rail; names lead where they ought."""
    own = _address(place)
    rails = tuple(
        Interface(
            f"ib{rail}",
            index=3 + rail,
            up=True,
            operstate="up",
            physical=True,
            mtu=2044,
            speed_mbits=400000,
            carrier_downs=1,
        )
        for rail in range(GPUS)
    )
    eth0 = builders.interface(
        "eth0",
        f"{own}/16",
        f"fe80::{place + 1:x}/64",
        speed_mbits=100000,
        carrier_downs=1,
        ethernet=_SOUND,
    )
    return builders.network(
        eth0,
        *rails,
        own_name=Resolved(name, (own,), seconds=0.001),
        names=(Resolved(master, (_address(0),), seconds=0.001),),
    )


def _address(place: int) -> str:
    return f"10.77.{place // 250}.{place % 250 + 1}"


def _direct() -> GpuDirect:
    ports = tuple(
        AcsPort(f"0000:{rail}{kind}:0{kind}.0", redirects=False)
        for rail in range(GPUS)
        for kind in (0, 1)
    )
    return GpuDirect(peermem=True, open_modules=True, iommu="none", acs=ports, machine="x86_64")


def _log() -> KernelLog:
    """What a healthy boot leaves that names hardware: the drivers' own greetings."""
    greetings = (
        *(f"mlx5_core 0000:{rail}c:00.0: firmware version: 28.39.1002" for rail in range(GPUS)),
        *(
            f"mlx5_core 0000:{rail}c:00.0: Port module event: module 0, Cable plugged"
            for rail in range(GPUS)
        ),
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 235",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15",
    )
    lines = tuple(
        LogLine(text, at_s=2.0 + at / 10, last_s=2.0 + at / 10) for at, text in enumerate(greetings)
    )
    return KernelLog("kmsg", seen=5000, begins_s=0.0, lines=lines)
