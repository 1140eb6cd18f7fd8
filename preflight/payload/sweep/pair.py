"""One pair on one rail in one round: connect, climb the ladder, soak; look into wrong data."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from . import agreed, groups, pattern, plan, wall
from .account import WHOLE_LIMIT, account, because, printable, short
from .ladder import BEAT_S, MARGIN_S, Ladder
from .watch import PATIENCE_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .means import Means
    from .meeting import Meeting
    from .watch import Watch

_AGAIN = 8
"""All-reduces with the roles swapped, after wrong data."""


class Unfit(Exception):  # noqa: N818 - an account, not an error of ours
    """The pair could not be measured to its end: `state` as in the controller's samples."""

    def __init__(self, state: str, error: str, seen: dict[str, Any] | None = None) -> None:
        super().__init__(error)
        self.state = state
        self.seen = seen or {}


@dataclass(frozen=True)
class Seat:
    """What a measuring process has at hand: torch, the store, the others, and who it is."""

    torch: Any
    store: Any
    meeting: Meeting
    rail: plan.Rail
    means: Means
    watch: Watch
    steps: wall.Steps
    connected: list[groups.Group] = field(default_factory=list)
    """Those in use: an end that closed its own first could cut off the other's last bytes."""

    def connect(self, prefix: str, rank: int, size: int = 2) -> groups.Group:
        """Meet the other ends under that prefix of the store; Unfit when they do not."""
        store = self.torch.distributed.PrefixStore(prefix, self.store)
        try:
            group = groups.connect(self.torch, store, rank, self.rail, size)
        except RuntimeError as error:
            why = because(short(error), self.means.reason())
            raise Unfit("no_connect", why) from error
        self.connected.append(group)
        return group

    def close(self) -> None:
        """Give back what all groups hold; when the others have left them, or nothing works."""
        while self.connected:
            self.connected.pop().close()


def measure(seat: Seat, turn: plan.Turn, alive: Callable[[str, float], None]) -> dict[str, Any]:
    """Measure one pair and return this end's account; never raises for what the pair does.

    `alive(phase, within_s)` tells the supervisor what we do ("connect", "pair"), and that the next
    sign of life comes within that time.
    """
    rail, meeting = seat.rail, seat.meeting
    seen = account(rail, turn, "measured")
    name = f"{turn.round}/{turn.a}-{turn.b}/{rail.rail}"
    before = None
    try:
        alive("connect", rail.go.meet_s + MARGIN_S)
        _agree(seat, turn, name)
        alive("connect", connect_s(rail.go) + PATIENCE_S)
        seat.means.prepare()
        before = seat.watch.read(seat.means.question())
        seen.update(_measure(seat, turn, name, alive))
        meeting.leave(name, turn.rank)
        meeting.await_leave(name, turn.rank, rail.go.op_s)
    except Unfit as unfit:
        seen.update(unfit.seen, state=unfit.state, error=printable(str(unfit), WHOLE_LIMIT))
    except RuntimeError as failure:
        error = because(short(failure), seat.means.reason())
        seen.update(state=state_of(str(failure)), error=error)
    meeting.leave(name, turn.rank)
    seen["stepped_s"] = seat.steps.step_s()
    alive("pair", PATIENCE_S + MARGIN_S)
    if not seen["net"]:  # it broke off before it was asked: what the library meant to use
        seen["net"] = printable(seat.means.words())
    if before is not None:
        seen.update(seat.watch.since(before, seat.means))
    return seen


def _agree(seat: Seat, turn: plan.Turn, name: str) -> None:
    """Make sure that both ends follow the same plan; Unfit if not."""
    go = seat.rail.go
    same = seat.meeting.agree(name, turn.rank, agreed.digest(go, turn), go.meet_s)
    partner = turn.a if turn.rank else turn.b
    if same is None:
        raise Unfit("no_connect", f"{partner} did not come to their pair within {go.meet_s:g} s")
    if not same:
        raise Unfit("absent", f"{partner} follows another plan than this node")


def _measure(
    seat: Seat, turn: plan.Turn, name: str, alive: Callable[[str, float], None]
) -> dict[str, Any]:
    """Connect, climb, and look at what carried the data; Unfit with what was seen before it."""
    begun = time.monotonic()
    group = seat.connect(f"pair/{name}/0", turn.rank)
    met = time.monotonic()
    alive("pair", seat.rail.go.op_s + BEAT_S + MARGIN_S)
    seen: dict[str, Any] = {
        "started_s": wall.now_s(),
        "setup_ms": round((met - begun) * 1000.0, 1),
    }
    ladder = Ladder(seat.torch, group, seat.rail.go, _ends(seat, turn), alive)
    ladder.climb(begun, met)
    seen.update(timings=ladder.timings, net=printable(seat.means.words()))
    alive("pair", seat.rail.go.op_s + BEAT_S + MARGIN_S)
    if ladder.spoilt:
        error = _look_into(seat, turn, name, ladder, alive)
        if error:
            raise Unfit("corrupt", error, seen)
    return seen


def _ends(seat: Seat, turn: plan.Turn) -> pattern.Ends:
    keys = [pattern.key(seat.rail.go.seed, turn.round, rank) for rank in (0, 1)]
    return pattern.Ends(keys, turn.rank)


def connect_s(go: plan.Go) -> float:
    """Within which a group is made or refused: NCCL also needs its first operation for it."""
    return go.meet_s + MARGIN_S + (go.op_s if go.backend == "nccl" else 0.0)


def _look_into(
    seat: Seat, turn: plan.Turn, name: str, ladder: Ladder, alive: Callable[[str, float], None]
) -> str:
    """One end or both got wrong data: swap the roles and try again; what was wrong here, if any.

    Whether wrong bits stay with an end or with a role, and whether the end computes the same sum
    rightly by itself, is what can be told of sender and receiver from inside one pair.
    """
    data = ladder.data
    assert data is not None
    mine = data.words() if data.wrong else ""
    alone = data.right_alone(ladder.keys)
    other = replace(turn, rank=1 - turn.rank)
    try:
        alive("pair", connect_s(seat.rail.go) + BEAT_S)
        group = seat.connect(f"pair/{name}/1", other.rank)
        again = Ladder(seat.torch, group, seat.rail.go, _ends(seat, other), alive)
        repeated = again.repeat(data.size_bytes, _AGAIN, data.dtype)
        times = repeated.wrong.times if repeated.wrong else 0
        swapped = f"with the roles swapped {times} of {_AGAIN}"
        mine = mine or (repeated.words() if repeated.wrong else "")
    except (RuntimeError, Unfit) as error:
        swapped = f"with the roles swapped: {short(error)[:60]}"
    words = "right" if alone else "WRONG: it is this device"
    return f"{mine}; {swapped}; its own sum without a network is {words}" if mine else ""


def state_of(message: str) -> str:
    """Tell a hang: gloo says "Timed out waiting 3000ms for recv"; anything else ended at once.

    NCCL never says so of a hang, but of what ended for one ("ibv_modify_qp failed with 110
    Connection timed out").
    """
    late = "imed out" in message or "imeout" in message
    return "hung" if late and "NCCL" not in message else "error"
