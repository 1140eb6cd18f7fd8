"""What to do about a node's last error, and if the samples leave several culprits open."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from preflight.fabric.agent_gathering import OTHER_PLAN

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_ANOTHER_VERSION = (
    "look for another version of preflight installed on {0}, and at its memory (ECC); run again"
)
_NO_ROOM = ("No space left on device", "No usable temporary directory", "Disk quota exceeded")
_NO_CUDA = ("CUDA did not initialise", "CUDA error")
NO_GPU_MEMORY = "CUDA out of memory"
OWN_CAUSES = (NO_GPU_MEMORY, "CUDA error")
"""Errors of a measuring process whose cause is on its own node, whatever the other end does."""

_LOOK_AT_DRIVER = (
    "on {0}: nvidia-smi, and Xids in the kernel log (dmesg); reset the GPU or reboot, run again"
)
_NO_MEMORY = "on {0}: nvidia-smi shows which process holds the GPU's memory; end it, run again"
_BY_SIGKILL = "its measuring process was killed by SIGKILL"
"""A supervisor's message: only the kernel or a privileged user does that."""

_LOOK_FOR_OOM = "look at the kernel log on {0} for out-of-memory kills; make room there, run again"
_TWO = 2
_MAKE_ROOM = "make room in /tmp, /var/tmp and /dev/shm of {0} (df -h, df -i); run again"


def advice_on(name: str, error: str) -> str:
    """Return what the operator must do; "" if the error alone does not say."""
    if error == OTHER_PLAN:
        return _ANOTHER_VERSION.format(name)
    if NO_GPU_MEMORY in error:
        return _NO_MEMORY.format(name)
    if any(each in error for each in _NO_CUDA):
        return _LOOK_AT_DRIVER.format(name)
    return _MAKE_ROOM.format(name) if any(each in error for each in _NO_ROOM) else ""


_PORT = re.compile(r"(?:\bon dev |\bhca )([A-Za-z0-9_.-]+)(?::(\d+))?")
"""NCCL's text on a queue pair and on a completion: misc/ibvwrap.cc, net_ib.cc (2.27 to 2.31)."""

_GID = re.compile(r"\blocal GID index (\d+)")
_CARRIER = re.compile(r"NET/IB ([A-Za-z0-9_.+-]+)( RoCE)?")


def on_port(name: str, error: str, partner: str) -> str:
    """Say where to look after an NCCL error that names an RDMA port; "" if it names none."""
    port = _PORT.search(error)
    if port is None:
        return ""
    device, number = port[1], port[2] or "1"
    gid = _GID.search(error)
    table = f", its GID {gid[1]} (show_gids {device})" if gid else ""
    return (
        f"on {name} look at {device} port {number}: cable, switch port and error counters (rdma "
        f"link show {device}/{number}){table}; at the same port of {partner}; run again"
    )


def ports(nets: Mapping[str, str]) -> str:
    """Say "mlx5_2 on h1 and mlx5_2 on h2"; "" if anything but RDMA carried an end's data.

    `nets`: node name → what carried its data, as in "NET/IB mlx5_2 GDRDMA".
    """
    return " and ".join(f"{carrier[1]} on {name}" for name, carrier in _carriers(nets).items())


def on_slow_ports(nets: Mapping[str, str]) -> str:
    """Say where to look if a rail over RDMA is slow; "" if something else carries it."""
    carriers = _carriers(nets).values()
    if not carriers:
        return ""
    links = [f"rdma link show {carrier[1]}/1" for carrier in carriers]
    counters = [
        f"rdma statistic show link {carrier[1]}/1" if carrier[2] else f"perfquery -C {carrier[1]}"
        for carrier in carriers
    ]
    commands = "; ".join(dict.fromkeys((*links, *counters)))
    return f"check link rate, cable and error counters of {ports(nets)} ({commands}); exclude it"


def _carriers(nets: Mapping[str, str]) -> dict[str, re.Match[str]]:
    """The RDMA device of each node; empty if one of them used something else."""
    found = {name: match for name, net in nets.items() if (match := _CARRIER.match(net))}
    return found if len(found) == len(nets) else {}


def after_signal(error: str) -> str:
    """Return advice, with {0} for the node, on a process that the kernel killed; else ""."""
    return _LOOK_FOR_OOM if _BY_SIGKILL in error else ""


def unresolved_advice(advice: str, among: Collection[str], partners: str) -> str:
    """Say which nodes to exclude if the culprit is one of several: `it` cannot be typed."""
    look = advice.removesuffix("; run again").partition("; exclude it")[0]
    if len(among) < _TWO:
        return advice
    every = "both" if len(among) == _TWO else f"all {len(among)}"
    return f"{look}; exclude {every}, or run again {partners} to tell which it is"


def more_partners(nodes: int, pairs: int) -> str:
    """Say with which nodes or pairs to measure again if these did not settle it."""
    if nodes <= _TWO:
        return "with a third node"
    every = nodes * (nodes - 1) // 2
    return (
        "beside more nodes" if pairs >= every else "with more pairs (--preflight-sweep=exhaustive)"
    )
