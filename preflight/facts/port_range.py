"""Ports that the kernel gives away: too few for a large job, or the master's own among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.facts.limits import limit
from preflight.facts.odd_gpus import Oddity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.facts.network_model import Network


def risky_ports(network: Network, master_port: int | None, origin: str) -> Iterator[Oddity]:
    """What is wrong with the range. `master_port`: on the master alone."""
    if network.ephemeral is None:
        return
    low, high = network.ephemeral
    least = int(limit("ephemeral_ports"))
    free = max(0, high - low + 1)
    if free < least:
        sentence = f"{free} ports for outgoing connections ({low}-{high}), {least} are the least"
        advice = "sysctl -w net.ipv4.ip_local_port_range='32768 60999'; keep it so"
        yield Oddity(f"{sentence} for a large job", advice, grave=False)
    if master_port is None or not low <= master_port <= high:
        return
    if is_reserved(master_port, network.reserved):
        return
    yield Oddity(
        f"port {master_port} ({origin}) is inside the ephemeral range {low}-{high}: "
        "any outgoing connection may take it before the job does",
        f"choose a --master-port below {low}, such as 29500, or reserve it: "
        f"sysctl -w net.ipv4.ip_local_reserved_ports={master_port}",
        grave=False,
    )


def is_reserved(port: int, reserved: str) -> bool:
    """Whether a port is in the kernel's list, such as "29500-29510,30000"."""
    for part in reserved.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and int(first) <= port <= int(last if last.isdecimal() else first):
            return True
    return False
