"""What the nodes said: the typed facts that checks judge."""

from preflight.facts.model import (
    Driver,
    Extra,
    Facts,
    Gpu,
    GpuPair,
    GpuProcess,
    Mig,
    Nic,
    NicPort,
    NvLink,
    Process,
    Processes,
    Python,
    Rank,
)
from preflight.facts.node import Group, Majority, Net, Node, Reach
from preflight.facts.ports import Attempt, MasterPort, Ports

__all__ = [
    "Attempt",
    "Driver",
    "Extra",
    "Facts",
    "Gpu",
    "GpuPair",
    "GpuProcess",
    "Group",
    "Majority",
    "MasterPort",
    "Mig",
    "Net",
    "Nic",
    "NicPort",
    "Node",
    "NvLink",
    "Ports",
    "Process",
    "Processes",
    "Python",
    "Rank",
    "Reach",
]
