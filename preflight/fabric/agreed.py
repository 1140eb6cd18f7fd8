"""Ranks that disagree about the plan are found out before they measure, and the odd one is named.

The plan is the controller's: whoever says another digest of it than ours follows another one (a
damaged or tampered order, another version of the payload), and what it measures means nothing.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from preflight.fabric.events import PairSeen, Trouble

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preflight.fabric.agents import Gone
    from preflight.fabric.events import Event
    from preflight.fabric.roster import Roster

OTHER_PLAN = (
    "it follows another plan than it was given (seed, sizes, rounds or deadlines differ), so what "
    "it measured does not count"
)

_COMMON = (
    "run", "nodes", "rails", "backend", "seed", "meet_s", "op_s", "box_s", "pair_s", "soak_s",
    "barrier_s", "missing", "ladder", "soak",
)  # fmt: skip


class Agreed:
    """What all ends of each round must agree upon, as it was ordered."""

    def __init__(self) -> None:
        self._orders: list[tuple[int, dict[str, Any]]] = []
        """From which round on, what."""

    def ordered(self, order: Mapping[str, object], first: int = 0) -> None:
        """Note an order, to whomever: what they have in common is the same in all of them."""
        before = self._orders[-1][1] if self._orders else {}
        common = {**before, **{name: order[name] for name in _COMMON if name in order}}
        if not self._orders or self._orders[-1][0] < first:
            self._orders.append((first, common))

    def held_to(self, event: Event | Gone, who: Roster) -> Event | Gone:
        """Return the event, or that its node is in trouble, if it is the account of another plan.

        An account of a pair that was never ordered is left to whoever takes accounts.
        """
        if not isinstance(event, PairSeen) or not {event.a, event.b} <= set(who.names):
            return event
        return event if event.plan == self._digest(event, who) else Trouble(OTHER_PLAN)

    def _digest(self, seen: PairSeen, who: Roster) -> str:
        whole: dict[str, Any] = {
            **next((order for first, order in reversed(self._orders) if seen.round >= first), {}),
            "round": seen.round,
            "ends": [seen.a, seen.b],
            "numbers": [who.names.index(seen.a), who.names.index(seen.b)],
        }
        text = json.dumps(whole, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]
