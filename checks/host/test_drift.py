"""Nodes whose clocks disagree lose their rendezvous, their tickets, and any order in their logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.check import Check
from preflight.facts import Clock, Facts, Reach
from preflight.facts.limits import limit
from preflight.facts.skew import HERE, Astray, Time, agreed, off, worded
from preflight.facts.words import count
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn
from preflight.view import FleetView

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECK = Check("host.clock", stage="facts", tier="prolog", requires=("reach.answer",))

ADVICE = "see chronyc tracking (or timedatectl); set it at once with chronyc makestep"
DEAD = "torchrun's c10d rendezvous takes a node for dead"


def judge(reaches: Mapping[str, Reach], facts: Mapping[str, Facts]) -> Verdict:
    """Every node's clock and this machine's: who is out of the interval of most is off."""
    told = {name: reach.clock for name, reach in reaches.items() if reach.clock is not None}
    if lacking := [name for name in reaches if name not in told]:
        said = f"the clocks of {', '.join(lacking[:3])} were not compared"
        return unknown(said, advice="run again: what was recorded holds no clocks")
    if len(told) == 1 and next(iter(reaches.values())).transport == "local":
        return not_run("the node is this machine: it has one clock")
    time = agreed([Clock(0.0, 0.0), *told.values()])
    astray = off({HERE: Clock(0.0, 0.0), **told}, time)
    here = astray.pop(HERE, None)
    ahead_s = {name: round(clock.ahead_s, 3) for name, clock in told.items()}
    if not time.decides:
        return _undecided(told, ahead_s)
    if astray:
        return _off(astray, time, facts, ahead_s)
    within_s = max(clock.uncertain_s for clock in told.values())
    seen = f"{count(len(told), 'clock')} within {within_s:.2f} s, as far as the answers show"
    if within_s > limit("clock_off_s"):
        return unknown(seen, advice="see why its answers take so long, then run again")
    here_said = f"; this machine's is {worded(here.seen_s)}" if here else ""
    return ok(seen + here_said, ahead_s=ahead_s)


def _undecided(told: Mapping[str, Clock], ahead_s: dict[str, float]) -> Verdict:
    apart = ", ".join(f"{name} {worded(clock.ahead_s)}" for name, clock in told.items())
    said = f"no majority among {len(told) + 1} clocks; against this machine's: {apart}"
    far_s = max(abs(clock.ahead_s) - clock.uncertain_s for clock in told.values())
    conclude = fail if len(told) > 1 and far_s > limit("clock_off_s") else warn
    return conclude(said[:400], advice=f"on each and here: {ADVICE}", ahead_s=ahead_s)


def _off(
    astray: dict[str, Astray], time: Time, facts: Mapping[str, Facts], ahead_s: dict[str, float]
) -> Verdict:
    name, worst = next(iter(astray.items()))
    machine = facts[name].machine
    said = (
        f"the clock of {name} is {worded(worst.seen_s)} of the {time.votes} of {time.of} that agree"
    )
    said += f" (and {len(astray) - 1} more are off)" if len(astray) > 1 else ""
    said += "; nobody keeps it in step" if machine and machine.clock_kept is False else ""
    most = limit("clock_off_s")
    if grave := [one for one, by in astray.items() if by.at_least_s > most]:
        said = f"{said}; beyond {most:g} s {DEAD}"
        return fail(said, advice=ADVICE, culprits=grave, ahead_s=ahead_s)
    said = f"{said}; {limit('clock_apart_s'):g} s at most are expected"
    return warn(said, advice=ADVICE, culprits=astray, ahead_s=ahead_s)


def test_host_clock(fleet: FleetView, conclude: Conclude) -> None:
    """Joins the fleet and the judgement; the frame does the rest."""
    reaches = {name: node.reach for name, node in fleet.nodes.items()}
    conclude(judge(reaches, {name: node.facts for name, node in fleet.nodes.items()}))
