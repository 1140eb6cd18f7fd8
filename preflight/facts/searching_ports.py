"""An InfiniBand port that looks for a partner: the job may have lost a rail, or nobody uses it.

Somebody switches off what is not used, or gives it to Ethernet; an InfiniBand port that is on and
finds nobody is never plainly unused. The one exception is a card's second port, which often has no
cable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from preflight.facts.odd_gpus import Oddity
from preflight.facts.rdma import ENOUGH_ALIKE, active_ports

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.facts.model import Facts
    from preflight.facts.node import Group
    from preflight.facts.rdma import Port

_CABLE: Final = (
    "look at its cable and at the switch port; if it is not used, name those that are (hcas in the "
    "inventory)"
)


def searching(port: Port, ports: Sequence[Port], facts: Facts, group: Group) -> Oddity | None:
    """What is odd about a port that is down, where neither promise nor peers decide."""
    if not _seeks(port):
        return None
    alike = [one for one in ports if one.active or _seeks(one)]
    fabric = [one for one in alike if one.layer == port.layer]
    up = sum(one.active for one in fabric)
    seen = f"{port.name} is {port.words()}"
    if up >= ENOUGH_ALIKE and _second(port, ports):
        return None
    if up:
        said = f"{up} of {len(fabric)} InfiniBand ports are ACTIVE"
        return Oddity(f"{seen}; {said}", _CABLE, grave=False)
    # So many without a cable are no spare ones; of one card beside Ethernet that may well be.
    many = len(fabric) >= ENOUGH_ALIKE
    meant = len(alike) > len(fabric) or idle_everywhere(facts, group)
    all_told = not any(problem.startswith("nics") for problem in facts.problems)
    # A live node's card or two may never have been cabled; somebody's pasted ones are asked about.
    grave = all_told and (many or (_captured(facts) and not meant))
    return Oddity(f"{seen}, and no InfiniBand port is ACTIVE", _CABLE, grave=grave)


def idle_everywhere(facts: Facts, group: Group) -> bool:
    """Whether most nodes of a live group, and enough of them, have no port that is up."""
    if _captured(facts):  # of a fabric that fails, people keep the texts of sick nodes
        return False
    vote = group.majority(active_ports)
    return vote is not None and vote.decides and vote.votes >= ENOUGH_ALIKE and not vote.value


def _captured(facts: Facts) -> bool:
    return not facts.time_s


def _seeks(port: Port) -> bool:
    down = bool(port.state) and not port.active
    return down and port.layer == "infiniband" and port.physical != "DISABLED"


def _second(port: Port, ports: Sequence[Port]) -> bool:
    """Whether another port of the same card is up."""
    return any(one.active and _card(one) == _card(port) for one in ports)


def _card(port: Port) -> str:
    """Where it is plugged in: the ports of newer cards are PCI functions of one slot."""
    path = port.nic.pci_path
    return path[-1].rpartition(".")[0] if path else port.nic.name
