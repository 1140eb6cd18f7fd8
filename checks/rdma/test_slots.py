"""Whether a NIC has all its PCIe lanes at full speed: half a slot is half a rail, without an error.

What should be is told by most nodes of the group, else by the other NICs of that board on the node,
else by the card itself; and whatever they say, a link must carry what its ports can.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from preflight.facts.nic_log import events
from preflight.facts.odd_gpus import Oddity
from preflight.facts.peers import decided
from preflight.facts.rdma import Port, most

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from preflight.facts.model import Facts, Nic
    from preflight.facts.node import Group

_RESEAT: Final = (
    "drain; reseat {0} or its riser, compare slot and BIOS (width, bifurcation) with a sound node"
)
_GENERATIONS: Final = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""By GT/s."""

_SERIAL_8B10B: Final = 8.0
"""Below this, GT/s, ten bits carry eight."""


def odd_slots(facts: Facts, group: Group) -> Iterator[Oddity]:
    """NICs with fewer lanes or a lower generation than they should have, or than ports need."""
    nics = [nic for nic in facts.nics or () if nic.pcie is not None and nic.pcie.width]
    for nic in nics:
        if (odd := _unlike(nic, nics, group)) or (odd := _too_little(nic)):
            yield odd
    yield from _logged(facts, {bus for nic in nics if (bus := _bus(nic))})


def words(nic: Nic) -> str:
    """PCIe 5 x16."""
    return _spelled(_link(nic))


@cache
def link_of(name: str) -> Callable[[Facts], tuple[float, int] | None]:
    """The reader of (GT/s, lanes) of a NIC, for a vote of a group: one for all nodes."""

    def read(facts: Facts) -> tuple[float, int] | None:
        return next((_link(nic) for nic in facts.nics or () if nic.name == name), None)

    return read


def _unlike(nic: Nic, nics: list[Nic], group: Group) -> Oddity | None:
    mine = _link(nic)
    if mine is None or nic.pcie is None:
        return None
    vote = decided(group.majority(link_of(nic.name)))
    alike = most(link for n in nics if n.board == nic.board and (link := _link(n)))
    own = (nic.pcie.gts_max or 0.0, nic.pcie.width_max or 0)
    grave, expected, origin = True, alike, "on the other NICs of its kind"
    if vote is not None:
        expected = vote.value
        origin = f"on {vote.votes} of {vote.of} nodes of group {group.name}"
    elif expected is None:
        # A slot may be wired so, or a virtual machine show it so: only peers can tell.
        grave, expected, origin = False, own, "is what the card can do"
    if expected[0] <= mine[0] and expected[1] <= mine[1]:
        return None
    sentence = f"{nic.name}: {_spelled(mine)}, {_spelled(expected)} {origin}"
    return Oddity(sentence, _RESEAT.format(nic.name), grave=grave)


def _too_little(nic: Nic) -> Oddity | None:
    """Whatever all nodes have: ports that are faster than their slot never get there."""
    mine = _link(nic)
    ports = [Port(nic, port) for port in nic.ports]
    needed = max((port.gbits or 0.0 for port in ports if port.active), default=0.0)
    if mine is None or gbits(*mine) >= needed:
        return None
    carried = f"{nic.name}: {_spelled(mine)} carries {gbits(*mine):.0f} Gb/s"
    return Oddity(f"{carried}, its port {needed:g}", _RESEAT.format(nic.name), grave=False)


def _logged(facts: Facts, read: set[str]) -> Iterator[Oddity]:
    """What the driver said as it started, of NICs whose link nothing else tells."""
    said = events(facts.kernel_log.lines) if facts.kernel_log else ()
    narrow = {one.who: one for one in said if one.kind == "narrow" and one.who not in read}
    for bus, one in narrow.items():
        if not _enough(one.have_gbits, bus, facts):
            sentence = f"{bus}: its PCIe link is narrower than it can use ({one.note})"
            yield Oddity(sentence, _RESEAT.format(bus), grave=False)


def _enough(have_gbits: float, bus: str, facts: Facts) -> bool:
    """Whether the slot carries the port's own rate; unknown rates are told."""
    nics = [nic for nic in facts.nics or () if _bus(nic) == bus]
    rates = [Port(nic, port).gbits or 0.0 for nic in nics for port in nic.ports]
    return any(rates) and have_gbits >= max(rates)


def gbits(gts: float, width: int) -> float:
    """What a link carries one way, Gb/s, without headers: 128 of 130 bits, before that 8 of 10."""
    return gts * width * (128 / 130 if gts >= _SERIAL_8B10B else 0.8)


def _link(nic: Nic) -> tuple[float, int] | None:
    told = nic.pcie
    return (told.gts, told.width) if told is not None and told.gts and told.width else None


def _spelled(link: tuple[float, int] | None) -> str:
    if link is None:
        return "no PCIe link told"
    return f"PCIe {_GENERATIONS.get(link[0], f'{link[0]:g} GT/s')} x{link[1]}"


def _bus(nic: Nic) -> str:
    return nic.pci_path[-1] if nic.pci_path else ""
