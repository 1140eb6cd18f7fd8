"""The disposable measuring process of one rail: meets the others each round, measures its pair.

It may hang in a driver or a collective for ever; its supervisor then kills and replaces it.

A node's own rails, over NVLink, PCIe and shared memory; and two nodes of one NVLink domain. A job's
every step goes over them, too.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from datetime import timedelta

from . import clocks, counters, cuda, pair, plan, transports, verify
from .counters import MOST, PATIENCE_S
from .pair import BEAT_S, MARGIN_S, Ladder, Unfit, connect_s, state_of
from .plan import WHOLE_LIMIT, account, because, domain_account, inside_account, printable, short
from .process_groups import STRIKING_S, Meeting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .pair import Seat


if TYPE_CHECKING:
    Alive = Callable[[str, float], None]

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
    return _among(seat, all_own, inside_account(seat.rail, "measured"), alive)


def measure_domain(seat: Seat, turn: plan.Turn, alive: Alive) -> dict[str, Any]:
    """Measure the same rail of two nodes over NVLink, and return this end's account; as above.

    The partner may still be in its last round, or inside; then it starts a process, as we did.
    """
    rail, go = seat.rail, seat.rail.go
    place = f"domain/{turn.round}/{turn.a}-{turn.b}/{rail.rail}"
    within_s = (1 if turn.round else 2) * go.barrier_s + go.init_s
    data = _ROUND - go.nodes * (1 + turn.round) - min(go.index, turn.partner)
    both = _Members(place, [turn.a, turn.b], turn.rank, within_s, data)
    return _among(seat, both, domain_account(rail, turn, "measured"), alive)


def _among(seat: Seat, members: _Members, seen: dict[str, Any], alive: Alive) -> dict[str, Any]:
    rail, place = seat.rail, members.place
    before, waited = None, 0.0
    try:
        alive("connect", members.within_s + MARGIN_S)
        _assemble(seat, members)
        alive("connect", connect_s(rail.go) + PATIENCE_S)
        seat.means.prepare()
        before = seat.watch.read(seat.means.question())
        waited = _waited_s()
        seen.update(_measure(seat, members, alive))
        seat.meeting.gather(f"{place}/left", members.rank, len(members.names), rail.go.op_s)
    except Unfit as unfit:
        seen.update(unfit.seen, state=unfit.state, error=printable(str(unfit), WHOLE_LIMIT))
    except RuntimeError as failure:
        error = because(short(failure), seat.means.reason())
        seen.update(state=state_of(str(failure)), error=error)
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


def _measure(seat: Seat, members: _Members, alive: Alive) -> dict[str, Any]:
    go, rank, size = seat.rail.go, members.rank, len(members.names)
    begun = time.monotonic()
    group = seat.connect(f"{members.place}/group", rank, size)
    met = time.monotonic()
    alive("pair", go.op_s + BEAT_S + MARGIN_S)
    seen: dict[str, Any] = {
        "started_s": clocks.now_s(),
        "setup_ms": round((met - begun) * 1000.0, 1),
    }
    keys = [verify.key(go.seed, members.data, each) for each in range(size)]
    larger = replace(go, ladder=go.ladder + go.inside_sizes)
    ladder = Ladder(seat.torch, group, larger, verify.Ends(keys, rank), alive)
    ladder.climb(begun, met, soak=False)
    seen.update(timings=ladder.timings, net=printable(seat.means.words()))
    if ladder.spoilt and ladder.data is not None and ladder.data.wrong:
        alone = "right" if ladder.data.right_alone(keys) else "WRONG: it is this device"
        alone = f"its own sum of the same data is {alone}"
        raise Unfit("corrupt", f"{ladder.data.words()}; {alone}", seen)
    return seen


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
    import torch.distributed as dist

    rail = replace(rail, mnnvl=first_round >= rail.go.domain_step)
    torch.set_num_threads(1)
    say(round=first_round, phase="start", within_s=STORE_S + _MARGIN_S)
    counting = counters.Watch(rail.go.sysfs)  # before there are threads and connections to inherit
    store = _store(dist, rail)
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
                _never_mind(rail, number, say)
                break
            _sit_out(rail, number, say)
            continue
        turn = rail.turn(number)
        if turn is not None and not _told(seat, number, _take_turn(seat, turn, say), say):
            return False
    if rail.go.inside and not rail.mnnvl:
        _look_inside(seat, say)
    if rail.go.domain and not rail.mnnvl:  # NCCL reads its environment once in a process
        say(round=rail.go.domain_step, phase="between", within_s=_MARGIN_S)
        return False
    for step in range(max(first_round, rail.go.domain_step), rail.go.steps):
        turn = rail.domain_turn(step)
        if turn is not None and not _told(seat, step, _over_nvlink(seat, step, turn, say), say):
            return False
    return True


def step_out(rail: plan.Rail) -> None:
    """Tell the others that this rank comes no more, so that nobody waits for it."""
    import torch.distributed as dist

    meeting = Meeting(_store(dist, rail), rail.member, rail.members, rail.go.missing)
    meeting.strike(rail.member, len(rail.go.turns))


def _store(dist: Any, rail: plan.Rail) -> Any:
    """The sweep's store; NCCL waits in it for its partner's id as long as ends may take to meet."""
    raw = dist.TCPStore(*rail.store, timeout=timedelta(seconds=STORE_S), wait_for_workers=False)
    raw.set_timeout(timedelta(seconds=max(STORE_S, rail.go.meet_s)))
    return dist.PrefixStore("preflight/" + rail.go.run, raw)


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

    def alive(phase: str, within_s: float) -> None:
        say(round=turn.round, phase=phase, within_s=within_s)

    return pair.measure(seat, turn, alive)


def _look_inside(seat: pair.Seat, say: Callable[..., None]) -> None:
    number = len(seat.rail.go.turns)

    def alive(phase: str, within_s: float) -> None:
        say(round=number, phase=phase, within_s=within_s)

    say(account=measure(seat, alive), round=number)


def _over_nvlink(
    seat: pair.Seat, step: int, turn: plan.Turn, say: Callable[..., None]
) -> dict[str, Any]:
    def alive(phase: str, within_s: float) -> None:
        say(round=step, phase=phase, within_s=within_s)

    return measure_domain(seat, turn, alive)


def _sit_out(rail: plan.Rail, number: int, say: Callable[..., None]) -> None:
    """The others began this round without us; the next one is open to us again."""
    turn = rail.turn(number)
    if turn is not None:
        error = f"came too late to round {number + 1}"
        say(account=account(rail, turn, "absent", error), round=number)


def _never_mind(rail: plan.Rail, number: int, say: Callable[..., None]) -> None:
    """The others went on without us: our remaining pairs cannot be measured any more."""
    error = f"came too late to round {number + 1}; the others went on without it"
    for place in range(number, len(rail.go.turns)):
        turn = rail.turn(place)
        if turn is not None:
            say(account=account(rail, turn, "absent", error), round=place)
