"""What the nodes of a group should share, one reading each: a vote finds the odd one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.facts.machine_model import Stack
    from preflight.facts.model import Facts


def kernel(facts: Facts) -> str | None:
    """Its release, as uname says."""
    return facts.kernel or None


def system(facts: Facts) -> str | None:
    """Debian GNU/Linux 12 (bookworm)."""
    return _told(facts, lambda stack: stack.os)


def libc(facts: Facts) -> str | None:
    """What binary wheels are built for: glibc 2.36."""
    return _told(facts, lambda stack: stack.libc)


def cpu(facts: Facts) -> str | None:
    """Architecture and model."""
    return _told(facts, lambda stack: f"{stack.cpu} ({stack.architecture})")


def cpus(facts: Facts) -> str | None:
    """How many are online: a socket may be off, or hyper-threading."""
    return _told(facts, lambda stack: str(stack.cpus_online) if stack.cpus_online else "")


def board(facts: Facts) -> str | None:
    """The product, as its maker calls it."""
    return _told(facts, lambda stack: stack.product)


def bios(facts: Facts) -> str | None:
    """Its version; PCIe and power settings come with it."""
    return _told(facts, lambda stack: stack.bios)


READINGS: dict[str, Callable[[Facts], str | None]] = {
    "kernel": kernel,
    "system": system,
    "C library": libc,
    "CPU": cpu,
    "CPUs online": cpus,
    "machine": board,
    "BIOS": bios,
}
"""By the word that names it in a sentence."""


def _told(facts: Facts, read: Callable[[Stack], str]) -> str | None:
    stack = facts.machine.stack if facts.machine else None
    return (read(stack) or None) if stack is not None else None
