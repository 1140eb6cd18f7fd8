"""PCI distances follow nvidia-smi's legend: a wrong one sends a person to a healthy slot."""

from __future__ import annotations

import pytest

from preflight.facts.node import pci_distance

ROOT, PORT = "pci0000:15", "0000:15:01.0"
UP, DOWN_A, DOWN_B = "0000:16:00.0", "0000:17:00.0", "0000:17:01.0"


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((ROOT, PORT, UP, DOWN_A, "gpu"), (ROOT, PORT, UP, DOWN_B, "nic"), "PIX"),
        ((ROOT, PORT, "card.0"), (ROOT, PORT, "card.1"), "PIX"),
        ((ROOT, PORT, UP, DOWN_A, "up2", "down", "gpu"), (ROOT, PORT, UP, DOWN_B, "nic"), "PXB"),
        ((ROOT, PORT, UP, DOWN_A, "gpu"), (ROOT, "0000:15:02.0", "nic"), "PHB"),
        ((ROOT, "0000:15:05.0"), (ROOT, "0000:15:06.0"), "PHB"),
        ((ROOT, PORT, "gpu"), ("pci0000:37", "0000:37:01.0", "nic"), "NODE"),
    ],
    ids=["one-switch", "two-functions", "two-switches", "host-bridge", "virtual-flat", "numa-node"],
)
def test_distance_on_one_numa_node(a: tuple[str, ...], b: tuple[str, ...], expected: str) -> None:
    """The deeper two paths part, the nearer the devices, whichever is asked about first."""
    assert pci_distance(a, b, 0, 0) == expected
    assert pci_distance(b, a, 0, 0) == expected


def test_two_sockets_are_sys_and_an_unread_path_is_unknown() -> None:
    """Another NUMA node is SYS; without a path, or a NUMA node where it decides, unknown."""
    a, b = (ROOT, PORT, "gpu"), ("pci0000:97", "0000:97:01.0", "nic")
    assert pci_distance(a, b, 0, 1) == "SYS"
    assert pci_distance(a, b, 0, None) == "unknown"
    assert pci_distance(None, b, 0, 0) == "unknown"
