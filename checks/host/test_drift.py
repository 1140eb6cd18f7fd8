"""Nodes that differ from their group: another kernel, library or BIOS, another clock.

Marzullo's rule: the moment that lies in the most intervals is the time, and a clock whose interval
excludes it is off by at least its distance: a slow round trip makes no clock look wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from preflight.check import Check
from preflight.checks.fleet_view import FleetView
from preflight.core.text import count, first_finding
from preflight.core.thresholds import Thresholds
from preflight.facts import Clock, Facts, Majority, Node, Reach
from preflight.facts.machine import Stack
from preflight.facts.node import majority_text
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn

CHECKS = (
    Check("host.drift", stage="facts", tier="prolog", requires=("reach.answer",)),
    Check("host.clock", stage="facts", tier="prolog", requires=("reach.answer",)),
)


def _stack_reader(reader: Callable[[Stack], str]) -> Callable[[Facts], str | None]:
    """A reader of one field for the group's vote; a reader that returns None abstains."""

    def of_node(facts: Facts) -> str | None:
        stack = facts.machine.stack if facts.machine else None
        return (reader(stack) or None) if stack is not None else None

    return of_node


READINGS: dict[str, Callable[[Facts], str | None]] = {
    "kernel": lambda facts: facts.kernel or None,
    "system": _stack_reader(lambda stack: stack.os),
    "C library": _stack_reader(lambda stack: stack.libc),
    "CPU": _stack_reader(lambda stack: f"{stack.cpu} ({stack.architecture})"),
    "CPUs online": _stack_reader(lambda stack: str(stack.cpus_online) if stack.cpus_online else ""),
    "machine": _stack_reader(lambda stack: stack.product),
    "BIOS": _stack_reader(lambda stack: stack.bios),
}
"""By the word that names it in a sentence. Binary wheels are built for a C library; CPUs online
differ where a socket or hyper-threading is off; PCIe and power settings come with the BIOS."""

ALIGN = "make it run what the others run (reimage, update or boot the other kernel), then recheck"
AGREE = "decide what the group should run and bring all nodes to it, or split the group"


def judge_drift(facts: Facts, usual: dict[str, Majority[str] | None]) -> Verdict:
    """Compare each reading with the group's vote; report readings without a majority as split."""
    if facts.machine is None or facts.machine.stack is None:
        sentence = "its kernel, libraries and BIOS could not be read"
        return unknown(sentence, advice="mount /proc and /sys there")
    if not any(vote is not None and vote.of > 1 for vote in usual.values()):
        return not_run(f"no peers to compare with: kernel {facts.kernel}")
    odd: list[str] = []
    split: list[str] = []
    for word, reader in READINGS.items():
        vote, value = usual.get(word), reader(facts)
        if vote is None or value is None or vote.votes == vote.of:
            continue
        if not vote.decides:
            agree = f"no more than {vote.holders} agree on one"
            split.append(f"{word} {value}; {agree}")
        elif vote.value != value:
            odd.append(f"{word} {value}; {majority_text(vote, vote.value)}")
    if findings := odd + split:
        return warn(first_finding(findings), advice=ALIGN if odd else AGREE, findings=findings)
    readings = {word: value for word, reader in READINGS.items() if (value := reader(facts))}
    return ok(f"as its group: {', '.join(f'{word} {value}' for word, value in readings.items())}")


def test_host_drift(node: Node, conclude: Conclude) -> None:
    """A node that runs another kernel, C library or BIOS than its peers fails in ways they do not."""  # noqa: E501  `preflight list-checks` prints it
    usual = {word: node.group.majority(reader) for word, reader in READINGS.items()}
    conclude(judge_drift(node.facts, usual))


THIS_MACHINE: Final = ""
"""This machine's clock among the nodes': it votes, and is no part of the job."""


class Time(Struct, frozen=True):
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


def agreed_time(clocks: Sequence[Clock], limit: Thresholds) -> Time:
    """The moment that most clocks allow; each clock may be off by half of `clock_apart_s`."""
    slack_s = limit("clock_apart_s") / 2
    starts = [(clock.ahead_s - clock.uncertain_s - slack_s, -1) for clock in clocks]
    ends = [(clock.ahead_s + clock.uncertain_s + slack_s, 1) for clock in clocks]
    edges = sorted(starts + ends)
    best, votes = Time(0.0, 0.0, 0, len(clocks)), 0
    for position, (edge_s, kind) in enumerate(edges):
        votes -= kind
        if votes > best.votes:
            best = Time(edge_s, edges[position + 1][0], votes, len(clocks))
    return best


class Offset(Struct, frozen=True):
    """How far a clock is off: as seen, and the least that the round trip allows."""

    seen_s: float
    at_least_s: float


def clocks_off(clocks: Mapping[str, Clock], time: Time, limit: Thresholds) -> dict[str, Offset]:
    """The clocks that are off by more than the limit, by name, the farthest first."""
    middle_s = (time.from_s + time.to_s) / 2
    offsets = {
        name: Offset(clock.ahead_s - middle_s, abs(time.off_s(clock)))
        for name, clock in clocks.items()
    }
    slack_s = limit("clock_apart_s") / 2
    off = [(name, offset) for name, offset in offsets.items() if offset.at_least_s > slack_s]
    return dict(sorted(off, key=lambda row: -row[1].at_least_s))


def in_words(off_s: float) -> str:
    """3600.1 s ahead, 4.2 s behind."""
    return f"{abs(off_s):.1f} s {'ahead' if off_s > 0 else 'behind'}"


ADVICE = "see chronyc tracking (or timedatectl); set it at once with chronyc makestep"
RENDEZVOUS_LOSS = "torchrun's c10d rendezvous considers the node dead"


def judge_clock(
    reaches: Mapping[str, Reach], facts: Mapping[str, Facts], limit: Thresholds
) -> Verdict:
    """Compare every node's clock and this machine's: one outside the common interval is off."""
    clocks = {name: reach.clock for name, reach in reaches.items() if reach.clock is not None}
    if without_clock := [name for name in reaches if name not in clocks]:
        sentence = f"the clocks of {', '.join(without_clock[:3])} were not compared"
        return unknown(sentence, advice="run again: the recorded run holds no clocks")
    if len(clocks) == 1 and next(iter(reaches.values())).transport == "local":
        return not_run("the node is this machine: it has one clock")
    time = agreed_time([Clock(0.0, 0.0), *clocks.values()], limit)
    clocks_astray = clocks_off({THIS_MACHINE: Clock(0.0, 0.0), **clocks}, time, limit)
    own_offset = clocks_astray.pop(THIS_MACHINE, None)
    ahead_s = {name: round(clock.ahead_s, 3) for name, clock in clocks.items()}
    if not time.decides:
        return _undecided_verdict(clocks, ahead_s, limit)
    if clocks_astray:
        return _off_verdict(clocks_astray, time, facts, ahead_s, limit)
    within_s = max(clock.uncertain_s for clock in clocks.values())
    summary = f"{count(len(clocks), 'clock')} within {within_s:.2f} s, as far as the answers show"
    if within_s > limit("clock_off_s"):
        return unknown(summary, advice="see why its answers take so long, then run again")
    own_clock = f"; this machine's is {in_words(own_offset.seen_s)}" if own_offset else ""
    return ok(summary + own_clock, ahead_s=ahead_s)


def _undecided_verdict(
    clocks: Mapping[str, Clock], ahead_s: dict[str, float], limit: Thresholds
) -> Verdict:
    apart = ", ".join(f"{name} {in_words(clock.ahead_s)}" for name, clock in clocks.items())
    sentence = f"no majority among {len(clocks) + 1} clocks; against this machine's: {apart}"
    far_s = max(abs(clock.ahead_s) - clock.uncertain_s for clock in clocks.values())
    conclude = fail if len(clocks) > 1 and far_s > limit("clock_off_s") else warn
    return conclude(sentence[:400], advice=f"on each and here: {ADVICE}", ahead_s=ahead_s)


def _off_verdict(
    astray: dict[str, Offset],
    time: Time,
    facts: Mapping[str, Facts],
    ahead_s: dict[str, float],
    limit: Thresholds,
) -> Verdict:
    name, worst = next(iter(astray.items()))
    machine = facts[name].machine
    agreeing = f"{time.votes} of {time.of}"
    sentence = f"the clock of {name} is {in_words(worst.seen_s)} of the {agreeing} that agree"
    sentence += f" (and {len(astray) - 1} more are off)" if len(astray) > 1 else ""
    sentence += "; no time service adjusts it" if machine and machine.clock_kept is False else ""
    most = limit("clock_off_s")
    if grave := [clock for clock, offset in astray.items() if offset.at_least_s > most]:
        sentence = f"{sentence}; beyond {most:g} s {RENDEZVOUS_LOSS}"
        return fail(sentence, advice=ADVICE, culprits=grave, ahead_s=ahead_s)
    sentence = f"{sentence}; at most {limit('clock_apart_s'):g} s is expected"
    return warn(sentence, advice=ADVICE, culprits=astray, ahead_s=ahead_s)


def test_host_clock(fleet: FleetView, conclude: Conclude) -> None:
    """Nodes whose clocks disagree lose their rendezvous, their tickets, and any order in their logs."""  # noqa: E501  `preflight list-checks` prints it
    reaches = {name: node.reach for name, node in fleet.nodes.items()}
    facts = {name: node.facts for name, node in fleet.nodes.items()}
    conclude(judge_clock(reaches, facts, fleet.limit))
