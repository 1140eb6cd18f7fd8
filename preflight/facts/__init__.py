"""What the nodes said: the typed facts that checks judge."""

from preflight.facts.decode import Attempt, MasterPort, Ports
from preflight.facts.gpu import GpuHealth
from preflight.facts.machine import KernelLog, LogLine
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
