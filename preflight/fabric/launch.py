"""Runs one sweep from the controller: gathers the agents, starts them, and collects their accounts.

A node whose accounts have another digest follows another plan (a damaged or tampered order, another
version of the payload), so its measurements do not count.

Everything has a deadline, no node can stop the others, and what was measured before a failure is
kept.

The deadlines are for hung nodes; a round of good nodes needs a small part of them.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from preflight.fabric.agent_events import (
    Event,
    Lapsed,
    Measurement,
    PairAccount,
    Ready,
    Rest,
    Store,
    Taken,
    Trouble,
)
from preflight.fabric.agents import Agents, SessionEnd
from preflight.fabric.collect import TIME_UP, EarlyEnd, SweepAccounts
from preflight.fabric.phrases import ADVICE, OTHER_PLAN, advice_on
from preflight.fabric.planner import restrict_rounds
from preflight.fabric.retest import MOST_ROUNDS, add_rounds
from preflight.fabric.roster import Roster, build_roster, go_order, measuring_order
from preflight.fabric.samples import Sweep
from preflight.facts.burn import Busy, Done, NoTorch
from preflight.facts.gpu_users import BUSY_PREFIX
from preflight.transport.payload_session import LEASE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from preflight.fabric.schedule import Pairing, Rounds
    from preflight.fabric.sweep_plan import SweepPlan
    from preflight.fleet.model import Host
    from preflight.transport.payload_session import MessageSession

    Progress = Callable[[int, int, list[str]], None]
    Start = Callable[[Host, Mapping[str, object]], MessageSession]
    Suspects = Callable[[Sweep], Rounds]


_STORE_S = 15.0
_MARGIN_S = 5.0
_STORELESS_S = 1.0
_LAST_WORDS_S = 2.0
_RETEST_MARGIN_S = 2.0
_HOST_OF_STORE = "which hosts the sweep's store, and no node is reached by more of the others"


class Hooks(NamedTuple):
    """What a sweep calls while it runs."""

    gathering: Progress = lambda *_: None
    """As nodes import torch."""
    progress: Progress = lambda *_: None
    """As pairs are measured."""
    interrupted: Callable[[Sweep], None] = lambda _so_far: None
    """On Ctrl-C, with what was measured so far, before anything is closed; with all of it, if the
    signal comes while the agents are closed."""
    suspects: Suspects | None = None
    """Names the pairs to measure again, round by round, from the sweep so far; it is called again
    after those, until it names none, time is short, or `retest.MOST_ROUNDS` rounds were made."""


QUIET = Hooks()


def sweep(
    plan: SweepPlan,
    hosts: Sequence[Host],
    start: Start,
    *,
    nonce: str,
    deadline_s: float,
    hooks: Hooks = QUIET,
) -> Sweep:
    """Measure the plan's pairs among `hosts` (those that may take part) and return everything.

    `start(host, request)` starts the payload's entry `sweep`; it must respect the request's
    `deadline_s`. Returns by the deadline at the latest, whatever the nodes do.
    """
    running = _RunningSweep(plan, hosts, nonce, deadline_s, hooks)
    try:
        result = running.run(start)
        running.agents.close()
    except KeyboardInterrupt:
        try:
            hooks.interrupted(running.partial_result())
        finally:
            running.agents.close()
        raise
    except BaseException:
        running.agents.close()
        raise
    return result


class _RunningSweep:
    """One running sweep."""

    def __init__(
        self, plan: SweepPlan, hosts: Sequence[Host], nonce: str, deadline_s: float, hooks: Hooks
    ) -> None:
        self._hooks = hooks
        self._plan = plan
        self._hosts = {host.name: host for host in hosts}
        self._nonce = nonce
        self._began = time.monotonic()
        self._deadline_s = deadline_s
        self._plan_digest = PlanDigest()
        rails = 64  # more GPUs than any node has
        self.agents = Agents((len(plan.rounds) + MOST_ROUNDS) * rails, deadline_s)
        self._roster = build_roster(plan, {})
        deadline, no_accounts = self._began + deadline_s, SweepAccounts(self._roster)
        self._early_end = EarlyEnd(deadline, self.agents.detector, no_accounts)
        self._nodes = ReadyNodes(self._hosts, self.agents, self._early_end)
        self._unsettled: tuple[Pairing, ...] = ()
        self._final_result: Sweep | None = None

    def run(self, start: Start) -> Sweep:
        request = {"nonce": self._nonce, "deadline_s": self._deadline_s, "lease_s": LEASE_S}
        self.agents.start(
            self._hosts.values(), lambda host: start(host, {**request, "name": host.name})
        )
        self._nodes.gather(self._plan.ready_s, self._hooks.gathering)
        self._roster, store = self._open_store()
        self._early_end.accounts = SweepAccounts(self._roster)
        if store is not None:
            for name in self._roster.names[1:]:
                self._send_order(self._roster, name, store)
            self._collect(self._early_end.accounts)
            self._retest(self._early_end.accounts)
        self._final_result = self._result()
        return self._final_result

    def partial_result(self) -> Sweep:
        """Return what was measured until an interrupt; missing results blame no node."""
        if self._final_result is not None:
            return self._final_result
        self._early_end.interrupt()
        if not self._early_end.accounts.names:
            self._roster = build_roster(self._plan, self._nodes.ready, self._hosts)
            self._early_end.accounts = SweepAccounts(self._roster)
        return self._result()

    def _open_store(self) -> tuple[Roster, tuple[str, int] | None]:
        """Let the best-connected node host the store; if it cannot, leave it out and try again."""
        while True:
            roster = build_roster(self._plan, self._nodes.ready, self._hosts)
            if not roster.has_work or self._early_end.time_is_up():
                return roster, None
            host = roster.host
            self._send_order(roster, host, None)
            port = self._await_store(host)
            if port is not None:
                return roster, (self._hosts[host].address, port)
            if self._early_end.time_is_up():
                return roster, None
            self._nodes.give_up_as_host(host)

    def _await_store(self, host: str) -> int | None:
        deadline = time.monotonic() + min(self._early_end.left_s, _STORE_S)
        while (message := self.agents.next(deadline - time.monotonic())) is not None:
            name, event = message
            if name == host and isinstance(event, Store):
                return event.port
            if name in self._nodes.ready:  # only the host has orders, so this node has ended
                self._nodes.leave_out(name, event)
                if name == host:
                    return None
        return None

    def _send_order(self, roster: Roster, name: str, store: tuple[str, int] | None) -> None:
        order = go_order(
            self._plan, roster, self._hosts, name,
            nonce=self._nonce, store=store, more=self._hooks.suspects is not None,
        )  # fmt: skip
        self._plan_digest.add_order(order)
        self.agents.send(name, {"go": order})

    def _collect(self, accounts: SweepAccounts) -> None:
        """Collect accounts until all nodes have finished, or the others' time is over."""
        for name in self._roster.names:
            if name in self._nodes.out:  # it ended after it was ready and before the start
                accounts.mark_lost(name, self._nodes.out.pop(name))
        limits = self._roster.limits
        quiet_s = self._plan.start_s + limits.init_s + 2 * limits.barrier_s + _MARGIN_S
        deadline = time.monotonic() + quiet_s
        while waiting := accounts.waiting():
            self._hooks.progress(accounts.complete, accounts.expected, waiting)
            idle = self.agents.is_drained() and not self._early_end.time_is_up()
            if idle and accounts.compact_one():
                continue
            message = self.agents.next(min(deadline - time.monotonic(), self._early_end.left_s))
            if message is None:
                if not self._early_end.time_is_up():
                    accounts.give_up(waiting)
                return
            name, event = message[0], self._plan_digest.verify(message[1], self._roster)
            if not self._early_end.is_our_fault(event):
                self._handle_event(name, event, accounts)
            elif isinstance(event, SessionEnd | Lapsed):
                accounts.mark_lost(name)
            last_nodes_s = self._last_nodes_s(accounts)
            now = time.monotonic()
            deadline = now + quiet_s if last_nodes_s is None else min(deadline, now + last_nodes_s)

    def _retest(self, accounts: SweepAccounts) -> None:
        """Measure again the pairs that `suspects` names, until none; nodes that left stay out."""
        rounds_left = MOST_ROUNDS
        suspects = self._hooks.suspects
        while suspects is not None and not self._early_end.why and not accounts.cut:
            idle = accounts.resting - accounts.lost - accounts.stuck
            host = self._roster.host
            if host not in idle:
                return
            idle_names = [name for name in self._roster.names if name in idle]
            possible = restrict_rounds(suspects(self._result())[:rounds_left], idle_names)
            rounds = tuple(filter(None, possible))
            if not rounds:
                return
            extended = add_rounds(self._roster, self._plan, rounds)
            measuring_s = extended.limits.box_s * len(extended.ladder) + extended.limits.soak_s
            if self._early_end.left_s < measuring_s + _RETEST_MARGIN_S:
                self._unsettled = tuple(dict.fromkeys(pair for pairs in rounds for pair in pairs))
                return
            rounds_left -= len(rounds)
            first, self._roster = len(self._roster.rounds), extended
            accounts.expect_more(self._roster)
            gone = [index for index, name in enumerate(self._roster.names) if name not in idle]
            self.agents.send(host, {"gone": gone})
            for name in idle:
                order = measuring_order(self._roster, name, first)
                self._plan_digest.add_order(order, first)
                self.agents.send(name, {"more": order})
            self._collect(accounts)

    def _last_nodes_s(self, accounts: SweepAccounts) -> float | None:
        """Return the time for the last nodes, once only they are unfinished; None before."""
        roster, limits = self._roster, self._roster.limits
        if roster.host in accounts.lost:  # the store is gone with it: no node can go on
            return _STORELESS_S
        if not accounts.finished - accounts.stuck:
            # A node that met no other waited about as long as the others will, unless some met.
            return self._plan.start_s if accounts.stuck and not accounts.complete else None
        if accounts.has_open_pairs():
            over_nvlink = len(roster.domain_rounds)
            barriers = 1 + roster.inside + over_nvlink
            return limits.barrier_s * barriers + limits.init_s * bool(over_nvlink)
        return limits.op_s + _LAST_WORDS_S  # their partners have sent all their accounts

    def _handle_event(self, name: str, event: Event | SessionEnd, accounts: SweepAccounts) -> None:
        if name not in accounts.names:
            return  # it was ready, and was not asked to take part
        if isinstance(event, Measurement) and accounts.add(name, event):
            return
        if isinstance(event, Done):
            accounts.done.add(name)
        elif isinstance(event, Rest) and self._hooks.suspects is not None:
            accounts.resting.add(name)
        elif isinstance(event, Trouble):
            accounts.add_error(name, event.error, advice_on(name, event.error))
        elif isinstance(event, SessionEnd) and event.late:
            return  # our own time is up, which proves nothing against the node
        elif isinstance(event, SessionEnd):
            accounts.mark_lost(name, event.reason, event.advice)
            host, names = self._roster.host, self._roster.names
            if name != host:  # the host notes it in the store, so that no node waits for it
                self.agents.send(host, {"gone": [names.index(name)]})
        elif isinstance(event, Lapsed):
            accounts.mark_lost(name, event.error, kind="error")
        else:
            accounts.mark_lost(name, "it sent a result that was not requested")
            self.agents.dismiss(name)

    def _result(self) -> Sweep:
        roster, accounts = self._roster, self._early_end.accounts
        breakdown = accounts.breakdown()
        storeless = f"it cannot connect to {roster.host}, {_HOST_OF_STORE}"
        return Sweep(
            ladder=self._plan.sizes(roster.backend)[0],
            rounds=roster.rounds if roster.has_work or self._early_end.why else (),
            pairs=accounts.pairs(self._early_end.why),
            left_out={
                **self._plan.left_out,
                **self._nodes.out,
                **roster.mismatched,
                **dict.fromkeys(sorted(roster.cut_off), storeless),
            },
            cut_off=dict.fromkeys(sorted(roster.cut_off), roster.host),
            troubles={**self._nodes.troubles(roster.mismatched), **breakdown.culprits},
            waited=breakdown.victims,
            advice={**self._nodes.advice, **accounts.advice},
            unfinished=self._early_end.why,
            seed=self._plan.seed,
            leaves=self._plan.leaves,
            seconds=round(time.monotonic() - self._began, 3),
            retested=accounts.scheduled if accounts.retesting else 0,
            short=roster.short,
            unsettled=self._unsettled + accounts.unsettled(),
            inside=accounts.inside(),
            nccl_logs=tuple(accounts.logs.values()),
            domains=self._plan.domains,
            domain=accounts.domain.samples(),
        )


_STRAGGLER_S = 10.0


class ReadyNodes:
    """The nodes that are ready, and why the others are not."""

    def __init__(self, names: Iterable[str], agents: Agents, cut: EarlyEnd) -> None:
        self.ready: dict[str, Ready] = {}
        self.out: dict[str, str] = {}
        """Node name → why it may not take part."""
        self.advice: dict[str, str] = {}
        self._names = list(names)
        self._agents = agents
        self._early_end = cut
        self._began = time.monotonic()
        self._no_torch: set[str] = set()
        self._not_at_fault: set[str] = set()
        """Left out for reasons that are not their fault."""

    def gather(self, within_s: float, progress: Progress) -> None:
        """Wait until all nodes have torch; once half have, the rest get a bounded time more."""
        deadline = min(self._early_end.deadline, self._began + within_s)
        while waiting := [n for n in self._names if n not in self.ready and n not in self.out]:
            progress(len(self._names) - len(waiting), len(self._names), waiting)
            message = self._agents.next(deadline - time.monotonic())
            if message is None:
                break
            name, event = message
            if isinstance(event, Ready) and name in waiting:
                self.ready[name] = event
            elif name in waiting or name in self.ready:  # no node has orders yet: it has ended
                self.leave_out(name, event)
            if len(self.ready) * 2 >= len(self._names):
                now = time.monotonic()
                deadline = min(deadline, now + _STRAGGLER_S + 2 * (now - self._began))
        for name in waiting:
            self._leave_out_silent(name)

    def leave_out(self, name: str, event: Event | SessionEnd) -> None:
        """Leave a node out because of its event or its end."""
        self.ready.pop(name, None)
        if isinstance(event, NoTorch):
            self.out[name] = f"no usable torch in its Python: {event.error}"
            self._no_torch.add(name)
            self.advice[name] = ADVICE["start"]["no_torch"]
        elif isinstance(event, Busy):
            self._excuse(name, f"{BUSY_PREFIX}{event.error}")
        elif self._early_end.is_our_fault(event):
            self._excuse(name, self._early_end.why)
        elif isinstance(event, SessionEnd):
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
        reasons = {**self.out, **mismatched}
        return {name: why for name, why in reasons.items() if name not in self._not_at_fault}

    def _leave_out_silent(self, name: str) -> None:
        if self._early_end.time_is_up():
            self._excuse(name, TIME_UP)
            return
        self.out[name] = (
            f"it sent nothing for {time.monotonic() - self._began:.0f} s, within which "
            "its Python should have imported torch"
        )
        self.advice[name] = ADVICE["start"]["sent_nothing"].format(name)
        self._agents.dismiss(name)

    def _excuse(self, name: str, why: str) -> None:
        self.out[name] = why
        self._not_at_fault.add(name)


_COMMON = (
    "run", "nodes", "rails", "backend", "seed", "meet_s", "op_s", "box_s", "pair_s", "soak_s",
    "barrier_s", "missing", "ladder", "soak",
)  # fmt: skip


class PlanDigest:
    """The digest of the ordered plan, which all ends of each round must report."""

    def __init__(self) -> None:
        self._orders: dict[int, dict[str, Any]] = {}
        """By first round, what is the same for all nodes."""

    def add_order(self, order: Mapping[str, object], first: int = 0) -> None:
        """Note an order to any node: its common part is the same for all."""
        common = {name: order[name] for name in _COMMON if name in order}
        previous = next(reversed(self._orders.values()), {})
        self._orders.setdefault(first, {**previous, **common})

    def verify(self, event: Event | SessionEnd, roster: Roster) -> Event | SessionEnd:
        """Return the event, or `Trouble` if it is an account by another plan.

        An account of a pair that was not ordered is passed on: `SweepAccounts` refuses it.
        """
        if not isinstance(event, PairAccount) or not {event.a, event.b} <= set(roster.names):
            return event
        return event if event.plan == self._digest(event, roster) else Trouble(OTHER_PLAN)

    def _digest(self, pair: PairAccount, roster: Roster) -> str:
        plan: dict[str, Any] = {
            **next((self._orders[at] for at in reversed(self._orders) if at <= pair.round), {}),
            "round": pair.round,
            "ends": [pair.a, pair.b],
            "numbers": [roster.names.index(pair.a), roster.names.index(pair.b)],
        }
        text = json.dumps(plan, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]
