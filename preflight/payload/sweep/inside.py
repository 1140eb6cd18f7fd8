"""All-reduces that NVLink carries, where it is there: what no pair over the network shows.

A node's own rails, over NVLink, PCIe and shared memory; and two nodes of one NVLink domain. A job's
every step goes over them, too.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

from . import pattern, starvation, wall
from .account import WHOLE_LIMIT, because, domain_account, inside_account, printable, short
from .ladder import BEAT_S, MARGIN_S, Ladder
from .pair import Unfit, connect_s, state_of
from .watch import MOST, PATIENCE_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from . import plan
    from .pair import Seat

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
    return sum(starvation.waited_s(os.getpid()).values())


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
        "started_s": wall.now_s(),
        "setup_ms": round((met - begun) * 1000.0, 1),
    }
    keys = [pattern.key(go.seed, members.data, each) for each in range(size)]
    larger = replace(go, ladder=go.ladder + go.inside_sizes)
    ladder = Ladder(seat.torch, group, larger, pattern.Ends(keys, rank), alive)
    ladder.climb(begun, met, soak=False)
    seen.update(timings=ladder.timings, net=printable(seat.means.words()))
    if ladder.spoilt and ladder.data is not None and ladder.data.wrong:
        alone = "right" if ladder.data.right_alone(keys) else "WRONG: it is this device"
        alone = f"its own sum of the same data is {alone}"
        raise Unfit("corrupt", f"{ladder.data.words()}; {alone}", seen)
    return seen
