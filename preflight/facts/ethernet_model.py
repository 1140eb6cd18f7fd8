"""What an Ethernet link agreed on and counted: a cable that lost a pair of wires still works."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from preflight.facts.basics import Count, Line
from preflight.facts.rdma_model import Counter


class Ethernet(Struct, frozen=True, forbid_unknown_fields=True):
    """The link of one network interface, as its driver tells it."""

    duplex: Line = ""
    """ "full" or "half"; "" where it does not tell (down, virtual)."""
    most_mbits: Count | None = None
    """Of the fastest mode that the device supports; 0: it lists none; None: nobody asked it."""
    partner_mbits: Count | None = None
    """Of the fastest mode that the other end offers; None where it does not say."""
    mtu_wanted: Count | None = None
    """What this machine's own configuration asks for; None where none is readable."""
    counters: Annotated[tuple[Counter, ...], Meta(max_length=256)] | None = None
    """Packets and errors that are not zero, by their driver's names; None: could not be read."""

    def counted(self, name: str) -> int:
        """Where a counter stands; 0 also where there is none of that name."""
        return next((one.value for one in self.counters or () if one.name == name), 0)
