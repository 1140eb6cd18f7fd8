"""What the RDMA ports have carried and lost so far; a NIC may hang, so in a child only."""

from __future__ import annotations

import os

from probe import rdma_port
from probe.text import attempt, clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST = 256
_WORD = 4
"""Bytes: port_xmit_data and port_rcv_data count words (InfiniBand Architecture, PortCounters)."""


def look(root: str) -> dict[str, dict[str, Any]]:
    """Return one `PortLook` for each port under `root`/class/infiniband, by "mlx5_0/1"."""
    folder = root + "/class/infiniband"
    try:
        devices = sorted(os.listdir(folder))[:MOST]
    except OSError:
        return {}
    found: dict[str, dict[str, Any]] = {}
    for device in devices:
        for number, counts in rdma_port.counted(root, f"{folder}/{device}").items():
            name = clean(f"{device}/{number}")
            found[name] = _port(name, f"{folder}/{device}/ports/{number}", counts)
    return found


def _port(name: str, folder: str, counts: dict[str, int]) -> dict[str, Any]:
    state = attempt(folder + "/state")
    return {
        "name": name,
        "up": "ACTIVE" in state if state else None,
        "sent": _bytes(folder + "/counters/port_xmit_data"),
        "received": _bytes(folder + "/counters/port_rcv_data"),
        "lost_link": counts.get("link_downed", counts.get("carrier_downs")),
        "errors": counts,
    }


def _bytes(path: str) -> int:
    text = attempt(path)
    return min(int(text) * _WORD, 2**53) if text.isdigit() else 0


def moved(
    before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return a `PortLook` of the document for each port: what moved between two looks."""
    return [_moved(before.get(name, now), now) for name, now in sorted(after.items())]


def _moved(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    grown = {
        name: value - before["errors"].get(name, value) for name, value in now["errors"].items()
    }
    return {
        "name": now["name"],
        "up": now["up"],
        "sent": min(2**53, max(0, now["sent"] - before["sent"])),
        "received": min(2**53, max(0, now["received"] - before["received"])),
        "errors": {name: value for name, value in grown.items() if value > 0},
        "lost_link": now["lost_link"],
    }
