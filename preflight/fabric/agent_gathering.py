"""Find out which nodes can take part in a sweep, and why the others cannot; all are asked at once.

The plan is the controller's: a node with another digest follows another plan (a damaged or tampered
order, another version of the payload), so its measurements do not count.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import TYPE_CHECKING, Any

from preflight.fabric.agent_events import Busy, Event, NoTorch, PairSeen, Ready, Taken, Trouble
from preflight.fabric.agents import Agents, Gone
from preflight.fabric.collect import TIME_UP, EarlyEnd
from preflight.fabric.phrases import OTHER_PLAN
from preflight.facts.gpu_users import BUSY_WORD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from preflight.fabric.roster import Roster

    Progress = Callable[[int, int, list[str]], None]


_STRAGGLER_S = 10.0
_NOTHING_CAME = (
    "look at the link and the load of {0}, and at how fast its Python is read (network file "
    "system?); then run again"
)
_NO_TORCH = "name the job's Python with --preflight-python"


class ReadyNodes:
    """The nodes that are ready, and why the others are not."""

    def __init__(self, names: Iterable[str], agents: Agents, cut: EarlyEnd) -> None:
        self.ready: dict[str, Ready] = {}
        self.out: dict[str, str] = {}
        """Node name → why it may not take part."""
        self.advice: dict[str, str] = {}
        self._names = list(names)
        self._agents = agents
        self._cut = cut
        self._began = time.monotonic()
        self._no_torch: set[str] = set()
        self._excused: set[str] = set()
        """Left out for reasons that are not their fault."""

    def gather(self, within_s: float, progress: Progress) -> None:
        """Wait until all nodes have torch; once half have, the rest get a bounded time more."""
        patience = min(self._cut.ends, self._began + within_s)
        while waiting := [n for n in self._names if n not in self.ready and n not in self.out]:
            progress(len(self._names) - len(waiting), len(self._names), waiting)
            message = self._agents.next(patience - time.monotonic())
            if message is None:
                break
            name, event = message
            if isinstance(event, Ready) and name in waiting:
                self.ready[name] = event
            elif name in waiting or name in self.ready:  # no node has orders yet: it has ended
                self.leave_out(name, event)
            if len(self.ready) * 2 >= len(self._names):
                now = time.monotonic()
                patience = min(patience, now + _STRAGGLER_S + 2 * (now - self._began))
        for name in waiting:
            self._never_came(name)

    def leave_out(self, name: str, event: Event | Gone) -> None:
        """Leave a node out because of its event or its end."""
        self.ready.pop(name, None)
        if isinstance(event, NoTorch):
            self.out[name] = f"no usable torch in its Python: {event.error}"
            self._no_torch.add(name)
            self.advice[name] = _NO_TORCH
        elif isinstance(event, Busy):
            self._excuse(name, f"{BUSY_WORD}{event.error}")
        elif self._cut.our_fault(event):
            self._excuse(name, self._cut.why)
        elif isinstance(event, Gone):
            self.out[name] = event.reason
            self.advice[name] = event.advice
        elif isinstance(event, Taken):
            self.out[name] = event.error
            self.advice[name] = f"on {name}: {event.advice}"
        else:
            self.out[name] = "it sent an event out of turn"
        self._agents.dismiss(name)

    def give_up_as_host(self, name: str) -> None:
        """Leave out the node that should host the store; a reason that it gave stays."""
        self.ready.pop(name, None)
        self.out.setdefault(name, "it could not host the sweep's store")
        self._agents.dismiss(name)

    def troubles(self, mismatched: dict[str, str]) -> dict[str, str]:
        """Return the faults of nodes that were left out; none if no node has torch.

        `mismatched`: nodes that were ready and do not match the others.
        """
        if not self.ready and self._no_torch == set(self._names):
            return {}
        own = {**self.out, **mismatched}
        return {name: why for name, why in own.items() if name not in self._excused}

    def _never_came(self, name: str) -> None:
        if self._cut.time_is_up():
            self._excuse(name, TIME_UP)
            return
        self.out[name] = (
            f"it sent nothing for {time.monotonic() - self._began:.0f} s, within which "
            "its Python should have imported torch"
        )
        self.advice[name] = _NOTHING_CAME.format(name)
        self._agents.dismiss(name)

    def _excuse(self, name: str, why: str) -> None:
        self.out[name] = why
        self._excused.add(name)


_COMMON = (
    "run", "nodes", "rails", "backend", "seed", "meet_s", "op_s", "box_s", "pair_s", "soak_s",
    "barrier_s", "missing", "ladder", "soak",
)  # fmt: skip


class PlanDigest:
    """The digest of the ordered plan, which all ends of each round must report."""

    def __init__(self) -> None:
        self._orders: list[tuple[int, dict[str, Any]]] = []
        """(first round, order)."""

    def add_order(self, order: Mapping[str, object], first: int = 0) -> None:
        """Note an order to any node: its common part is the same for all."""
        before = self._orders[-1][1] if self._orders else {}
        common = {**before, **{name: order[name] for name in _COMMON if name in order}}
        if not self._orders or self._orders[-1][0] < first:
            self._orders.append((first, common))

    def verify(self, event: Event | Gone, who: Roster) -> Event | Gone:
        """Return the event, or `Trouble` if it is an account by another plan.

        An account of a pair that was not ordered is passed on: `SweepAccounts` refuses it.
        """
        if not isinstance(event, PairSeen) or not {event.a, event.b} <= set(who.names):
            return event
        return event if event.plan == self._digest(event, who) else Trouble(OTHER_PLAN)

    def _digest(self, pair: PairSeen, who: Roster) -> str:
        plan: dict[str, Any] = {
            **next((order for first, order in reversed(self._orders) if pair.round >= first), {}),
            "round": pair.round,
            "ends": [pair.a, pair.b],
            "numbers": [who.names.index(pair.a), who.names.index(pair.b)],
        }
        text = json.dumps(plan, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]
