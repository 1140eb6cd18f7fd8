"""A node's own rails all-reduce among themselves: what no pair over the network shows.

NVLink, PCIe and shared memory carry it; a job's every step goes over them, too.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

from . import pattern, starvation, wall
from .account import WHOLE_LIMIT, because, inside_account, printable, short
from .ladder import BEAT_S, MARGIN_S, Ladder
from .pair import Unfit, connect_s, state_of
from .watch import MOST, PATIENCE_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .pair import Seat

    Alive = Callable[[str, float], None]

CPU_WAIT = "cpu wait_s"
"""Among the counters that moved: for how long this process was ready and did not run."""

_ROUND = -1  # of the pattern's key: no pair has the same data


def measure(seat: Seat, alive: Alive) -> dict[str, Any]:
    """Measure once with all rails of this node, and return this rail's account; never raises.

    `alive`: as in `pair.measure`. The other rails may still be held up in the last round.
    """
    rail, place = seat.rail, f"inside/{seat.rail.go.index}"
    seen = inside_account(rail, "measured")
    before, waited = None, 0.0
    try:
        alive("connect", rail.go.barrier_s + MARGIN_S)
        _assemble(seat, place)
        alive("connect", connect_s(rail.go) + PATIENCE_S)
        seat.means.prepare()
        before = seat.watch.read(seat.means.question())
        waited = _waited_s()
        seen.update(_measure(seat, place, alive))
        own = rail.go.own_rails
        seat.meeting.gather(f"{place}/left", own.index(rail.rail), len(own), rail.go.op_s)
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


def _assemble(seat: Seat, place: str) -> None:
    go, own = seat.rail.go, seat.rail.go.own_rails
    rank = own.index(seat.rail.rail)
    missing = seat.meeting.gather(f"{place}/here", rank, len(own), go.barrier_s)
    if missing:
        raise Unfit("absent", f"rail {own[missing[0]]} of this node did not come")


def _measure(seat: Seat, place: str, alive: Alive) -> dict[str, Any]:
    rail, go, own = seat.rail, seat.rail.go, seat.rail.go.own_rails
    rank = own.index(rail.rail)
    begun = time.monotonic()
    group = seat.connect(f"{place}/group", rank, len(own))
    met = time.monotonic()
    alive("pair", go.op_s + BEAT_S + MARGIN_S)
    seen: dict[str, Any] = {
        "started_s": wall.now_s(),
        "setup_ms": round((met - begun) * 1000.0, 1),
    }
    # Rounds of pairs use the keys of ranks 0 and 1; a node's number keeps its data apart, too.
    keys = [pattern.key(go.seed, _ROUND - go.index, each) for each in range(len(own))]
    larger = replace(go, ladder=go.ladder + go.inside_sizes)
    ladder = Ladder(seat.torch, group, larger, pattern.Ends(keys, rank), alive)
    ladder.climb(begun, met, soak=False)
    seen.update(timings=ladder.timings, net=printable(seat.means.words()))
    if ladder.spoilt and ladder.data is not None and ladder.data.wrong:
        alone = "right" if ladder.data.right_alone(keys) else "WRONG: it is this device"
        alone = f"its own sum of the same data is {alone}"
        raise Unfit("corrupt", f"{ladder.data.words()}; {alone}", seen)
    return seen
