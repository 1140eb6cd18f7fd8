"""The last line of a run: what to type next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.fleet.nodeset import fold

if TYPE_CHECKING:
    from preflight.fleet.model import Fleet
    from preflight.report.ready import Readiness

_PARTNERS = 2
"""With two cleared partners a node's fault is told from its path's."""


def next_command(
    fleet: Fleet, nodes: Readiness, *, by_pairs: bool, short_of_s: float | None = None
) -> str:
    """Say what to type next, where that is plain; empty where all is well.

    `by_pairs`: the sweep condemned some, so that to look again takes ready nodes as their partners.
    `short_of_s`: the budget, where nothing but its end kept nodes from being judged.
    """
    failing = nodes.not_ready
    if fleet.origin == "this machine":
        return "to judge a fleet: pytest --preflight --preflight-nodes='gpu[001-064]'"
    longer = f"--preflight-budget={2 * short_of_s:.0f}" if short_of_s else ""
    if not failing:
        return f"to judge {fold(nodes.unjudged)}: {longer}" if nodes.unjudged and longer else ""
    if nodes.unjudged and not fleet.ranks:
        others = longer or "--preflight-fail-fast=never"
        return f"to judge the others: add --preflight-exclude='{fold(failing)}', or {others}"
    partners = nodes.ready[:_PARTNERS] if by_pairs else ()
    if len(failing) + len(partners) == len(fleet.hosts):
        return "to look again: the same command"
    names = fold((*failing, *partners))
    these = f"these beside {fold(partners)}, ready" if partners else "these alone"
    if fleet.ranks:
        return f"to look at {these}: torchrun on them, or --preflight-nodes='{names}' over SSH"
    return f"to look again at {these}: add --preflight-nodes='{names}'"
