"""A sweep as it comes in: who is through, whose account is missing, and why.

Durations are counted by steady clocks, so what was measured stands. But libraries wait by the wall
clock (gloo built for an old glibc does), so a wait that failed meanwhile proves nothing.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Literal

from preflight.core.text import span
from preflight.fabric.accounts import Insides, PairAccounts, iterations
from preflight.fabric.agent_events import DomainSeen, Lapsed, NcclLog, PairSeen, Trouble
from preflight.fabric.agents import Gone
from preflight.fabric.measure import NOBODY, Silence, Word, who_broke_off
from preflight.fabric.plan import LOGS_EACH
from preflight.fabric.samples import End, Logged, PairSamples, TimeInterner
from preflight.transport.payload_session import LEASE_S, RENEW_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from preflight.fabric.agent_events import Event, InsideSeen
    from preflight.fabric.roster import Roster
    from preflight.fabric.samples import Sweep
    from preflight.fabric.schedule import Pairing, Rounds
    from preflight.transport.payload_session import SuspendDetector


def clock_words(ends: Mapping[str, End]) -> str:
    """Say whose clock was set during a pair and by how much; nothing if none was.

    Wrong sums are wrong at any time of the day.
    """
    if any(end.state == "corrupt" for end in ends.values()):
        return ""
    return "; ".join(_words(end.node, end.stepped_s) for end in ends.values() if end.stepped_s)


def clock_lines(sweep: Sweep) -> list[str]:
    """One sentence per node whose clock was set during the sweep."""
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


_FEW = 64  # only the last stragglers are looked at pair by pair


class Collected:
    """What has been said so far, by whom, and who is through."""

    def __init__(self, who: Roster) -> None:
        self.names = frozenset(who.names)
        self.done: set[str] = set()
        self.resting: set[str] = set()
        """Through with all rounds so far, and ready for more."""
        self.lost: set[str] = set()
        self.stuck: set[str] = set()
        self.advice: dict[str, str] = {}
        self._words: list[Word] = []
        self._who = who
        self._rounds = 0
        """So many are expected, retests included."""
        self._pairs = PairAccounts(who)
        self._to_come: dict[tuple[int, str, str], int] = {}
        """By round and pair: how many accounts are still to come."""
        self.scheduled = len(who.rounds)
        """Rounds from this number on are retests."""
        self.cut = False
        """The time was up before the retests were through."""
        self._expect(who, who.rounds)
        self._thrift = TimeInterner()
        self._untidy: deque[tuple[dict[str, End], str]] = deque()
        self.inside = Insides(who)
        self.logs: dict[tuple[str, int, int], Logged] = {}
        """By node, rail and process."""
        own = iterations((*who.ladder, *who.inside_sizes))
        self.domain = PairAccounts(who).expect(who, who.domain_rounds, own)
        self.complete = 0
        """Pairs of which all ends have spoken, on all rails."""

    @property
    def expected(self) -> int:
        """How many pairs there are, each round counted."""
        return len(self._to_come)

    @property
    def through(self) -> set[str]:
        """Who has been through all that was ordered."""
        return self.done | self.resting

    @property
    def retesting(self) -> bool:
        """Whether there are rounds beyond the scheduled ones."""
        return self._rounds > self.scheduled

    def ask_more(self, who: Roster) -> None:
        """Expect the rounds that `who` has beyond those known so far, measured as it says."""
        more = who.rounds[self._rounds :]
        self._who = who
        self.resting.clear()
        self._expect(who, more)

    def waiting(self) -> list[str]:
        """Who is neither through nor lost, in fleet order."""
        return [name for name in self._who.names if name not in self.through | self.lost]

    def open(self) -> bool:
        """Whether any pair of two nodes still under way has not been heard of by either end.

        Or not all of what goes on inside of such a node, or in its NVLink domain.
        """
        under_way = set(self.waiting())
        return (
            len(under_way) > _FEW
            or not under_way.isdisjoint(self.inside.missing)
            or not under_way.isdisjoint(self.domain.missing)
            or any(
                not ends and a in under_way and b in under_way
                for (_, _, a, b), ends in self._pairs.ends.items()
            )
        )

    def take(self, name: str, seen: PairSeen | InsideSeen | DomainSeen | NcclLog) -> bool:
        """Keep one account or log; False if that node was not asked or cannot have seen it."""
        if isinstance(seen, PairSeen):
            return self._take_pair(name, seen)
        if isinstance(seen, NcclLog):
            return self._take_log(name, seen)
        if isinstance(seen, DomainSeen):
            return self.domain.take(name, seen)
        return self.inside.take(name, seen)

    def _take_log(self, name: str, log: NcclLog) -> bool:
        """Of a rail that logs in process after process, the first ones are kept, as last sent."""
        asked = self._who.keep_logs and log.rail < self._who.rails
        earlier = sum(one[:2] == (name, log.rail) for one in self.logs)
        if asked and ((name, log.rail, log.pid) in self.logs or earlier < LOGS_EACH):
            self.logs[name, log.rail, log.pid] = Logged(name, log.rail, log.text)
        return asked

    def _take_pair(self, name: str, seen: PairSeen) -> bool:
        if not self._pairs.take(name, seen):
            return False
        ends = self._pairs.ends[seen.round, seen.rail, seen.a, seen.b]
        self._untidy.append((ends, name))
        self._to_come[seen.round, seen.a, seen.b] -= 1
        self.complete += not self._to_come[seen.round, seen.a, seen.b]
        return True

    def tidy(self) -> bool:
        """Make one more account of a pair small; False if there is none left. For idle moments."""
        if not self._untidy:
            return False
        ends, name = self._untidy.popleft()
        ends[name] = self._thrift.end(ends[name])
        return True

    def complain(self, name: str, error: str, advice: str = "") -> None:
        """Keep what a node said went wrong, in its place among what the others say."""
        self.stuck.add(name)
        if advice:
            self.advice.setdefault(name, advice)
        self._words.append(Word(name, "said", error))

    def lose(
        self, name: str, reason: str = "", advice: str = "", kind: Literal["gone", "said"] = "gone"
    ) -> None:
        """Count a node as gone; what it said before is kept.

        `said`: it left on somebody else's account. Without a reason it is our own fault.
        """
        if name in self.done:
            return
        self.lost.add(name)
        if reason:
            self._words.append(Word(name, kind, reason))
        if advice:
            self.advice.setdefault(name, advice)

    def give_up(self, names: Iterable[str]) -> None:
        """Wait no longer for these nodes; who has told all that it could has nothing to answer for.

        Such a one was held up by partners that had broken off.
        """
        unfinished_nodes = self._with_open_accounts()
        for name in names:
            self.lost.add(name)
            if name in unfinished_nodes:
                reason = "its agent said nothing more, and did not finish in time"
                self._words.append(Word(name, "silent", reason))

    def _with_open_accounts(self) -> set[str]:
        """Who has an account open of a pair whose other end has not broken off."""
        off = self.lost | self.stuck
        return {
            name
            for (_, _, a, b), ends in self._pairs.ends.items()
            for name, other in ((a, b), (b, a))
            if name not in ends and other not in off
        }

    def pairs(self, unfinished: str = "") -> tuple[PairSamples, ...]:
        """Both ends' accounts of every pair, rail and round of the launch.

        `unfinished`: why we stopped listening, if we did so before all had spoken: accounts that
        are missing for that reason say so, and nothing against their nodes.
        """
        silence = self.silence()
        return tuple(
            PairSamples(a, b, rail, number, self._who.backend, ends.get(a), ends.get(b))
            for (number, rail, a, b), kept in self._pairs.ends.items()
            if number < self.scheduled or self._counts(kept, unfinished)
            for ends in (self._excused(a, b, kept, silence, unfinished),)
        )

    def _counts(self, retested: dict[str, End], unfinished: str) -> bool:
        """Retests are extra: one that was cut short by us says nothing."""
        whole = len(retested) > 1
        return whole or (bool(retested) and not unfinished and not self.cut)

    def unsettled(self) -> tuple[Pairing, ...]:
        """Pairs whose retests were all cut short for lack of time."""
        again = [
            (key[2:], ends) for key, ends in self._pairs.ends.items() if key[0] >= self.scheduled
        ]
        settled = {pair for pair, ends in again if len(ends) == len(pair)}
        left = dict.fromkeys(pair for pair, _ in again if pair not in settled)
        return tuple(left) if self.cut else ()

    def silence(self) -> Silence:
        """Who broke off, and who only waited for them."""
        if not self._who.names:  # the time was up before anyone was ready
            return Silence()
        ends = (end for kept in self._pairs.ends.values() for end in kept.values())
        measured = {end.node for end in ends if end.state == "measured"}
        return who_broke_off(
            self._words,
            nodes=self._who.names,
            host=self._who.host,
            through=(self.through - self.lost - self.stuck) & measured,
        )

    def _excused(
        self, a: str, b: str, ends: dict[str, End], silence: Silence, unfinished: str
    ) -> dict[str, End]:
        """A pair that was not finished says nothing of nodes that merely waited for others."""
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
        lost = f"{host}, which hosted the sweep's store, was lost"
        error = waited[0] if waited and silence.culprits else lost if silence.culprits else NOBODY
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
    "preflight itself stood still for {0:.0f} s (stopped, or its machine slept), so the nodes left "
    "as they should: nothing is known against them; run again"
)


class CutShort:
    """Whether and why one sweep ends before all that was planned is measured."""

    def __init__(self, ends: float, own: SuspendDetector) -> None:
        """`ends`: when the time is up, by the monotonic clock. `own`: watches this process."""
        self.ends = ends
        self.why = ""
        """Nothing while all goes as planned, or when only retests were cut."""
        self.collected: Collected | None = None
        """The accounts, once there are any to come."""
        self._own = own

    @property
    def left_s(self) -> float:
        """Seconds until the time is up."""
        return self.ends - time.monotonic()

    def time_is_up(self) -> bool:
        """Say so; from then on the sweep is unfinished, unless only retests were under way."""
        if self.left_s > 0:
            return bool(self.why)
        self._cut(TIME_UP)
        return True

    def our_fault(self, event: Event | Gone) -> bool:
        """Whether a loss is explained by our own standing still; the sweep is unfinished then.

        After a hole of about the lease all nodes leave, and their partners complain of them.
        """
        hole_s = self._own.recent_s(LEASE_S)
        bad = isinstance(event, Gone | Lapsed | Trouble) or (
            isinstance(event, PairSeen) and event.state != "measured"
        )
        if not bad or hole_s < LEASE_S - RENEW_S - 1:
            return False
        self._cut(_STOOD_STILL.format(hole_s))
        return True

    def interrupt(self) -> None:
        """Whatever is missing from here on, the operator did not want to wait for it."""
        self.why = _INTERRUPTED

    def _cut(self, why: str) -> None:
        if self.collected is not None and self.collected.retesting:
            self.collected.cut = True
        else:
            self.why = why
