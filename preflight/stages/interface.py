"""Whether the nodes have the interface that was named: a setting of all is no fault of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.errors import UsageError
from preflight.fleet.interface import OPTION
from preflight.fleet.nodeset import fold

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.fabric.samples import Sweep
    from preflight.facts.model import Facts
    from preflight.facts.network_model import Interface
    from preflight.fleet.model import Fleet

_TOLD = 64
"""A node tells of so many interfaces at most: what is not among them may be there all the same."""

_SHOWN = 8
_LEAVE_AWAY = "or leave it away: each node then takes its way to the others"


class Strangers(Struct, frozen=True, kw_only=True):
    """The nodes without the interface, and what is said of all of them alike."""

    nodes: tuple[str, ...] = ()
    reason: str = ""
    advice: str = ""


def strangers(fleet: Fleet, facts: Mapping[str, Facts]) -> Strangers:
    """Find the nodes that lack it; nobody where none was named, or who did not tell.

    UsageError (exit 4) where no node that told has it: then it is the setting that is wrong.
    """
    wanted = fleet.interface
    told = {name: has for name, one in facts.items() if (has := _interfaces(one))}
    without = tuple(
        name
        for name, has in told.items()
        if len(has) < _TOLD and wanted not in [one.name for one in has]
    )
    if wanted is None or not without:
        return Strangers()
    there = _shown([one for name in without for one in told[name]])
    if len(without) == len(told):
        raise UsageError(
            f"{fleet.interface_origin} = {wanted}: no node has such an interface, "
            f"{fold(without)} has {there}; give one that all nodes have, {_LEAVE_AWAY}"
        )
    return Strangers(
        nodes=without,
        reason=f"no interface {wanted} there ({fleet.interface_origin}), only {there}",
        advice=f"give an interface that all nodes have ({OPTION}), {_LEAVE_AWAY}; where {wanted} "
        f"should be, bring it up on {fold(without)}",
    )


def told_of(sweep: Sweep, out: Strangers) -> Sweep:
    """Note why they took no part, so that it is a finding and no pass."""
    return replace(
        sweep,
        troubles={**sweep.troubles, **dict.fromkeys(out.nodes, out.reason)},
        advice={**sweep.advice, **dict.fromkeys(out.nodes, out.advice)},
    )


def _interfaces(facts: Facts) -> tuple[Interface, ...]:
    return (facts.network.interfaces if facts.network else None) or ()


def _shown(found: Sequence[Interface]) -> str:
    """Those that lead anywhere, by name."""
    each = sorted({one.name for one in found if not one.loopback})
    more = f" and {len(each) - _SHOWN} more" if len(each) > _SHOWN else ""
    return ", ".join(each[:_SHOWN]) + more or "none but loopback"
