"""Collects a sweep's accounts: which nodes have finished, whose account is missing, and why.

Accounts are of pairs, of the inside of nodes, and of NVLink between nodes. Each end's account is
kept once, if that end was asked for it and the account is possible.

Durations are measured with steady clocks, so measurements stay valid if a clock is set. But some
libraries wait by the wall clock (gloo built for an old glibc), so a failed wait proves nothing.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Literal

from preflight.core.statistics import grouped
from preflight.core.text import span
from preflight.fabric.agent_events import DomainAccount, Lapsed, NcclLog, PairAccount, Trouble
from preflight.fabric.agents import SessionEnd
from preflight.fabric.pair_summary import NO_CULPRIT, Breakdown, LastMessage, find_breakdown
from preflight.fabric.samples import (
    End,
    InsideSamples,
    NcclLogText,
    PairSamples,
    Phase,
    Rung,
    Sweep,
    TimeInterner,
)
from preflight.fabric.sweep_plan import LOGS_EACH
from preflight.transport.payload_session import LEASE_S, RENEW_S, SuspendDetector

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from preflight.fabric.agent_events import Account, Event, Measurement
    from preflight.fabric.roster import Roster
    from preflight.fabric.schedule import Pairing, Rounds

    Key = tuple[int, int, str, str]
    """Round, rail, and both nodes."""
    Kind = tuple[int, Phase]


def clock_error(ends: Mapping[str, End]) -> str:
    """Say whose clock was set during a pair and by how much; "" if none was.

    Wrong sums count in any case.
    """
    if any(end.state == "corrupt" for end in ends.values()):
        return ""
    return "; ".join(_clock_step(end.node, end.stepped_s) for end in ends.values() if end.stepped_s)


def clock_lines(sweep: Sweep) -> list[str]:
    """Return one sentence per node whose clock was set during the sweep."""
    most: dict[str, float] = {}
    for end in (end for pair in sweep.pairs for end in pair.ends):
        if abs(end.stepped_s) > abs(most.get(end.node, 0.0)):
            most[end.node] = end.stepped_s
    return [
        f"{_clock_step(name, step_s)} during the sweep; what was measured goes by its steady clock "
        f"and stands; see what sets the clock of {name} (chronyc tracking, journalctl -u chronyd)"
        for name, step_s in most.items()
    ]


def _clock_step(name: str, step_s: float) -> str:
    direction = "forward" if step_s > 0 else "back"
    return f"the clock of {name} was set {direction} by {span(abs(step_s))}"


class Accounts:
    """One account of each end of every pair on each of its rails, in some rounds.

    Inside a node the round is 0, and the second name is empty.
    """

    def __init__(self, roster: Roster) -> None:
        self.ends: dict[Key, dict[str, End]] = {}
        self._backend = roster.backend
        self._iterations: dict[Key, Mapping[Kind, int]] = {}

    def expect(self, key: Key, iterations: Mapping[Kind, int]) -> None:
        """Expect an account of each end; `iterations`: those ordered, by size and phase."""
        self.ends[key] = {}
        self._iterations[key] = iterations

    def expect_rounds(
        self, roster: Roster, rounds: Rounds, iterations: Mapping[Kind, int], first: int = 0
    ) -> Accounts:
        """Expect the accounts of these rounds, numbered from `first` on."""
        for number, round_pairs in enumerate(rounds, first):
            for pair in round_pairs:
                for rail in roster.rails_of(*pair):
                    self.expect((number, rail, *pair), iterations)
        return self

    @property
    def missing(self) -> Iterator[str]:
        """Nodes of which an account is missing."""
        return (n for key, ends in self.ends.items() for n in key[2:] if n and n not in ends)

    def add(self, name: str, key: Key, account: Account) -> bool:
        """Add an account; False if that end was not asked for it or cannot have measured it."""
        expected = key in self.ends and name in key[2:] and name not in self.ends[key]
        if not expected or not is_possible(account, self._backend, self._iterations[key]):
            return False
        fields = (field for field in End.__struct_fields__ if field != "node")
        self.ends[key][name] = End(name, **{field: getattr(account, field) for field in fields})
        return True

    def samples(self) -> tuple[PairSamples, ...]:
        """All accounts as samples of pairs."""
        return tuple(
            PairSamples(a, b, rail, number, self._backend, ends.get(a), ends.get(b))
            for (number, rail, a, b), ends in self.ends.items()
        )


def requested_iterations(rungs: Iterable[Rung], soak: Rung | None = None) -> dict[Kind, int]:
    """The number of iterations that were ordered, by size and phase."""
    counts: dict[Kind, int] = {(rung.size_bytes, "ladder"): rung.iterations for rung in rungs}
    return counts | {(soak.size_bytes, "soak"): soak.iterations} if soak is not None else counts


def is_possible(account: Account, backend: str, iterations: Mapping[Kind, int]) -> bool:
    """Whether an account is possible: each size as requested and once, no more iterations."""
    timings = {(timing.size_bytes, timing.phase): timing for timing in account.timings}
    return (
        account.backend == backend
        and len(timings) == len(account.timings)
        and (account.state != "measured" or bool(timings))
        and all(
            0 < len(timing.times_us) <= iterations.get(kind, 0)
            and len(timing.gaps_us) == len(timing.times_us) >= len(timing.resumed)
            for kind, timing in timings.items()
        )
    )


_FEW = 64  # only the last stragglers are examined pair by pair


class SweepAccounts:
    """All accounts of a sweep so far, and which nodes have finished."""

    def __init__(self, roster: Roster) -> None:
        self.names = frozenset(roster.names)
        self.done: set[str] = set()
        self.resting: set[str] = set()
        """Finished with all rounds so far, and ready for more."""
        self.lost: set[str] = set()
        self.stuck: set[str] = set()
        self.advice: dict[str, str] = {}
        self._messages: list[LastMessage] = []
        self._roster = roster
        self._rounds = 0
        """Expected rounds, retests included."""
        self._pairs = Accounts(roster)
        self._missing: dict[tuple[int, str, str], int] = {}
        """By round and pair: how many accounts are still missing."""
        self.scheduled = len(roster.rounds)
        """Rounds from this number on are retests."""
        self.cut = False
        """Whether the time was up before the retests had finished."""
        self._expect(roster, roster.rounds)
        self._interner = TimeInterner()
        self._uncompacted: deque[tuple[dict[str, End], str]] = deque()
        self._inside = Accounts(roster)
        self.logs: dict[tuple[str, int, int], NcclLogText] = {}
        """By node, rail and process."""
        iterations = requested_iterations((*roster.ladder, *roster.inside_sizes))
        self.domain = Accounts(roster).expect_rounds(roster, roster.domain_rounds, iterations)
        for name in filter(roster.measures_inside, roster.names):
            for rail in roster.rails_of(name):
                self._inside.expect((0, rail, name, ""), iterations)
        self.complete = 0
        """Pairs with the accounts of both ends on all rails."""

    @property
    def expected(self) -> int:
        """How many pairs are expected, over all rounds."""
        return len(self._missing)

    @property
    def finished(self) -> set[str]:
        """Nodes that have finished all that was ordered."""
        return self.done | self.resting

    @property
    def retesting(self) -> bool:
        """Whether there are rounds beyond the scheduled ones."""
        return self._rounds > self.scheduled

    def expect_more(self, roster: Roster) -> None:
        """Expect the rounds by which `roster` is longer, measured as it says."""
        self._roster = roster
        self.resting.clear()
        self._expect(roster, roster.rounds[self._rounds :])

    def waiting(self) -> list[str]:
        """Nodes that have neither finished nor been lost, in fleet order."""
        return [name for name in self._roster.names if name not in self.finished | self.lost]

    def has_open_pairs(self) -> bool:
        """Whether a pair of two nodes that still measure has no account yet.

        Or such a node's account of its inside, or of its NVLink domain, is missing.
        """
        under_way = set(self.waiting())
        return (
            len(under_way) > _FEW
            or not under_way.isdisjoint(self._inside.missing)
            or not under_way.isdisjoint(self.domain.missing)
            or any(
                not ends and a in under_way and b in under_way
                for (_, _, a, b), ends in self._pairs.ends.items()
            )
        )

    def add(self, name: str, event: Measurement) -> bool:
        """Add an account or a log; False if that node was not asked or cannot have measured it."""
        if isinstance(event, PairAccount):
            return self._add_pair(name, event)
        if isinstance(event, NcclLog):
            return self._add_log(name, event)
        if isinstance(event, DomainAccount):
            return self.domain.add(name, (event.round, event.rail, event.a, event.b), event)
        return self._inside.add(name, (0, event.rail, name, ""), event)

    def _add_log(self, name: str, log: NcclLog) -> bool:
        """Keep the latest log of each of a rail's first processes."""
        expected = self._roster.keep_logs and log.rail < self._roster.rails
        earlier = sum(key[:2] == (name, log.rail) for key in self.logs)
        if expected and ((name, log.rail, log.pid) in self.logs or earlier < LOGS_EACH):
            self.logs[name, log.rail, log.pid] = NcclLogText(name, log.rail, log.text)
        return expected

    def _add_pair(self, name: str, account: PairAccount) -> bool:
        key = account.round, account.rail, account.a, account.b
        if not self._pairs.add(name, key, account):
            return False
        self._uncompacted.append((self._pairs.ends[key], name))
        self._missing[account.round, account.a, account.b] -= 1
        self.complete += not self._missing[account.round, account.a, account.b]
        return True

    def compact_one(self) -> bool:
        """Compact one more account of a pair; False if none is left. For idle moments."""
        if not self._uncompacted:
            return False
        ends, name = self._uncompacted.popleft()
        ends[name] = self._interner.end(ends[name])
        return True

    def add_error(self, name: str, error: str, advice: str = "") -> None:
        """Keep a node's error, in the order in which errors arrive."""
        self.stuck.add(name)
        if advice:
            self.advice.setdefault(name, advice)
        self._messages.append(LastMessage(name, "error", error))

    def mark_lost(
        self, name: str, reason: str = "", advice: str = "", kind: Literal["gone", "error"] = "gone"
    ) -> None:
        """Count a node as gone; its accounts are kept.

        `kind` "error": it stopped because of another node. Without a reason the fault is ours.
        """
        if name in self.done:
            return
        self.lost.add(name)
        if reason:
            self._messages.append(LastMessage(name, kind, reason))
        if advice:
            self.advice.setdefault(name, advice)

    def give_up(self, names: Iterable[str]) -> None:
        """Stop waiting for these nodes; one whose accounts are all here is not at fault.

        It was held up by partners that had broken off.
        """
        unfinished_nodes = self._nodes_with_missing_accounts()
        for name in names:
            self.lost.add(name)
            if name in unfinished_nodes:
                reason = "its agent sent nothing more, and did not finish in time"
                self._messages.append(LastMessage(name, "silent", reason))

    def _nodes_with_missing_accounts(self) -> set[str]:
        """Nodes with a missing account of a pair whose other end has not failed."""
        broken_off = self.lost | self.stuck
        return {
            name
            for (_, _, a, b), ends in self._pairs.ends.items()
            for name, partner in ((a, b), (b, a))
            if name not in ends and partner not in broken_off
        }

    def inside(self) -> tuple[InsideSamples, ...]:
        """Return the accounts of all rails of each node that has several."""
        by_node = grouped((key[2], (key[1], ends)) for key, ends in self._inside.ends.items())
        samples = []
        for name, accounts in by_node.items():
            numbers, ends = zip(*accounts, strict=True)
            rails = tuple(end.get(name) for end in ends)
            numbered = numbers if numbers != tuple(range(len(rails))) else ()
            samples.append(InsideSamples(name, self._roster.backend, rails, numbered))
        return tuple(samples)

    def pairs(self, unfinished: str = "") -> tuple[PairSamples, ...]:
        """Return both ends' accounts of every pair, rail and round of the launch.

        `unfinished`: why we stopped before all accounts had come: a missing account then gets that
        reason, and its node is not blamed.
        """
        breakdown, backend = self.breakdown(), self._roster.backend
        pairs = []
        for (number, rail, a, b), accounts in self._pairs.ends.items():
            if number < self.scheduled or self._retest_counts(accounts, unfinished):
                ends = self._excuse_waiting(a, b, accounts, breakdown, unfinished)
                pairs.append(PairSamples(a, b, rail, number, backend, ends.get(a), ends.get(b)))
        return tuple(pairs)

    def _retest_counts(self, retested: dict[str, End], unfinished: str) -> bool:
        """Whether a retest counts: one that we cut short does not."""
        complete = len(retested) > 1
        return complete or (bool(retested) and not unfinished and not self.cut)

    def unsettled(self) -> tuple[Pairing, ...]:
        """Return the pairs whose retests were all cut short for lack of time."""
        retests = [
            (key[2:], ends) for key, ends in self._pairs.ends.items() if key[0] >= self.scheduled
        ]
        settled = {pair for pair, ends in retests if len(ends) == len(pair)}
        pairs = dict.fromkeys(pair for pair, _ in retests if pair not in settled)
        return tuple(pairs) if self.cut else ()

    def breakdown(self) -> Breakdown:
        """Return which nodes failed, and which only waited for them."""
        if not self._roster.names:  # the time was up before anyone was ready
            return Breakdown()
        ends = (end for accounts in self._pairs.ends.values() for end in accounts.values())
        measured = {end.node for end in ends if end.state == "measured"}
        return find_breakdown(
            self._messages,
            nodes=self._roster.names,
            host=self._roster.host,
            finished=(self.finished - self.lost - self.stuck) & measured,
        )

    def _excuse_waiting(
        self, a: str, b: str, ends: dict[str, End], breakdown: Breakdown, unfinished: str
    ) -> dict[str, End]:
        """Return a pair's accounts without blame for nodes that only waited for others."""
        host = self._roster.host
        good = {name: end for name, end in ends.items() if end.state == "measured"}
        if len(good) == len((a, b)) or not breakdown.culprits.keys().isdisjoint((a, b)):
            return ends
        if stepped := clock_error(good | ends):
            return {name: End(name, "not_run", error=stepped) for name in (a, b)} | good
        if unfinished:
            return {name: End(name, "not_run", error=unfinished) for name in (a, b)} | ends
        culprits, victims = breakdown.culprits, breakdown.victims
        waited = [f"{name} {victims[name]}" for name in (a, b) if name in victims]
        if not waited and host not in culprits:
            return ends
        loss = f"{host}, which hosted the sweep's store, was lost"
        error = (waited[0] if waited else loss) if culprits else NO_CULPRIT
        return {name: End(node=name, state="not_run", error=error) for name in (a, b)} | good

    def _expect(self, roster: Roster, rounds: Rounds) -> None:
        iterations = requested_iterations(roster.ladder, roster.soak)
        self._pairs.expect_rounds(roster, rounds, iterations, self._rounds)
        for number, round_pairs in enumerate(rounds, self._rounds):
            for a, b in round_pairs:
                if rails := roster.rails_of(a, b):
                    self._missing[number, a, b] = 2 * len(rails)
        self._rounds += len(rounds)


TIME_UP = "the run's time was up before it was measured; give more: --preflight-budget=SECONDS"
_INTERRUPTED = "interrupted before it was measured"
_STOOD_STILL = (
    "preflight itself was suspended for {0:.0f} s (stopped, or its machine slept), so the nodes "
    "stopped as they should; no node is blamed: run again"
)


class EarlyEnd:
    """Whether and why a sweep ends before all that was planned is measured."""

    def __init__(self, deadline: float, detector: SuspendDetector, accounts: SweepAccounts) -> None:
        """`deadline`: by the monotonic clock. `detector`: watches this process."""
        self.deadline = deadline
        self.accounts = accounts
        self.why = ""
        """"" while all goes as planned, or if only retests were cut."""
        self._detector = detector

    @property
    def left_s(self) -> float:
        """Seconds until the time is up."""
        return self.deadline - time.monotonic()

    def time_is_up(self) -> bool:
        """Whether the time is up; the sweep is then unfinished, unless only retests were left."""
        if self.left_s > 0:
            return bool(self.why)
        self._end_early(TIME_UP)
        return True

    def is_our_fault(self, event: Event | SessionEnd) -> bool:
        """Whether our own suspension explains a loss; the sweep is then unfinished.

        After a suspension of about the lease all nodes stop, and their partners report that.
        """
        suspended_s = self._detector.recent_s()
        bad = isinstance(event, SessionEnd | Lapsed | Trouble) or (
            isinstance(event, PairAccount) and event.state != "measured"
        )
        if not bad or suspended_s < LEASE_S - RENEW_S - 1:
            return False
        self._end_early(_STOOD_STILL.format(suspended_s))
        return True

    def interrupt(self) -> None:
        """Note that the operator interrupted, so that missing results blame no node."""
        self.why = _INTERRUPTED

    def _end_early(self, why: str) -> None:
        if self.accounts.retesting:
            self.accounts.cut = True
        else:
            self.why = why
