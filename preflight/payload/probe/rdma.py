"""One port of an RDMA device: whether it is up, what it has counted, and its GID table."""

from __future__ import annotations

import os

from .text import attempt, clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Counts = dict[str, int]

ERRORS = {
    # InfiniBand Architecture, PortCounters; in sysfs under these names for every driver.
    "counters": (
        "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors",
        "port_rcv_remote_physical_errors", "local_link_integrity_errors",
        "excessive_buffer_overrun_errors", "port_xmit_discards",
    ),
    # mlx5's, as its driver documents them.
    "hw_counters": (
        "packet_seq_err", "out_of_sequence", "out_of_buffer", "local_ack_timeout_err",
        "implied_nak_seq_err", "rnr_nak_retry_err", "roce_adp_retrans", "roce_adp_retrans_to",
        "roce_slow_restart", "req_cqe_error", "resp_cqe_error", "rx_icrc_encapsulated",
    ),
}  # fmt: skip

GIDS = 32
"""Entries looked at: every address of the interface takes two, and indexes in use are low."""

PORTS = 16


def read_all(folder: str) -> list[dict[str, Any]]:
    """Return the ports of the device whose folder in sysfs this is."""
    return [_port(number, f"{folder}/ports/{number}", folder) for number in _numbers(folder)]


def counted(root: str, folder: str) -> dict[int, Counts]:
    """Return the error counters of each port, as far as there are any."""
    found: dict[int, Counts] = {}
    for number in _numbers(folder):
        port = f"{folder}/ports/{number}"
        read: Counts = {}
        for kind, wanted in ERRORS.items():
            for name in wanted:
                _take(read, name, f"{port}/{kind}/{name}")
        netdev = _netdev(number, port, folder)
        if netdev:
            _take(read, "carrier_downs", f"{root}/class/net/{netdev}/carrier_down_count")
        found[number] = read
    return found


def compare(before: Counts, after: Counts, apart_s: float) -> dict[str, Any] | None:
    """Return a `Counters` document of two looks; None where nothing could be read."""
    if not after:
        return None
    nonzero = [
        {"name": name, "value": value, "moved": max(0, value - before.get(name, value))}
        for name, value in sorted(after.items())
        if value
    ]
    return {"read": len(after), "apart_s": apart_s, "nonzero": nonzero}


def names(folder: str) -> list[str]:
    """Return what a folder holds, sorted; [] where it cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _numbers(folder: str) -> list[int]:
    return sorted(int(port) for port in names(folder + "/ports") if port.isdigit())[:PORTS]


def _port(number: int, folder: str, device: str) -> dict[str, Any]:
    layer = attempt(folder + "/link_layer")
    return {
        "port": number,
        "state": attempt(folder + "/state"),
        "phys_state": attempt(folder + "/phys_state"),
        "rate": attempt(folder + "/rate"),
        "link_layer": layer,
        "netdev": clean(_netdev(number, folder, device)),
        "gids": _gids(folder, 1 if layer == "InfiniBand" else GIDS),
    }


def _netdev(number: int, port: str, device: str) -> str:
    """Return the interface over a port: that of its first GID, else the one numbered like it."""
    told = attempt(port + "/gid_attrs/ndevs/0")
    if told:
        return told
    found = names(device + "/device/net")
    for name in found:
        at = attempt(f"{device}/device/net/{name}/dev_port")
        if at == str(number - 1):
            return name
    return found[0] if len(found) == 1 and number == 1 else ""


def _gids(folder: str, most: int) -> list[dict[str, Any]] | None:
    indexes = sorted(int(name) for name in names(folder + "/gids") if name.isdigit())
    if not indexes:
        return None
    found = []
    for index in indexes[:most]:
        gid = attempt(f"{folder}/gids/{index}")
        if gid.strip("0:"):
            kind = attempt(f"{folder}/gid_attrs/types/{index}")
            found.append({"index": index, "kind": kind, "gid": gid})
    return found


def _take(counts: Counts, name: str, path: str) -> None:
    text = attempt(path)
    if text.isdigit():
        counts[name] = min(int(text), 2**53)
