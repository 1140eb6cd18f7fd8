"""The disposable measuring process of one rail: meets the others each round, measures its pair.

It may hang in a driver or a collective for ever; its supervisor then kills and replaces it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from . import cuda, inside, means, pair, plan, wall, watch
from .account import account
from .meeting import STRIKING_S, Meeting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

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
    counting = watch.Watch(rail.go.sysfs)  # before there are threads and connections to inherit
    store = _store(dist, rail)
    meeting = Meeting(store, rail.member, rail.members, rail.go.missing)
    if rail.go.backend == "nccl":
        say(round=first_round, phase="init", within_s=rail.go.init_s)
        cuda.initialise(torch, rail.cuda)
    carriers = means.Means(torch, rail, counting.bus_id, log)
    seat = pair.Seat(torch, store, meeting, rail, carriers, counting, wall.Steps())
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

    say(account=inside.measure(seat, alive), round=number)


def _over_nvlink(
    seat: pair.Seat, step: int, turn: plan.Turn, say: Callable[..., None]
) -> dict[str, Any]:
    def alive(phase: str, within_s: float) -> None:
        say(round=step, phase=phase, within_s=within_s)

    return inside.measure_domain(seat, turn, alive)


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
