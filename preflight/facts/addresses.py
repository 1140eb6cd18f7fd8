"""Addresses as nodes write them: one that is none is nobody's, and no reason to break."""

from __future__ import annotations

from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from preflight.facts.model import Facts

Interface = IPv4Interface | IPv6Interface


def parsed(text: str) -> Interface | None:
    """An address with or without the length of its network; None for anything else."""
    try:
        return ip_interface(text)
    except ValueError:
        return None


def is_loopback(text: str) -> bool:
    """Whether only this machine itself is there: 127.0.1.1, ::1."""
    found = parsed(text)
    return found is not None and found.ip.is_loopback


def family(text: str) -> int:
    """4 or 6; 0 for what is no address."""
    found = parsed(text)
    return 0 if found is None else found.version


def addresses_of(facts: Facts) -> set[str]:
    """All addresses of a node but its loopback's."""
    interfaces = (facts.network.interfaces if facts.network else None) or ()
    its = (each.partition("/")[0] for one in interfaces for each in one.addresses)
    return {each for each in its if not is_loopback(each)}
