"""What the nodes said: the typed facts that checks judge."""

from preflight.facts.gpu import GpuHealth
from preflight.facts.machine import KernelLog, LogLine
from preflight.facts.model import (
    Attempt,
    Driver,
    Extra,
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
from preflight.facts.node import Clock, Group, Majority, Net, Node, Reach

__all__ = [
    "Attempt",
    "Clock",
    "Driver",
    "Extra",
    "Facts",
    "Gpu",
    "GpuHealth",
    "GpuPair",
    "GpuProcess",
    "Group",
    "KernelLog",
    "LogLine",
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
