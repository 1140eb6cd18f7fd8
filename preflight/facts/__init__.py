"""What a node sends: the typed facts that checks judge, and their decoder."""

from preflight.facts.gpu import GpuHealth
from preflight.facts.machine import KernelLog, LogLine
from preflight.facts.model import Driver, Extra, Facts, Gpu, Nic, Ports
from preflight.facts.node import Clock, Group, Majority, Net, Node, Reach

__all__ = [
    "Clock", "Driver", "Extra", "Facts", "Gpu", "GpuHealth", "Group", "KernelLog", "LogLine",
    "Majority", "Net", "Nic", "Node", "Ports", "Reach",
]  # fmt: skip
