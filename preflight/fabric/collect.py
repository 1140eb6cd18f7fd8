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
from preflight.fabric.agent_events import DomainSeen, Lapsed, NcclLog, PairSeen, Trouble
from preflight.fabric.agents import Gone
from preflight.fabric.pair_summary import NO_CULPRIT, Silence, Word, who_broke_off
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

    from preflight.fabric.agent_events import Account, Event, InsideSeen
    from preflight.fabric.roster import Roster
    from preflight.fabric.schedule import Pairing, Rounds

    Key = tuple[int, int, str, str]
    """Round, rail, and both nodes."""
    Kind = tuple[int, Phase]


def clock_words(ends: Mapping[str, End]) -> str:
    """Say whose clock was set during a pair and by how much; "" if none was.

    Wrong sums count in any case.
    """
    if any(end.state == "corrupt" for end in ends.values()):
        return ""
    return "; ".join(_words(end.node, end.stepped_s) for end in ends.values() if end.stepped_s)


def clock_lines(sweep: Sweep) -> list[str]:
    """Return one sentence per node whose clock was set during the sweep."""
    most: dict[str, float] = {}
    for end in (end for pair in sweep.pairs for end in pair.ends):
        if abs(end.stepped_s) > abs(most.get(end.node, 0.0)):
            most[end.node] = end.stepped_s
    return [
        f"{_words(name, step_s)} during the sweep; what was measured goes by its steady clock and "
        f"stands; see what sets the clock of {name} (chronyc tracking, journalctl -u chronyd)"
        for name, step_s in most.items()
    ]


def _words(name: str, step_s: float) -> str:
    direction = "forward" if step_s > 0 else "back"
    return f"the clock of {name} was set {direction} by {span(abs(step_s))}"


class Accounts:
    """One account of each end of every pair on each of its rails, in some rounds.

    Inside a node the round is 0, and the second name is empty.
    """

    def __init__(self, who: Roster) -> None:
        self.ends: dict[Key, dict[str, End]] = {}
        self._backend = who.backend
        self._most: dict[Key, Mapping[Kind, int]] = {}

    def ask(self, key: Key, most: Mapping[Kind, int]) -> None:
        """Expect an account of each end; `most`: requested iterations by size and phase."""
        self.ends[key] = {}
        self._most[key] = most

    def expect(
        self, who: Roster, rounds: Rounds, most: Mapping[Kind, int], first: int = 0
    ) -> Accounts:
        """Ask for these rounds, numbered from `first` on."""
        for number, around in enumerate(rounds, first):
            for pair in around:
                for rail in who.rails_of(*pair):
                    self.ask((number, rail, *pair), most)
        return self

    @property
    def missing(self) -> Iterator[str]:
        """Nodes of which an account is missing."""
        return (n for key, ends in self.ends.items() for n in key[2:] if n and n not in ends)

    def take(self, name: str, key: Key, account: Account) -> bool:
        """Keep one account; False if that end was not asked for it or cannot have measured it."""
        asked = key in self.ends and name in key[2:] and name not in self.ends[key]
        if not asked or not fits(account, self._backend, self._most[key]):
            return False
        self.ends[key][name] = _as_end(name, account)
        return True

    def samples(self) -> tuple[PairSamples, ...]:
        """All accounts as samples of pairs."""
        return tuple(
            PairSamples(a, b, rail, number, self._backend, ends.get(a), ends.get(b))
            for (number, rail, a, b), ends in self.ends.items()
        )


def iterations(rungs: Iterable[Rung], soak: Rung | None = None) -> dict[Kind, int]:
    """How many iterations of each size are asked for, by size and phase."""
    most: dict[Kind, int] = {(rung.size_bytes, "ladder"): rung.iterations for rung in rungs}
    return most | {(soak.size_bytes, "soak"): soak.iterations} if soak is not None else most


def fits(account: Account, backend: str, most: Mapping[Kind, int]) -> bool:
    """Whether an account is possible: each size as requested and once, no more iterations."""
    timings = {(timing.size_bytes, timing.phase): timing for timing in account.timings}
    return (
        account.backend == backend
        and len(timings) == len(account.timings)
        and (account.state != "measured" or bool(timings))
        and all(
            0 < len(timing.times_us) <= most.get(kind, 0)
            and len(timing.gaps_us) == len(timing.times_us) >= len(timing.resumed)
            for kind, timing in timings.items()
        )
    )


def _as_end(name: str, account: Account) -> End:
    """Convert an account to a sample's end."""
    own = (field for field in End.__struct_fields__ if field != "node")
    return End(name, **{field: getattr(account, field) for field in own})


_FEW = 64  # only the last stragglers are examined pair by pair


class SweepAccounts:
    """All accounts of a sweep so far, and which nodes have finished."""

    def __init__(self, who: Roster) -> None:
        self.names = frozenset(who.names)
        self.done: set[str] = set()
        self.resting: set[str] = set()
        """Finished with all rounds so far, and ready for more."""
        self.lost: set[str] = set()
        self.stuck: set[str] = set()
        self.advice: dict[str, str] = {}
        self._words: list[Word] = []
        self._who = who
        self._rounds = 0
        """Expected rounds, retests included."""
        self._pairs = Accounts(who)
        self._to_come: dict[tuple[int, str, str], int] = {}
        """By round and pair: how many accounts are still missing."""
        self.scheduled = len(who.rounds)
        """Rounds from this number on are retests."""
        self.cut = False
        """Whether the time was up before the retests had finished."""
        self._expect(who, who.rounds)
        self._interner = TimeInterner()
        self._uncompacted: deque[tuple[dict[str, End], str]] = deque()
        self._inside = Accounts(who)
        self.logs: dict[tuple[str, int, int], NcclLogText] = {}
        """By node, rail and process."""
        own = iterations((*who.ladder, *who.inside_sizes))
        self.domain = Accounts(who).expect(who, who.domain_rounds, own)
        for name in filter(who.looks_inside, who.names):
            for rail in who.rails_of(name):
                self._inside.ask((0, rail, name, ""), own)
        self.complete = 0
        """Pairs with the accounts of both ends on all rails."""

    @property
    def expected(self) -> int:
        """How many pairs are expected, over all rounds."""
        return len(self._to_come)

    @property
    def through(self) -> set[str]:
        """Nodes that have finished all that was ordered."""
        return self.done | self.resting

    @property
    def retesting(self) -> bool:
        """Whether there are rounds beyond the scheduled ones."""
        return self._rounds > self.scheduled

    def ask_more(self, who: Roster) -> None:
        """Expect the further rounds of `who`, measured as it says."""
        more = who.rounds[self._rounds :]
        self._who = who
        self.resting.clear()
        self._expect(who, more)

    def waiting(self) -> list[str]:
        """Nodes that have neither finished nor been lost, in fleet order."""
        return [name for name in self._who.names if name not in self.through | self.lost]

    def open(self) -> bool:
        """Whether a pair of two nodes that still work has no account yet.

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

    def take(self, name: str, seen: PairSeen | InsideSeen | DomainSeen | NcclLog) -> bool:
        """Keep one account or log; False if that node was not asked or cannot have measured it."""
        if isinstance(seen, PairSeen):
            return self._take_pair(name, seen)
        if isinstance(seen, NcclLog):
            return self._take_log(name, seen)
        if isinstance(seen, DomainSeen):
            return self.domain.take(name, (seen.round, seen.rail, seen.a, seen.b), seen)
        return self._inside.take(name, (0, seen.rail, name, ""), seen)

    def _take_log(self, name: str, log: NcclLog) -> bool:
        """Keep the latest log of each of a rail's first processes."""
        expected = self._who.keep_logs and log.rail < self._who.rails
        earlier = sum(key[:2] == (name, log.rail) for key in self.logs)
        if expected and ((name, log.rail, log.pid) in self.logs or earlier < LOGS_EACH):
            self.logs[name, log.rail, log.pid] = NcclLogText(name, log.rail, log.text)
        return expected

    def _take_pair(self, name: str, account: PairSeen) -> bool:
        key = account.round, account.rail, account.a, account.b
        if not self._pairs.take(name, key, account):
            return False
        self._uncompacted.append((self._pairs.ends[key], name))
        self._to_come[account.round, account.a, account.b] -= 1
        self.complete += not self._to_come[account.round, account.a, account.b]
        return True

    def compact_one(self) -> bool:
        """Compact one more account of a pair; False if none is left. For idle moments."""
        if not self._uncompacted:
            return False
        ends, name = self._uncompacted.popleft()
        ends[name] = self._interner.end(ends[name])
        return True

    def complain(self, name: str, error: str, advice: str = "") -> None:
        """Keep a node's error, in the order in which errors arrive."""
        self.stuck.add(name)
        if advice:
            self.advice.setdefault(name, advice)
        self._words.append(Word(name, "error", error))

    def lose(
        self, name: str, reason: str = "", advice: str = "", kind: Literal["gone", "error"] = "gone"
    ) -> None:
        """Count a node as gone; its accounts are kept.

        `kind` "error": it stopped because of another node. Without a reason the fault is ours.
        """
        if name in self.done:
            return
        self.lost.add(name)
        if reason:
            self._words.append(Word(name, kind, reason))
        if advice:
            self.advice.setdefault(name, advice)

    def give_up(self, names: Iterable[str]) -> None:
        """Stop waiting for these nodes; one whose accounts are all here is not at fault.

        It was held up by partners that had broken off.
        """
        unfinished_nodes = self._with_open_accounts()
        for name in names:
            self.lost.add(name)
            if name in unfinished_nodes:
                reason = "its agent sent nothing more, and did not finish in time"
                self._words.append(Word(name, "silent", reason))

    def _with_open_accounts(self) -> set[str]:
        """Nodes whose account is missing of a pair whose other end has not broken off."""
        off = self.lost | self.stuck
        return {
            name
            for (_, _, a, b), ends in self._pairs.ends.items()
            for name, partner in ((a, b), (b, a))
            if name not in ends and partner not in off
        }

    def inside(self) -> tuple[InsideSamples, ...]:
        """Return the accounts of all rails of each node that has several."""
        by_node = grouped((key[2], (key[1], ends)) for key, ends in self._inside.ends.items())
        samples = []
        for name, accounts in by_node.items():
            numbers, ends = zip(*accounts, strict=True)
            rails = tuple(end.get(name) for end in ends)
            numbered = numbers if numbers != tuple(range(len(rails))) else ()
            samples.append(InsideSamples(name, self._who.backend, rails, numbered))
        return tuple(samples)

    def pairs(self, unfinished: str = "") -> tuple[PairSamples, ...]:
        """Return both ends' accounts of every pair, rail and round of the launch.

        `unfinished`: why we stopped before all accounts had come: a missing account then gets that
        reason, and its node is not blamed.
        """
        silence, backend = self.silence(), self._who.backend
        pairs = []
        for (number, rail, a, b), accounts in self._pairs.ends.items():
            if number < self.scheduled or self._counts(accounts, unfinished):
                ends = self._excuse_waiting(a, b, accounts, silence, unfinished)
                pairs.append(PairSamples(a, b, rail, number, backend, ends.get(a), ends.get(b)))
        return tuple(pairs)

    def _counts(self, retested: dict[str, End], unfinished: str) -> bool:
        """Whether a retest counts: one that we cut short does not."""
        complete = len(retested) > 1
        return complete or (bool(retested) and not unfinished and not self.cut)

    def unsettled(self) -> tuple[Pairing, ...]:
        """Return the pairs whose retests were all cut short for lack of time."""
        again = [
            (key[2:], ends) for key, ends in self._pairs.ends.items() if key[0] >= self.scheduled
        ]
        settled = {pair for pair, ends in again if len(ends) == len(pair)}
        pairs = dict.fromkeys(pair for pair, _ in again if pair not in settled)
        return tuple(pairs) if self.cut else ()

    def silence(self) -> Silence:
        """Return which nodes broke off, and which only waited for them."""
        if not self._who.names:  # the time was up before anyone was ready
            return Silence()
        ends = (end for accounts in self._pairs.ends.values() for end in accounts.values())
        measured = {end.node for end in ends if end.state == "measured"}
        return who_broke_off(
            self._words,
            nodes=self._who.names,
            host=self._who.host,
            through=(self.through - self.lost - self.stuck) & measured,
        )

    def _excuse_waiting(
        self, a: str, b: str, ends: dict[str, End], silence: Silence, unfinished: str
    ) -> dict[str, End]:
        """Return a pair's accounts without blame for nodes that only waited for others."""
        host = self._who.host
        good = {name: end for name, end in ends.items() if end.state == "measured"}
        if len(good) == len((a, b)) or not silence.culprits.keys().isdisjoint((a, b)):
            return ends
        if stepped := clock_words(good | ends):
            return {name: End(name, "not_run", error=stepped) for name in (a, b)} | good
        if unfinished:
            return {name: End(name, "not_run", error=unfinished) for name in (a, b)} | ends
        waited = [f"{name} {silence.victims[name]}" for name in (a, b) if name in silence.victims]
        if not waited and host not in silence.culprits:
            return ends
        loss = f"{host}, which hosted the sweep's store, was lost"
        error = (
            waited[0] if waited and silence.culprits else loss if silence.culprits else NO_CULPRIT
        )
        return {name: End(node=name, state="not_run", error=error) for name in (a, b)} | good

    def _expect(self, who: Roster, rounds: Rounds) -> None:
        most = iterations(who.ladder, who.soak)
        self._pairs.expect(who, rounds, most, self._rounds)
        for number, around in enumerate(rounds, self._rounds):
            for a, b in around:
                if rails := who.rails_of(a, b):
                    self._to_come[number, a, b] = 2 * len(rails)
        self._rounds += len(rounds)


TIME_UP = "the run's time was up before it was measured; give more: --preflight-budget=SECONDS"
_INTERRUPTED = "interrupted before it was measured"
_STOOD_STILL = (
    "preflight itself was suspended for {0:.0f} s (stopped, or its machine slept), so the nodes "
    "stopped as they should; no node is blamed: run again"
)


class EarlyEnd:
    """Whether and why a sweep ends before all that was planned is measured."""

    def __init__(self, ends: float, own: SuspendDetector, collected: SweepAccounts) -> None:
        """`ends`: the deadline, by the monotonic clock. `own`: watches this process."""
        self.ends = ends
        self.collected = collected
        self.why = ""
        """"" while all goes as planned, or if only retests were cut."""
        self._own = own

    @property
    def left_s(self) -> float:
        """Seconds until the time is up."""
        return self.ends - time.monotonic()

    def time_is_up(self) -> bool:
        """Whether the time is up; the sweep is then unfinished, unless only retests were left."""
        if self.left_s > 0:
            return bool(self.why)
        self._cut(TIME_UP)
        return True

    def our_fault(self, event: Event | Gone) -> bool:
        """Whether our own suspension explains a loss; the sweep is then unfinished.

        After a suspension of about the lease all nodes stop, and their partners report that.
        """
        hole_s = self._own.recent_s()
        bad = isinstance(event, Gone | Lapsed | Trouble) or (
            isinstance(event, PairSeen) and event.state != "measured"
        )
        if not bad or hole_s < LEASE_S - RENEW_S - 1:
            return False
        self._cut(_STOOD_STILL.format(hole_s))
        return True

    def interrupt(self) -> None:
        """Note that the operator interrupted, so that missing results blame no node."""
        self.why = _INTERRUPTED

    def _cut(self, why: str) -> None:
        if self.collected.retesting:
            self.collected.cut = True
        else:
            self.why = why
