"""One fabric as measured, recorded or simulated: pairs and sizes, with iterations condensed.

As JSON this is the short form of stored samples (docs/reference/samples.md); `observe` makes it
from the long form, the `Sweep` with every iteration.

An operation is long at both ends if one of them is frozen within it; if the partner had finished it
by then, the partner's next operation is long. A supervisor that waited for a CPU proves nothing:
the measuring process may have had another CPU.

Statistics and blame read only digests: those of a real sweep come from every iteration of both
ends, those of a simulated fabric with thousands of nodes are made directly.
"""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct, field

from preflight.core.statistics import grouped, median, nearest_rank
from preflight.fabric.pair_summary import (
    busbw_gbs,
    joint_state,
    lost_accounts,
    lost_sentence,
    shortest_us,
)
from preflight.fabric.phrases import OWN_CAUSES
from preflight.fabric.samples import (
    Backend,
    Bytes,
    Meeting,
    Micros,
    Moved,
    PairState,
    Phase,
    Round,
    StallKind,
    Times,
    gc_paused,
)
from preflight.facts.basics import Count, Seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from preflight.fabric.samples import End, PairSamples, Sweep, Timing


def starts_s(started_s: float, timing: Timing) -> Iterator[float]:
    """Yield when each operation began, by the clock of `started_s`."""
    resumed = {resume.operation: started_s + resume.at_s for resume in timing.resumed}
    clock_s = started_s + timing.began_s
    for number, (time_us, gap_us) in enumerate(zip(timing.times_us, timing.gaps_us, strict=False)):
        clock_s = resumed.get(number, clock_s) + gap_us / 1e6
        yield clock_s
        clock_s += (time_us + timing.check_us) / 1e6


def stalled_us(end: End | None, timing: Timing | None, numbers: Sequence[int]) -> list[float]:
    """Return how long an end stood still in each of these operations and the one before it."""
    stalls = end.stalls if end is not None else ()
    times = [(s.at_s, s.at_s + s.ms / 1e3) for s in stalls if s.what != "starved"]
    if end is None or timing is None or not times:
        return [0.0] * len(numbers)
    merged, start_s = _merge(times), list(starts_s(end.started_s, timing))
    overlaps_us = []
    for number in numbers:
        since_s = start_s[max(0, number - 1)]
        until_s = start_s[number] + timing.times_us[number] / 1e6
        covered_s = sum(
            max(0.0, min(until_s, ended_s) - max(since_s, began_s)) for began_s, ended_s in merged
        )
        overlaps_us.append(round(covered_s * 1e6, 1))
    return overlaps_us


def _merge(times: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Merge overlapping intervals: process and host may stand still at once."""
    merged: list[tuple[float, float]] = []
    for began_s, ended_s in sorted(times):
        if merged and began_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], ended_s))
        else:
            merged.append((began_s, ended_s))
    return merged


CUT_MEDIANS = 5.0
"""An iteration that took more than so many medians at either end stands out."""

MOST_STANDOUTS = 256
"""Most of them that one digest keeps, the longest ones."""


class Standout(Struct, frozen=True, array_like=True):
    """One iteration that took long at either end.

    `at_s`: when it began, seconds since 1970 by the first end's wall clock (the second's if only
    that reported). `gap`: the time since the operation before, by each end's own clock.
    """

    at_s: Seconds
    operation: Count
    first_us: Micros
    second_us: Micros
    first_gap_us: Micros
    second_gap_us: Micros
    first_stall_us: Micros = 0.0
    """How long that end itself stood still during it and the operation before it."""
    second_stall_us: Micros = 0.0

    @property
    def network_us(self) -> float:
        """The shorter of both: an operation that one end began late is long at the other only."""
        return min(self.first_us, self.second_us)


class Digest(Meeting, frozen=True, kw_only=True):
    """One size of one pair on one rail in one round. Times are the shorter of both ends'."""

    size_bytes: Bytes
    phase: Phase = "ladder"
    operations: Times
    """How many were timed (at both ends, if both reported)."""
    loaded_s: Annotated[float, Meta(ge=0, le=1e9)]
    """Their total time, at the end where it was longer: how long a rare event could have shown."""
    best_us: Micros
    p50_us: Annotated[float, Meta(gt=0)]
    p99_us: float
    p999_us: float
    most_us: Micros
    standouts: Annotated[tuple[Standout, ...], Meta(max_length=MOST_STANDOUTS)] = ()
    """Every iteration over `cut_us` at either end, in time's order; the longest `KEPT` of them."""
    cut_us: Micros = 0.0

    @property
    def busbw_gbs(self) -> float:
        """Bus bandwidth of the median iteration."""
        return round(busbw_gbs(self.size_bytes, self.p50_us / 1e6), 6)

    @property
    def best_gbs(self) -> float:
        """Bus bandwidth of the fastest one."""
        return round(busbw_gbs(self.size_bytes, self.best_us / 1e6), 6)


def digests(pair: PairSamples) -> Iterator[Digest]:
    """Condense one pair, size by size, from both ends' accounts (or the only one)."""
    first, second = _by_kind(pair.first), _by_kind(pair.second)
    for kind in sorted(first.keys() | second.keys()):
        yield _digest(pair, first.get(kind), second.get(kind))


def _by_kind(end: End | None) -> dict[tuple[int, Phase], Timing]:
    timings = end.timings if end is not None else ()
    return {(timing.size_bytes, timing.phase): timing for timing in timings if timing.times_us}


def _digest(pair: PairSamples, first: Timing | None, second: Timing | None) -> Digest:
    both = [timing for timing in (first, second) if timing is not None]
    timing, other = both[0], both[-1]
    shorter_us = shortest_us((timing, other))
    ranked = sorted(shorter_us)  # once, for all that follows
    typical = median(ranked)
    cut = CUT_MEDIANS * typical
    return Digest(
        *pair.key,
        size_bytes=timing.size_bytes,
        phase=timing.phase,
        operations=len(shorter_us),
        loaded_s=max(sum(timing.times_us), sum(other.times_us)) / 1e6,
        best_us=ranked[0],
        p50_us=typical,
        p99_us=nearest_rank(ranked, 0.99),
        p999_us=nearest_rank(ranked, 0.999),
        most_us=ranked[-1],
        standouts=_standouts(pair, first, second, cut),
        cut_us=cut,
    )


def _standouts(
    pair: PairSamples, first: Timing | None, second: Timing | None, cut_us: float
) -> tuple[Standout, ...]:
    both = [timing for timing in (first, second) if timing is not None]
    timing, other = both[0], both[-1]
    if max(timing.times_us) <= cut_us and max(other.times_us) <= cut_us:
        return ()
    end = pair.first if first is not None else pair.second
    times_us, others_us = timing.times_us, other.times_us
    both_us = list(zip(times_us, others_us, strict=False))
    outliers = [number for number, pair_us in enumerate(both_us) if max(pair_us) > cut_us]
    numbers = sorted(nlargest(MOST_STANDOUTS, outliers, key=lambda number: min(both_us[number])))
    began_s = list(starts_s(end.started_s if end is not None else 0.0, timing))
    stalls_us = stalled_us(pair.first, first, numbers)
    others_stalls_us = stalled_us(pair.second, second, numbers)
    return tuple(
        Standout(
            began_s[number],
            number,
            times_us[number],
            others_us[number],
            timing.gaps_us[number],
            other.gaps_us[number],
            first_stall_us=stall_us,
            second_stall_us=other_stall_us,
        )
        for number, stall_us, other_stall_us in zip(
            numbers, stalls_us, others_stalls_us, strict=True
        )
    )


def ladder(condensed: Iterable[Digest]) -> tuple[Digest, ...]:
    """Return the sizes of the ladder, the smallest first."""
    sizes = [digest for digest in condensed if digest.phase == "ladder"]
    return tuple(sorted(sizes, key=lambda digest: digest.size_bytes))


STOOD_STILL = "its measuring process stood still"
"""A supervisor's message about a measuring process that it had to kill."""

_DIED = ("its measuring process was killed by", "its measuring process ended by itself")
_STOPPED = "it was stopped by a signal"


class StallTotal(Struct, frozen=True, array_like=True):
    """How often, and how long at most, one end stood still in a pair."""

    what: StallKind
    times: Count
    most_ms: float


class EndResult(Struct, frozen=True):
    """One end's account of a pair on one rail in one round, without its times."""

    error: str = ""
    moved: tuple[Moved, ...] = ()
    net: str = ""
    """What carried its data."""
    stood: tuple[StallTotal, ...] = ()


class PairResult(Meeting, frozen=True, kw_only=True):
    """The result of one pair on one rail in one round, without its times."""

    state: PairState = "measured"
    """The worse of both ends'."""
    suspect: str = field(default="", name="stood_still")
    """The end whose own measuring process hung or died; the other only lost its partner."""
    lost: tuple[str, ...] = ()
    """The ends whose account of it is missing, so that it is not judged."""
    first: EndResult = EndResult()
    second: EndResult = EndResult()

    def end(self, name: str) -> EndResult:
        """Return that node's account."""
        return self.first if name == self.a else self.second

    @property
    def error(self) -> str:
        """Both ends' errors."""
        if self.lost:
            return lost_sentence(self.lost)
        ends = (self.a, self.first.error), (self.b, self.second.error)
        return "; ".join(f"{name}: {error}" for name, error in ends if error)

    @property
    def bad(self) -> bool:
        """Whether it failed outright; wrong sums are counted separately."""
        return self.state not in ("measured", "not_run", "corrupt")

    @property
    def good(self) -> bool:
        """Whether it was measured completely."""
        return self.state == "measured"


class Observed(Struct, frozen=True, kw_only=True):
    """A whole fabric after a sweep."""

    nodes: tuple[str, ...]
    """Those that took part, in fleet order."""
    backend: Literal["", Backend]
    """"" if nothing was measured."""
    tried: tuple[PairResult, ...]
    digests: tuple[Digest, ...]
    leaves: dict[str, str] = {}
    """Node name → its leaf switch; empty without a topology source."""
    silent: dict[str, str] = {}
    """Node name → what happened to its agent, if it stopped answering during the sweep."""
    retested: Round = 0
    """Rounds from this number on are retests of suspects with cleared partners; 0 if there were
    none."""


@gc_paused()
def observe(sweep: Sweep) -> Observed:
    """Condense a sweep; pairs that had no turn stay out.

    If an end's account is missing, the other's times alone prove nothing: none are kept.
    """
    pairs = [
        (pair, lost_accounts(pair, sweep.troubles))
        for pair in sweep.pairs
        if joint_state(pair) != "not_run"
    ]
    names = {name: None for round_pairs in sweep.rounds for pair in round_pairs for name in pair}
    names |= {inside.node: None for inside in sweep.inside}
    return Observed(
        nodes=tuple(name for name in names if name not in sweep.left_out),
        backend=pairs[0][0].backend if pairs else "",
        tried=tuple(_pair_result(pair, lost) for pair, lost in pairs),
        digests=tuple(digest for pair, lost in pairs if not lost for digest in digests(pair)),
        leaves=dict(sweep.leaves),
        silent=dict(sweep.troubles),
        retested=sweep.retested,
    )


def _pair_result(pair: PairSamples, lost: tuple[str, ...]) -> PairResult:
    return PairResult(
        *pair.key,
        state="not_run" if lost else joint_state(pair),
        suspect=failed_by_itself(pair),
        lost=lost,
        first=_end_result(pair.first),
        second=_end_result(pair.second),
    )


def _end_result(end: End | None) -> EndResult:
    if end is None:
        return EndResult()
    stalls = grouped((stall.what, stall.ms) for stall in end.stalls)
    totals = tuple(
        StallTotal(what, len(times_ms), max(times_ms)) for what, times_ms in stalls.items()
    )
    return EndResult(end.error, end.moved, end.net, totals)


def failed_by_itself(pair: PairSamples) -> str:
    """Return the end whose own measuring process hung or died, according to its supervisor."""
    for words in (OWN_CAUSES, _DIED, (_STOPPED,), (STOOD_STILL,)):
        ends = [end for end in pair.ends if any(word in end.error for word in words)]
        if ends:
            return ends[0].node if len(ends) == 1 and not _may_wait(ends[0], pair) else ""
    return ""


def _may_wait(end: End, pair: PairSamples) -> bool:
    """Whether an end may have stood still because of its partner.

    NCCL waits for ever for a partner that broke off; gloo gives up by itself.
    """
    other = pair.second if end is pair.first else pair.first
    fine = other is not None and other.state == "measured"
    own_cause = fine or _STOPPED in end.error
    return pair.backend == "nccl" and STOOD_STILL in end.error and not own_cause
