"""Which tool printed a text is told from the text itself: people rename files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from preflight.captured import (
    environment,
    ethernet,
    kernel_log,
    nvidia_smi,
    processes,
    rdma,
    topology,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.captured.captured import Captured

READERS: Final[tuple[Callable[[str], Captured | None], ...]] = (
    nvidia_smi.read,
    topology.read,
    rdma.read,
    topology.read_ibnetdiscover,
    topology.read_ibswinfo,
    ethernet.read_interfaces_json,
    ethernet.read_ethtool,
    processes.read,
    kernel_log.read,
    environment.read,
)
"""The surest first: whose words no other tool prints."""

KINDS: Final = ", ".join((
    *nvidia_smi.KINDS, topology.TOPOLOGY_KIND, *rdma.KINDS, topology.KIND, topology.IBSWINFO_KIND,
    *ethernet.KINDS, ethernet.KIND, *processes.KINDS, kernel_log.KIND,
    *environment.KINDS,
))  # fmt: skip
"""What can be read, for whoever gave something else."""


def captured(text: str) -> Captured | None:
    """Read a text by the first reader whose kind it is; None if it is of no kind that is known."""
    return next((found for reader in READERS if (found := reader(text)) is not None), None)
