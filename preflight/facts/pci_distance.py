"""How far a GPU is from a NIC or another GPU, in nvidia-smi's words: a far NIC halves a rail.

The rule is nvidia-smi's legend: PIX crosses at most one PCIe bridge or switch, PXB several, PHB
the host bridge they share, NODE two host bridges of one NUMA node, SYS the link between sockets.
A switch shows in sysfs as an upstream and a downstream port, so paths that part one port above
the device still meet in one switch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Distance = Literal["PIX", "PXB", "PHB", "NODE", "SYS", "unknown"]

DISTANCES: Final[tuple[Distance, ...]] = ("PIX", "PXB", "PHB", "NODE", "SYS", "unknown")
"""Near to far."""

_ONE_SWITCH: Final = 2
"""Path elements below the meeting point that one switch accounts for: its port, the device."""


def pci_distance(
    a: Sequence[str] | None, b: Sequence[str] | None, numa_a: int | None, numa_b: int | None
) -> Distance:
    """Distance of two devices from their sysfs paths (root complex first) and NUMA nodes."""
    if not a or not b:
        return "unknown"
    shared = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        shared += 1
    if shared == 0:
        if numa_a is None or numa_b is None:
            return "unknown"
        return "NODE" if numa_a == numa_b else "SYS"
    if shared == 1:
        return "PHB"
    return "PIX" if max(len(a), len(b)) - shared <= _ONE_SWITCH else "PXB"
