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
    DomainSeen,
    Event,
    InsideSeen,
    Lapsed,
    NcclLog,
    PairSeen,
    Ready,
    Rest,
    Store,
    Taken,
    Trouble,
)
from preflight.fabric.agents import Agents, Gone
from preflight.fabric.collect import TIME_UP, EarlyEnd, SweepAccounts
from preflight.fabric.phrases import OTHER_PLAN, advice_on
from preflight.fabric.retest import MOST_ROUNDS, fitting, with_more
from preflight.fabric.roster import Roster, go_order, measuring_order, roster
from preflight.fabric.samples import Sweep
from preflight.facts.burn import Busy, Done, NoTorch
from preflight.facts.gpu_users import BUSY_WORD
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
_ITS_HOST = "which hosts the sweep's store, and no node is reached by more of the others"


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
    """Measure the plan's pairs among `hosts` (those cleared to take part) and return everything.

    `start(host, request)` starts the payload's entry `sweep`; it must respect the request's
    `deadline_s`. Returns by the deadline at the latest, whatever the nodes do.
    """
    stage = _Stage(plan, hosts, nonce, deadline_s, hooks)
    try:
        result = stage.run(start)
        stage.agents.close()
    except KeyboardInterrupt:
        try:
            hooks.interrupted(stage.so_far())
        finally:
            stage.agents.close()
        raise
    except BaseException:
        stage.agents.close()
        raise
    return result


class _Stage:
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
        self._who = roster(plan, {})
        no_accounts = SweepAccounts(self._who)
        self._cut = EarlyEnd(self._began + deadline_s, self.agents.own, no_accounts)
        self._nodes = ReadyNodes(self._hosts, self.agents, self._cut)
        self._unsettled: tuple[Pairing, ...] = ()
        self._whole: Sweep | None = None

    def run(self, start: Start) -> Sweep:
        request = {"nonce": self._nonce, "deadline_s": self._deadline_s, "lease_s": LEASE_S}
        self.agents.start(
            self._hosts.values(), lambda host: start(host, {**request, "name": host.name})
        )
        self._nodes.gather(self._plan.ready_s, self._hooks.gathering)
        self._who, store = self._open_store()
        self._cut.collected = SweepAccounts(self._who)
        if store is not None:
            for name in self._who.names[1:]:
                self._order(self._who, name, store)
            self._collect(self._cut.collected)
            self._retest(self._cut.collected)
        self._whole = self._result()
        return self._whole

    def so_far(self) -> Sweep:
        """Return what was measured until an interrupt; missing results blame no node."""
        if self._whole is not None:
            return self._whole
        self._cut.interrupt()
        if not self._cut.collected.names:
            self._who = roster(self._plan, self._nodes.ready, self._hosts)
            self._cut.collected = SweepAccounts(self._who)
        return self._result()

    def _open_store(self) -> tuple[Roster, tuple[str, int] | None]:
        """Have the best-connected node host the store; if it cannot, leave it out and try again."""
        while True:
            who = roster(self._plan, self._nodes.ready, self._hosts)
            if not who.enough or self._cut.time_is_up():
                return who, None
            host = who.host
            self._order(who, host, None)
            port = self._await_store(host)
            if port is not None:
                return who, (self._hosts[host].address, port)
            if self._cut.time_is_up():
                return who, None
            self._nodes.give_up_as_host(host)

    def _await_store(self, host: str) -> int | None:
        patience = time.monotonic() + min(self._cut.left_s, _STORE_S)
        while (message := self.agents.next(patience - time.monotonic())) is not None:
            name, event = message
            if name == host and isinstance(event, Store):
                return event.port
            if name in self._nodes.ready:  # only the host has orders, so this node has ended
                self._nodes.leave_out(name, event)
                if name == host:
                    return None
        return None

    def _order(self, who: Roster, name: str, store: tuple[str, int] | None) -> None:
        order = go_order(
            self._plan, who, self._hosts, name,
            nonce=self._nonce, store=store, more=self._hooks.suspects is not None,
        )  # fmt: skip
        self._plan_digest.add_order(order)
        self.agents.send(name, {"go": order})

    def _collect(self, collected: SweepAccounts) -> None:
        """Collect accounts until all nodes have finished, or the others' time is over."""
        for name in self._who.names:
            if name in self._nodes.out:  # it ended after it was ready and before the start
                collected.lose(name, self._nodes.out.pop(name))
        limits = self._who.limits
        quiet_s = self._plan.start_s + limits.init_s + 2 * limits.barrier_s + _MARGIN_S
        patience = time.monotonic() + quiet_s
        while waiting := collected.waiting():
            self._hooks.progress(collected.complete, collected.expected, waiting)
            if self.agents.quiet() and not self._cut.time_is_up() and collected.compact_one():
                continue
            message = self.agents.next(min(patience - time.monotonic(), self._cut.left_s))
            if message is None:
                if not self._cut.time_is_up():
                    collected.give_up(waiting)
                return
            name, event = message[0], self._plan_digest.verify(message[1], self._who)
            if not self._cut.our_fault(event):
                self._take(name, event, collected)
            elif isinstance(event, Gone | Lapsed):
                collected.lose(name)
            rest_s = self._rest_s(collected)
            now = time.monotonic()
            patience = now + quiet_s if rest_s is None else min(patience, now + rest_s)

    def _retest(self, collected: SweepAccounts) -> None:
        """Measure again the pairs that `suspects` names, until none; nodes that left stay out."""
        rounds_left = MOST_ROUNDS
        suspects = self._hooks.suspects
        while suspects is not None and not self._cut.why and not collected.cut:
            able = collected.resting - collected.lost - collected.stuck
            host = self._who.host
            if host not in able:
                return
            there = [name for name in self._who.names if name in able]
            rounds = fitting(suspects(self._result()), there, rounds_left)
            if not rounds:
                return
            more = with_more(self._who, self._plan, rounds)
            measuring_s = more.limits.box_s * len(more.ladder) + more.limits.soak_s
            if self._cut.left_s < measuring_s + _RETEST_MARGIN_S:
                self._unsettled = tuple(dict.fromkeys(pair for around in rounds for pair in around))
                return
            rounds_left -= len(rounds)
            first, self._who = len(self._who.rounds), more
            collected.ask_more(self._who)
            places = [place for place, name in enumerate(self._who.names) if name not in able]
            self.agents.send(host, {"gone": places})
            for name in able:
                order = measuring_order(self._who, name, first)
                self._plan_digest.add_order(order, first)
                self.agents.send(name, {"more": order})
            self._collect(collected)

    def _rest_s(self, collected: SweepAccounts) -> float | None:
        """Return how long the last nodes get, once only they are left; None before."""
        who, limits = self._who, self._who.limits
        if who.host in collected.lost:  # the store is gone with it: no node can go on
            return _STORELESS_S
        if not collected.through - collected.stuck:
            # A node that met no other waited about as long as the others will, unless some met.
            return self._plan.start_s if collected.stuck and not collected.complete else None
        if collected.open():
            more = len(who.domain_rounds)
            return limits.barrier_s * (1 + who.inside + more) + limits.init_s * bool(more)
        return limits.op_s + _LAST_WORDS_S  # their partners have sent all their accounts

    def _take(self, name: str, event: Event | Gone, collected: SweepAccounts) -> None:
        if name not in collected.names:
            return  # it was ready, and was not asked to take part
        if isinstance(event, PairSeen | InsideSeen | DomainSeen | NcclLog) and collected.take(
            name, event
        ):
            return
        if isinstance(event, Done):
            collected.done.add(name)
        elif isinstance(event, Rest) and self._hooks.suspects is not None:
            collected.resting.add(name)
        elif isinstance(event, Trouble):
            collected.complain(name, event.error, advice_on(name, event.error))
        elif isinstance(event, Gone) and event.late:
            return  # our own time is up, which proves nothing against the node
        elif isinstance(event, Gone):
            collected.lose(name, event.reason, event.advice)
            host, names = self._who.host, self._who.names
            if name != host:  # the host notes it in the store, so that no node waits for it
                self.agents.send(host, {"gone": [names.index(name)]})
        elif isinstance(event, Lapsed):
            collected.lose(name, event.error, kind="error")
        else:
            collected.lose(name, "it sent a result that was not requested")
            self.agents.dismiss(name)

    def _result(self) -> Sweep:
        who, collected = self._who, self._cut.collected
        silence = collected.silence()
        storeless = f"it cannot connect to {who.host}, {_ITS_HOST}"
        return Sweep(
            ladder=self._plan.sizes(who.backend)[0],
            rounds=who.rounds if who.enough or self._cut.why else (),
            pairs=collected.pairs(self._cut.why),
            left_out={
                **self._plan.left_out,
                **self._nodes.out,
                **who.mismatched,
                **dict.fromkeys(sorted(who.cut_off), storeless),
            },
            cut_off=dict.fromkeys(sorted(who.cut_off), who.host),
            troubles={**self._nodes.troubles(who.mismatched), **silence.culprits},
            waited=silence.victims,
            advice={**self._nodes.advice, **collected.advice},
            unfinished=self._cut.why,
            seed=self._plan.seed,
            leaves=self._plan.leaves,
            seconds=round(time.monotonic() - self._began, 3),
            retested=collected.scheduled if collected.retesting else 0,
            short=who.short,
            unsettled=self._unsettled + collected.unsettled(),
            inside=collected.inside(),
            nccl_logs=tuple(collected.logs.values()),
            domains=self._plan.domains,
            domain=collected.domain.samples(),
        )


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
