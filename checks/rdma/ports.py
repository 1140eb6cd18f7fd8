"""RDMA ports in one form: drivers and tools name the same state in four ways.

A group can vote on each reader below that takes `Facts`; None abstains.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import Final, TypeVar

from msgspec import Struct

from preflight.core.text import natural
from preflight.facts.model import Facts, Nic, NicPort, read_once
from preflight.facts.node import most as majority
from preflight.facts.node_network import Counter, Interface
from preflight.fleet.model import Expected

T = TypeVar("T")

_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_LANES: Final = re.compile(r"\(\s*([0-9]{1,2})X\b")
_LINK_LAYERS: Final = {"ib": "infiniband", "roce": "ethernet"}
SWITCH: Final = "switch"
ADAPTER: Final = "channel adapter"
"""In place of a device's type where a text describes a whole fabric, and not one node."""

ENOUGH_ALIKE: Final = 3
"""Ports of one kind on one node that make a peer group: two against one prove little."""


class Port(Struct, frozen=True, dict=True):
    """One port of one device."""

    nic: Nic
    port: NicPort

    @property
    def name(self) -> str:
        """As rdma(8) writes it: mlx5_0/1."""
        return f"{self.nic.name}/{self.port.port}"

    @cached_property
    def state(self) -> str:
        """ACTIVE, INIT, DOWN, ...; "" where it could not be read."""
        return _word(self.port.state).upper()

    @property
    def physical(self) -> str:
        """LINKUP, POLLING, DISABLED, ...; "" where it could not be read."""
        return re.sub(r"[^A-Z]", "", _word(self.port.phys_state).upper())

    @cached_property
    def active(self) -> bool:
        """Whether data can flow."""
        return self.state.startswith("ACTIVE")

    @cached_property
    def layer(self) -> str:
        """Infiniband or ethernet, in lower case; "" where it is not known."""
        return self.port.link_layer.strip().lower()

    @cached_property
    def gbits(self) -> float | None:
        """Its rate, Gb/s."""
        match = _NUMBER.search(self.port.rate)
        return float(match.group()) if match else None

    @property
    def lanes(self) -> int | None:
        """How many lanes the rate is made of; None where the text does not say."""
        match = _LANES.search(self.port.rate)
        return int(match.group(1)) if match else None

    @property
    def kind(self) -> tuple[str, str]:
        """The key that two ports of one node must share to be peers."""
        return self.layer, self.nic.kind

    @property
    def of_fabric(self) -> bool:
        """Whether it is in a list of a whole fabric, which does not say what each port is for."""
        return self.nic.hca_type in (SWITCH, ADAPTER)

    @property
    def nonzero(self) -> tuple[Counter, ...]:
        """Its counters that are not zero; none also where they could not be read."""
        return self.port.counters.nonzero if self.port.counters else ()

    @property
    def seen(self) -> str:
        """Its name and state: "mlx5_0/1 is DOWN (Polling)"."""
        return f"{self.name} is {self.words()}"

    def words(self) -> str:
        """Its state for a sentence: "DOWN (Polling)"."""
        physical = _word(self.port.phys_state)
        return f"{self.state} ({physical})" if physical else self.state


@read_once
def ports_of(facts: Facts) -> tuple[Port, ...]:
    """All ports, mlx5_2 before mlx5_10."""
    nics = sorted(facts.nics or (), key=lambda nic: natural(nic.name))
    return tuple(Port(nic, port) for nic in nics for port in nic.ports)


def is_rail(port: Port, expected: Expected) -> bool:
    """Whether the inventory expects this port: by name, or else by link layer."""
    if expected.hcas is not None:
        return port.nic.name in expected.hcas
    return not port.layer or expected_layer(expected) in ("", port.layer)


def expected_layer(expected: Expected) -> str:
    """The link layer of the rails; "" where the inventory does not say."""
    return _LINK_LAYERS[expected.nic_link] if expected.nic_link else ""


def netdev_of(port: Port, facts: Facts) -> Interface | None:
    """The network interface over a port."""
    matches = (interface for interface in facts.interfaces if interface.name == port.port.netdev)
    return next(matches, None) if port.port.netdev else None


def nic_names(facts: Facts) -> tuple[str, ...] | None:
    """Names of the devices."""
    return None if facts.nics is None else tuple(sorted(nic.name for nic in facts.nics))


def active_ports(facts: Facts) -> tuple[str, ...] | None:
    """Names of the ports that are up."""
    return None if facts.nics is None else tuple(p.name for p in ports_of(facts) if p.active)


def rates(facts: Facts) -> tuple[tuple[str, float], ...] | None:
    """(port, Gb/s) of the ports that are up."""
    pairs = [(p.name, p.gbits) for p in ports_of(facts) if p.active]
    known = tuple((name, gbits) for name, gbits in pairs if gbits is not None)
    return known if known and len(known) == len(pairs) else None


def mtus(facts: Facts) -> tuple[tuple[str, int], ...] | None:
    """(port, MTU of its Ethernet interface) of the ports that are up."""
    pairs = tuple(
        (port.name, device.mtu)
        for port in ports_of(facts)
        if port.active and port.layer == "ethernet"
        if (device := netdev_of(port, facts)) is not None and device.mtu is not None
    )
    return pairs or None


def firmwares(facts: Facts) -> tuple[tuple[str, str], ...] | None:
    """(chip and board, firmware) of every device that reports it, each once."""
    versions = {(chip(nic), nic.firmware) for nic in facts.nics or () if nic.firmware}
    return tuple(sorted(versions)) or None


def chip(nic: Nic) -> str:
    """The key that devices must share for their firmware to be comparable.

    The first number of mlx5's firmware is the chip: 20 ConnectX-6, 28 ConnectX-7, 32 BlueField-3.
    """
    return " ".join(filter(None, (nic.kind, nic.firmware.partition(".")[0])))


def most_common(values: Iterable[T]) -> T | None:
    """What more than half of a peer group, and enough of them, share."""
    return majority(values, ENOUGH_ALIKE)


@lru_cache(maxsize=4096)  # the same few words on every node
def _word(text: str) -> str:
    """The word after sysfs's number: "4: ACTIVE" is ACTIVE."""
    return text.rpartition(":")[2].strip()
