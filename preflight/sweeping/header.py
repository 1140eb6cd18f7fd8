"""What a sweep says before its first wave: who, with whom, until when, and where it is written."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from preflight.fleet.nodeset import fold
from preflight.sweeping.screen import clock
from preflight.sweeping.waves import nights_to_all

if TYPE_CHECKING:
    from preflight.sweeping.idle import Chooser
    from preflight.sweeping.screen import Screen
    from preflight.sweeping.state import Sweep


def say_what(screen: Screen, sweep: Sweep, where: str, who: Chooser, *, resumed: bool) -> None:
    """Print the header, and whom it leaves out."""
    nodes = sum(len(wave.nodes) for wave in sweep.waves)
    asked = {"idle": "idle by Slurm", "reservation": f"of the reservation {who.reservation}"}
    which = f": those {asked[who.whom]}" if who.whom in asked else ", Slurm is not asked"
    rows = [
        ("preflight", f"sweep {sweep.preflight}"),
        ("fleet", f"{fold(sweep.nodes)}  {len(sweep.nodes)} nodes ({sweep.origin})"),
        ("looked at", f"{nodes} of {len(sweep.nodes)}{which}"),
    ]
    if sweep.waves:
        rows += [("waves", _waves(sweep)), ("nights", _nights(sweep, nodes))]
    if resumed:
        done = sum(not wave.open for wave in sweep.waves)
        rows.append(("resumed", f"{done} of {len(sweep.waves)} waves were done before"))
    rows.append(("report", where))
    screen.header(rows)
    screen.left_out(sweep.left_out)


def _waves(sweep: Sweep) -> str:
    ends = f", done by {clock(sweep.ends_s - time.time()):%H:%M}" if sweep.ends_s else ""
    return (
        f"{len(sweep.waves)} of up to {sweep.most} nodes, one after the other, {sweep.tier}, "
        f"up to {sweep.usual_s:g} s each{ends}"
    )


def _nights(sweep: Sweep, nodes: int) -> str:
    nights = nights_to_all(nodes, sweep.most)
    if nights == 1:
        return "every two of these nodes are in one wave"
    return f"every two of these nodes are in one wave after {nights} such nights"
