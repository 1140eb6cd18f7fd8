"""Nodes that differ from their group: another kernel, library or BIOS, another clock.

Marzullo's rule: the moment that lies in the most intervals is the time, and who does not hold it
is off by at least his distance from it. The uncertainty of a round trip can so condemn nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from preflight.check import Check
from preflight.checks.fleet_view import FleetView
from preflight.core.thresholds import Thresholds
from preflight.facts import Clock, Facts, Majority, Node, Reach
from preflight.facts.node import others
from preflight.facts.words import count
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from preflight.facts.machine import Stack

CHECKS = (
    Check("host.drift", stage="facts", tier="prolog", requires=("reach.answer",)),
    Check("host.clock", stage="facts", tier="prolog", requires=("reach.answer",)),
)


def _of_stack(read: Callable[[Stack], str]) -> Callable[[Facts], str | None]:
    """The reader of a field for the vote of a group; None abstains."""

    def of_node(facts: Facts) -> str | None:
        stack = facts.machine.stack if facts.machine else None
        return (read(stack) or None) if stack is not None else None

    return of_node


READINGS: dict[str, Callable[[Facts], str | None]] = {
    "kernel": lambda facts: facts.kernel or None,
    "system": _of_stack(lambda stack: stack.os),
    "C library": _of_stack(lambda stack: stack.libc),
    "CPU": _of_stack(lambda stack: f"{stack.cpu} ({stack.architecture})"),
    "CPUs online": _of_stack(lambda stack: str(stack.cpus_online) if stack.cpus_online else ""),
    "machine": _of_stack(lambda stack: stack.product),
    "BIOS": _of_stack(lambda stack: stack.bios),
}
"""By the word that names it in a sentence. Binary wheels are built for a C library; CPUs online
differ where a socket or hyper-threading is off; PCIe and power settings come with the BIOS."""

ALIGN = "bring it to what the others run (reimage, update or boot the other kernel), then recheck"
AGREE = "decide what the group shall run and bring all nodes to it, or split the group"


def judge_drift(facts: Facts, usual: dict[str, Majority[str] | None]) -> Verdict:
    """Each reading against the vote of the group; what nobody agrees on is said as such."""
    if facts.machine is None or facts.machine.stack is None:
        return unknown("what it runs could not be read", advice="mount /proc and /sys there")
    if not any(vote is not None and vote.of > 1 for vote in usual.values()):
        return not_run(f"no peers to compare with: kernel {facts.kernel}")
    odd: list[str] = []
    split: list[str] = []
    for word, read in READINGS.items():
        vote, mine = usual.get(word), read(facts)
        if vote is None or mine is None or vote.votes == vote.of:
            continue
        if not vote.decides:
            split.append(
                f"{word} {mine}; no more than {vote.votes} of {vote.of} nodes agree on one"
            )
        elif vote.value != mine:
            odd.append(f"{word} {mine}; {others(vote, vote.value)}")
    told = odd + split
    if told:
        more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
        return warn(told[0] + more, advice=ALIGN if odd else AGREE, findings=told)
    seen = {word: mine for word, read in READINGS.items() if (mine := read(facts))}
    return ok(f"as its group: {', '.join(f'{word} {mine}' for word, mine in seen.items())}")


def test_host_drift(node: Node, conclude: Conclude) -> None:
    """A node that runs another kernel, C library or BIOS than its peers fails in ways they do not."""  # noqa: E501  `preflight list-checks` prints it
    usual = {word: node.group.majority(read) for word, read in READINGS.items()}
    conclude(judge_drift(node.facts, usual))


HERE: Final = ""
"""The clock of this machine among the nodes': a voice, and no part of the job."""


@dataclass(frozen=True, slots=True)
class Time:
    """Where most clocks agree, ahead of this machine's by `from_s` to `to_s`."""

    from_s: float
    to_s: float
    votes: int
    of: int

    @property
    def decides(self) -> bool:
        """More than half of the clocks, so that the others are off and not these."""
        return self.votes * 2 > self.of

    def off_s(self, clock: Clock) -> float:
        """How far a clock is off at least: positive ahead, negative behind, 0 within it."""
        if clock.ahead_s - clock.uncertain_s > self.to_s:
            return clock.ahead_s - clock.uncertain_s - self.to_s
        return min(0.0, clock.ahead_s + clock.uncertain_s - self.from_s)


def agreement(clocks: Sequence[Clock], limit: Thresholds) -> Time:
    """The moment that most clocks hold possible; each may be half of what matters off by itself."""
    slack_s = limit("clock_apart_s") / 2
    edges = [(clock.ahead_s - clock.uncertain_s - slack_s, -1) for clock in clocks]
    edges += [(clock.ahead_s + clock.uncertain_s + slack_s, 1) for clock in clocks]
    edges.sort()
    best, inside = Time(0.0, 0.0, 0, len(clocks)), 0
    for at, (edge_s, kind) in enumerate(edges):
        inside -= kind
        if inside > best.votes:
            best = Time(edge_s, edges[at + 1][0], inside, len(clocks))
    return best


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a clock is off: as it was seen, and at least, whatever the round trip hid."""

    seen_s: float
    at_least_s: float


def clocks_off(clocks: Mapping[str, Clock], time: Time, limit: Thresholds) -> dict[str, Offset]:
    """The clocks that are off by so much that it matters, by name, the farthest first."""
    middle_s = (time.from_s + time.to_s) / 2
    found = {
        name: Offset(clock.ahead_s - middle_s, abs(time.off_s(clock)))
        for name, clock in clocks.items()
    }
    slack_s = limit("clock_apart_s") / 2
    far = [(name, one) for name, one in found.items() if one.at_least_s > slack_s]
    return dict(sorted(far, key=lambda named: -named[1].at_least_s))


def in_words(off_s: float) -> str:
    """3600.1 s ahead, 4.2 s behind."""
    return f"{abs(off_s):.1f} s {'ahead' if off_s > 0 else 'behind'}"


ADVICE = "see chronyc tracking (or timedatectl); set it at once with chronyc makestep"
DEAD = "torchrun's c10d rendezvous takes a node for dead"


def judge_clock(
    reaches: Mapping[str, Reach], facts: Mapping[str, Facts], limit: Thresholds
) -> Verdict:
    """Every node's clock and this machine's: who is out of the interval of most is off."""
    told = {name: reach.clock for name, reach in reaches.items() if reach.clock is not None}
    if lacking := [name for name in reaches if name not in told]:
        said = f"the clocks of {', '.join(lacking[:3])} were not compared"
        return unknown(said, advice="run again: what was recorded holds no clocks")
    if len(told) == 1 and next(iter(reaches.values())).transport == "local":
        return not_run("the node is this machine: it has one clock")
    time = agreement([Clock(0.0, 0.0), *told.values()], limit)
    astray = clocks_off({HERE: Clock(0.0, 0.0), **told}, time, limit)
    here = astray.pop(HERE, None)
    ahead_s = {name: round(clock.ahead_s, 3) for name, clock in told.items()}
    if not time.decides:
        return _undecided_verdict(told, ahead_s, limit)
    if astray:
        return _off_verdict(astray, time, facts, ahead_s, limit)
    within_s = max(clock.uncertain_s for clock in told.values())
    seen = f"{count(len(told), 'clock')} within {within_s:.2f} s, as far as the answers show"
    if within_s > limit("clock_off_s"):
        return unknown(seen, advice="see why its answers take so long, then run again")
    here_said = f"; this machine's is {in_words(here.seen_s)}" if here else ""
    return ok(seen + here_said, ahead_s=ahead_s)


def _undecided_verdict(
    told: Mapping[str, Clock], ahead_s: dict[str, float], limit: Thresholds
) -> Verdict:
    apart = ", ".join(f"{name} {in_words(clock.ahead_s)}" for name, clock in told.items())
    said = f"no majority among {len(told) + 1} clocks; against this machine's: {apart}"
    far_s = max(abs(clock.ahead_s) - clock.uncertain_s for clock in told.values())
    conclude = fail if len(told) > 1 and far_s > limit("clock_off_s") else warn
    return conclude(said[:400], advice=f"on each and here: {ADVICE}", ahead_s=ahead_s)


def _off_verdict(
    astray: dict[str, Offset],
    time: Time,
    facts: Mapping[str, Facts],
    ahead_s: dict[str, float],
    limit: Thresholds,
) -> Verdict:
    name, worst = next(iter(astray.items()))
    machine = facts[name].machine
    agree = f"{time.votes} of {time.of}"
    said = f"the clock of {name} is {in_words(worst.seen_s)} of the {agree} that agree"
    said += f" (and {len(astray) - 1} more are off)" if len(astray) > 1 else ""
    said += "; nobody keeps it in step" if machine and machine.clock_kept is False else ""
    most = limit("clock_off_s")
    if grave := [one for one, by in astray.items() if by.at_least_s > most]:
        said = f"{said}; beyond {most:g} s {DEAD}"
        return fail(said, advice=ADVICE, culprits=grave, ahead_s=ahead_s)
    said = f"{said}; {limit('clock_apart_s'):g} s at most are expected"
    return warn(said, advice=ADVICE, culprits=astray, ahead_s=ahead_s)


def test_host_clock(fleet: FleetView, conclude: Conclude) -> None:
    """Nodes whose clocks disagree lose their rendezvous, their tickets, and any order in their logs."""  # noqa: E501  `preflight list-checks` prints it
    reaches = {name: node.reach for name, node in fleet.nodes.items()}
    conclude(
        judge_clock(reaches, {name: node.facts for name, node in fleet.nodes.items()}, fleet.limit)
    )
