"""The disposable measuring process of one rail: in each round it measures the rail's pair.

It may hang in a driver or a collective; then its supervisor kills and replaces it.

After the rounds come the all-reduce among a node's own rails (NVLink, PCIe, shared memory), and the
pairs of nodes in one NVLink domain. Every step of a job uses these, too.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Callable, NamedTuple

from . import clocks, counters, cuda, pair, plan, transports, verify
from .counters import MOST_COUNTERS, PATIENCE_S
from .pair import MARGIN_S, Context, NotMeasured, attempt, climb_ladder
from .plan import account, account_of
from .process_groups import STRIKING_S, Rendezvous, client

CPU_WAIT = "cpu wait_s"
"""A counter of an account: how long this process was ready to run but had no CPU."""

_ROUND = -1  # in the pattern's key, so that no pair has the same data


class _Members(NamedTuple):
    """The members of an all-reduce: their place in the store, their names, and our index."""

    place: str
    names: list[str]
    rank: int
    within_s: float
    """Time for all of them to come."""
    data: int
    """The round in the pattern's key, which makes their data unique."""


def measure(context: Context) -> dict[str, Any]:
    """Measure once among all rails of this node; return this rail's account; never raises.

    The other rails may still be in the last round.
    """
    go, own = context.rail.go, context.rail.go.own_rails
    names = [f"rail {rail} of this node" for rail in own]
    # Rounds of pairs use the keys of ranks 0 and 1; a node's number makes its data unique, too.
    data = _ROUND - go.index
    place, rank = f"inside/{go.index}", own.index(context.rail.rail)
    all_own = _Members(place, names, rank, go.barrier_s, data)
    return _among(context, all_own, account(context.rail, None, "measured"))


def measure_domain(context: Context, turn: plan.PairOfRound) -> dict[str, Any]:
    """Measure the same rail of two nodes over NVLink; return this end's account; never raises.

    The partner may still be in its last round, or in `measure`; then it starts a new process, too.
    """
    rail, go = context.rail, context.rail.go
    place = f"domain/{turn.round}/{turn.a}-{turn.b}/{rail.rail}"
    within_s = (1 if turn.round else 2) * go.barrier_s + go.init_s
    data = _ROUND - go.nodes * (1 + turn.round) - min(go.index, turn.partner)
    both = _Members(place, [turn.a, turn.b], turn.rank, within_s, data)
    return _among(context, both, account(rail, turn, "measured", domain=True))


def _among(context: Context, members: _Members, report: dict[str, Any]) -> dict[str, Any]:
    waited = 0.0

    def climb(report: dict[str, Any]) -> None:
        nonlocal waited
        waited = _waited_s()
        _climb(context, members, report)
        key = f"{members.place}/left"
        context.rendezvous.gather(key, members.rank, len(members.names), context.rail.go.op_s)

    context.alive("connect", members.within_s + MARGIN_S)
    before = attempt(context, report, lambda: _assemble(context, members), climb)
    report["stepped_s"] = context.steps.step_s()
    waited = round(_waited_s() - waited, 3)
    context.alive("pair", PATIENCE_S + MARGIN_S)
    if before is not None:
        report.update(context.watch.since(before, context.transport))
    if report["timings"] and waited > 0:
        report["moved"] = [{"name": CPU_WAIT, "by": waited}, *report["moved"][: MOST_COUNTERS - 1]]
    return report


def _waited_s() -> float:
    return sum(clocks.waited_s(os.getpid()).values())


def _assemble(context: Context, members: _Members) -> None:
    place, names = f"{members.place}/here", members.names
    missing = context.rendezvous.gather(place, members.rank, len(names), members.within_s)
    if missing:
        raise NotMeasured("absent", f"{names[missing[0]]} did not come")


def _climb(context: Context, members: _Members, report: dict[str, Any]) -> None:
    go = context.rail.go
    keys = [verify.key(go.seed, members.data, number) for number in range(len(members.names))]
    larger = replace(go, ladder=go.ladder + go.inside_sizes)
    ends = verify.Ends(keys, members.rank)
    group = f"{members.place}/group"
    ladder, fields = climb_ladder(context, group, ends, larger, soak=False)
    report.update(fields)
    if ladder.spoilt and ladder.data is not None and ladder.data.wrong:
        alone = "right" if ladder.data.is_right_alone() else "WRONG: it is this device"
        alone = f"its own sum of the same data is {alone}"
        raise NotMeasured("corrupt", f"{ladder.data.words()}; {alone}")


STORE_S = 10.0
"""Time for the store's host to accept our connection."""

_MARGIN_S = 5.0
_LATE_START_S = 5.0  # the first round also waits for rails that are forked later
_CLOSE_S = 10.0
"""Time to close the communicators of a pair, which takes well under a second."""

_USABLE = ("measured", "absent")
"""After any other state of a pair, CUDA or NCCL may be broken in this process."""


def take_part(
    rail: plan.Rail, first_round: int, say: Callable[..., None], log: transports.NcclLog | None
) -> bool:
    """Measure the rounds from `first_round` on; report each step and send each account.

    `log`: with NCCL its log. False if a new process must go on after the last account.
    """
    import torch  # already loaded by the agent

    rail = replace(rail, mnnvl=first_round >= rail.go.domain_step)
    torch.set_num_threads(1)
    say(round=first_round, phase="start", within_s=STORE_S + _MARGIN_S)
    counting = counters.Watch(rail.go.sysfs)  # before there are threads and connections to inherit
    store = _store(rail)
    rendezvous = Rendezvous(store, rail.member, rail.members, rail.go.missing)
    if rail.go.backend == "nccl":
        say(round=first_round, phase="init", within_s=rail.go.init_s)
        cuda.initialise(torch, rail.gpu)
        say(round=first_round, phase="start", within_s=STORE_S + _MARGIN_S)
    transport = transports.Transport(torch, rail, log)
    steps = clocks.Steps()
    context = Context(torch, store, rendezvous, rail, transport, counting, steps, say)
    for number in range(first_round, len(rail.go.turns)):
        context.step = number
        patience_s = rail.go.barrier_s + (0 if number else _LATE_START_S + rail.go.init_s)
        say(round=number, phase="barrier", within_s=patience_s + STRIKING_S + _MARGIN_S)
        if not rendezvous.arrive(number, patience_s):
            if rendezvous.struck(rail.member):
                suffix = "; the others went on without it"
                _report_missed(rail, number, len(rail.go.turns), say, suffix)
                break
            _report_missed(rail, number, number + 1, say)  # we may take part in the next round
            continue
        turn = rail.turn(number)
        if turn is not None and not _send_account(context, _take_turn(context, turn)):
            return False
    if rail.go.inside and not rail.mnnvl:
        context.step = len(rail.go.turns)
        say(account=measure(context), round=context.step)
    if rail.go.domain and not rail.mnnvl:  # NCCL reads its environment once per process
        say(round=rail.go.domain_step, phase="between", within_s=_MARGIN_S)
        return False
    for number in range(max(first_round, rail.go.domain_step), rail.go.steps):
        context.step, turn = number, rail.turn(number)
        if turn is not None and not _send_account(context, measure_domain(context, turn)):
            return False
    return True


def step_out(rail: plan.Rail) -> None:
    """Remove this rank from the rendezvous, so that the others do not wait for it."""
    rendezvous = Rendezvous(_store(rail), rail.member, rail.members, rail.go.missing)
    rendezvous.strike(rail.member, len(rail.go.turns))


def _store(rail: plan.Rail) -> Any:
    """The sweep's store; in it NCCL waits for its partner's id as long as ends may take to meet."""
    return client(rail.go, rail.store, STORE_S, max(STORE_S, rail.go.meet_s))


def _send_account(context: Context, account: dict[str, Any]) -> bool:
    """Send the account, then close the group; False if this process must not go on."""
    context.say(account=account, round=context.step)
    if context.rail.go.backend == "nccl" and account["state"] not in _USABLE:
        return False
    context.say(round=context.step + 1, phase="between", within_s=_CLOSE_S)
    context.close()
    return True


def _take_turn(context: Context, turn: plan.PairOfRound) -> dict[str, Any]:
    if context.rendezvous.missed(turn.round, context.rail.partner(turn)):
        error = f"its partner did not come to round {turn.round + 1}"
        return account(context.rail, turn, "absent", error)
    return pair.measure(context, turn)


def _report_missed(
    rail: plan.Rail, number: int, end: int, say: Callable[..., None], suffix: str = ""
) -> None:
    """Report pairs that cannot be measured, as the others began without us."""
    for step in range(number, end):
        error = f"came too late to round {number + 1}{suffix}"
        absent = account_of(rail, step, "absent", error)
        if absent is not None:
            say(account=absent, round=step)
