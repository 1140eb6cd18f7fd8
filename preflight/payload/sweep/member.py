"""The disposable measuring process of one rail: meets the others each round, measures its pair.

It may hang in a driver or a collective for ever; its supervisor then kills and replaces it.

A node's own rails, over NVLink, PCIe and shared memory; and two nodes of one NVLink domain. A job's
every step goes over them, too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from . import clocks, counters, cuda, pair, plan, transports, verify
from .counters import MOST, PATIENCE_S
from .pair import MARGIN_S, Unfit, attempt, climbed
from .plan import account, account_of
from .process_groups import STRIKING_S, Meeting, client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .pair import Alive, Seat

CPU_WAIT = "cpu wait_s"
"""Among the counters that moved: for how long this process was ready and did not run."""

_ROUND = -1  # of the pattern's key: no pair has the same data


@dataclass(frozen=True)
class _Members:
    """Who all-reduces: where in the store they meet, by which names, and which of them we are."""

    place: str
    names: list[str]
    rank: int
    within_s: float
    """For all of them to come."""
    data: int
    """Keeps their data apart from all others', by the round of the pattern's key."""


def measure(seat: Seat, alive: Alive) -> dict[str, Any]:
    """Measure once with all rails of this node, and return this rail's account; never raises.

    `alive`: as in `pair.measure`. The other rails may still be held up in the last round.
    """
    go, own = seat.rail.go, seat.rail.go.own_rails
    names = [f"rail {each} of this node" for each in own]
    # Rounds of pairs use the keys of ranks 0 and 1; a node's number keeps its data apart, too.
    data = _ROUND - go.index
    place, rank = f"inside/{go.index}", own.index(seat.rail.rail)
    all_own = _Members(place, names, rank, go.barrier_s, data)
    return _among(seat, all_own, account(seat.rail, None, "measured"), alive)


def measure_domain(seat: Seat, turn: plan.Turn, alive: Alive) -> dict[str, Any]:
    """Measure the same rail of two nodes over NVLink, and return this end's account; as above.

    The partner may still be in its last round, or inside; then it starts a process, as we did.
    """
    rail, go = seat.rail, seat.rail.go
    place = f"domain/{turn.round}/{turn.a}-{turn.b}/{rail.rail}"
    within_s = (1 if turn.round else 2) * go.barrier_s + go.init_s
    data = _ROUND - go.nodes * (1 + turn.round) - min(go.index, turn.partner)
    both = _Members(place, [turn.a, turn.b], turn.rank, within_s, data)
    return _among(seat, both, account(rail, turn, "measured", domain=True), alive)


def _among(seat: Seat, members: _Members, seen: dict[str, Any], alive: Alive) -> dict[str, Any]:
    waited = 0.0

    def climb(seen: dict[str, Any]) -> None:
        nonlocal waited
        waited = _waited_s()
        _climb(seat, members, alive, seen)
        left = f"{members.place}/left"
        seat.meeting.gather(left, members.rank, len(members.names), seat.rail.go.op_s)

    alive("connect", members.within_s + MARGIN_S)
    before = attempt(seat, seen, alive, lambda: _assemble(seat, members), climb)
    seen["stepped_s"] = seat.steps.step_s()
    waited = round(_waited_s() - waited, 3)
    alive("pair", PATIENCE_S + MARGIN_S)
    if before is not None:
        seen.update(seat.watch.since(before, seat.means))
    if seen["timings"] and waited > 0:
        seen["moved"] = [{"name": CPU_WAIT, "by": waited}, *seen["moved"][: MOST - 1]]
    return seen


def _waited_s() -> float:
    return sum(clocks.waited_s(os.getpid()).values())


def _assemble(seat: Seat, members: _Members) -> None:
    place, names = f"{members.place}/here", members.names
    missing = seat.meeting.gather(place, members.rank, len(names), members.within_s)
    if missing:
        raise Unfit("absent", f"{names[missing[0]]} did not come")


def _climb(seat: Seat, members: _Members, alive: Alive, seen: dict[str, Any]) -> None:
    go = seat.rail.go
    keys = [verify.key(go.seed, members.data, each) for each in range(len(members.names))]
    larger = replace(go, ladder=go.ladder + go.inside_sizes)
    ends = verify.Ends(keys, members.rank)
    ladder, found = climbed(seat, f"{members.place}/group", ends, larger, alive, soak=False)
    seen.update(found)
    if ladder.spoilt and ladder.data is not None and ladder.data.wrong:
        alone = "right" if ladder.data.right_alone(keys) else "WRONG: it is this device"
        alone = f"its own sum of the same data is {alone}"
        raise Unfit("corrupt", f"{ladder.data.words()}; {alone}")


STORE_S = 10.0
"""For the store's host to accept us."""

_MARGIN_S = 5.0
_LATE_START_S = 5.0  # the first round also waits for rails that are forked later
_CLOSE_S = 10.0
"""For the communicators of a pair to go; they take well under a second."""

_SOUND = ("measured", "absent")
"""After any other end of a pair, CUDA or NCCL may be broken for good in this process."""


def take_part(
    rail: plan.Rail, first_round: int, say: Callable[..., None], log: int | None = None
) -> bool:
    """Go through the rounds from `first_round` on, saying each step and each account.

    `log`: where NCCL is to write. False if another process is to go on from the last account.
    """
    import torch  # loaded by the agent already; here it only gets its name

    rail = replace(rail, mnnvl=first_round >= rail.go.domain_step)
    torch.set_num_threads(1)
    say(round=first_round, phase="start", within_s=STORE_S + _MARGIN_S)
    counting = counters.Watch(rail.go.sysfs)  # before there are threads and connections to inherit
    store = _store(rail)
    meeting = Meeting(store, rail.member, rail.members, rail.go.missing)
    if rail.go.backend == "nccl":
        say(round=first_round, phase="init", within_s=rail.go.init_s)
        cuda.initialise(torch, rail.cuda)
    carriers = transports.Means(torch, rail, counting.bus_id, log)
    seat = pair.Seat(torch, store, meeting, rail, carriers, counting, clocks.Steps())
    for number in range(first_round, len(rail.go.turns)):
        patience_s = rail.go.barrier_s + (0 if number else _LATE_START_S + rail.go.init_s)
        say(round=number, phase="barrier", within_s=patience_s + STRIKING_S + _MARGIN_S)
        if not meeting.arrive(number, patience_s):
            if meeting.struck(rail.member):
                rest = "; the others went on without it"
                _too_late(rail, number, len(rail.go.turns), say, rest)
                break
            _too_late(rail, number, number + 1, say)  # the next one is open to us again
            continue
        turn = rail.turn(number)
        if turn is not None and not _told(seat, number, _take_turn(seat, turn, say), say):
            return False
    if rail.go.inside and not rail.mnnvl:
        number = len(rail.go.turns)
        say(account=measure(seat, _alive(say, number)), round=number)
    if rail.go.domain and not rail.mnnvl:  # NCCL reads its environment once in a process
        say(round=rail.go.domain_step, phase="between", within_s=_MARGIN_S)
        return False
    return _over_nvlink(seat, max(first_round, rail.go.domain_step), say)


def _over_nvlink(seat: Seat, first: int, say: Callable[..., None]) -> bool:
    """Go through the steps over NVLink between nodes; False as above."""
    for step in range(first, seat.rail.go.steps):
        turn = seat.rail.turn(step)
        if turn is not None:
            seen = measure_domain(seat, turn, _alive(say, step))
            if not _told(seat, step, seen, say):
                return False
    return True


def _alive(say: Callable[..., None], step: int) -> Alive:
    """Tells the supervisor what is done in that step, and within what time it hears of us."""
    return lambda phase, within_s: say(round=step, phase=phase, within_s=within_s)


def step_out(rail: plan.Rail) -> None:
    """Tell the others that this rank comes no more, so that nobody waits for it."""
    meeting = Meeting(_store(rail), rail.member, rail.members, rail.go.missing)
    meeting.strike(rail.member, len(rail.go.turns))


def _store(rail: plan.Rail) -> Any:
    """The sweep's store; NCCL waits in it for its partner's id as long as ends may take to meet."""
    return client(rail.go, rail.store, STORE_S, max(STORE_S, rail.go.meet_s))


def _told(seat: pair.Seat, number: int, account: dict[str, Any], say: Callable[..., None]) -> bool:
    """Give the account, then let go of the partner; False if this process is not fit to go on."""
    say(account=account, round=number)
    if seat.rail.go.backend == "nccl" and account["state"] not in _SOUND:
        return False
    say(round=number + 1, phase="between", within_s=_CLOSE_S)
    seat.close()
    return True


def _take_turn(seat: pair.Seat, turn: plan.Turn, say: Callable[..., None]) -> dict[str, Any]:
    if seat.meeting.missed(turn.round, seat.rail.partner(turn)):
        error = f"its partner did not come to round {turn.round + 1}"
        return account(seat.rail, turn, "absent", error)
    return pair.measure(seat, turn, _alive(say, turn.round))


def _too_late(
    rail: plan.Rail, number: int, last: int, say: Callable[..., None], rest: str = ""
) -> None:
    """The others began this round without us, or go on so: none of these pairs can be measured."""
    for step in range(number, last):
        error = f"came too late to round {number + 1}{rest}"
        absent = account_of(rail, step, "absent", error)
        if absent is not None:
            say(account=absent, round=step)
