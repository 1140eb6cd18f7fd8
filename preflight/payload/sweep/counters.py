"""What NICs and the kernel count when a link loses bits: a cable confesses here first.

Only counters that mean trouble are read; those of congestion and of plain traffic are not.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

RDMA = {
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

_ETHERNET = (
    "statistics/rx_errors",
    "statistics/rx_crc_errors",
    "statistics/tx_errors",
    "statistics/tx_carrier_errors",
    "carrier_down_count",
)
_TCP = {"/proc/net/snmp": {"Tcp: RetransSegs": "retrans_segs"},
        "/proc/net/netstat": {"TcpExt: TCPTimeouts": "timeouts"}}  # fmt: skip


def rdma(root: str, devices: Collection[str] | None) -> dict[str, float]:
    """Read the ports of these RDMA devices (None: of all) under `root`/class/infiniband."""
    found: dict[str, float] = {}
    folder = root + "/class/infiniband"
    for device in _names(folder):
        if devices is not None and device not in devices:
            continue
        for port in _names(f"{folder}/{device}/ports"):
            for kind, names in RDMA.items():
                base = f"{folder}/{device}/ports/{port}/{kind}"
                found.update(_read_all(f"{device}/{port}", base, names))
    return found


def ethernet(root: str, interface: str) -> dict[str, float]:
    """Read an interface's errors; of its drops nothing is proven."""
    return dict(_read_all(interface, f"{root}/class/net/{interface}", _ETHERNET))


def tcp() -> dict[str, float]:
    """Read how often this host (its network namespace) had to send something twice."""
    found: dict[str, float] = {}
    for path, wanted in _TCP.items():
        for name, value in table(_text(path)):
            if name in wanted:
                found["tcp " + wanted[name]] = value
    return found


def table(text: str) -> Iterator[tuple[str, float]]:
    """Read the kernel's two-line tables: names, then values, each after the same word."""
    lines = text.splitlines()
    for names, values in zip(lines[::2], lines[1::2]):  # noqa: B905 - Python 3.8
        group, *columns = names.split()
        for column, value in zip(columns, values.split()[1:]):  # noqa: B905 - Python 3.8
            if value.isdigit():
                yield f"{group} {column}", float(value)


def _read_all(part: str, base: str, names: Collection[str]) -> Iterator[tuple[str, float]]:
    for name in names:
        text = _text(f"{base}/{name}").strip()
        if text.isdigit():
            yield f"{part} {name.rpartition('/')[2]}", float(text)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _text(path: str) -> str:
    """The content; nothing where there is none: a driver has what it has."""
    try:
        with open(path, "rb", buffering=0) as file:
            return (file.read(65536) or b"").decode("ascii", "replace")
    except OSError:
        return ""
