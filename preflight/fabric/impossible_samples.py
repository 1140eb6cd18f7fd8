"""Refuse samples that have the right types and are impossible, with their place, before any blame.

Blame depends on which nodes met when; a file that contradicts itself there would blame at random.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.fabric.observed import KEPT, Digest, Observed, PairResult, Standout
from preflight.fleet.nodeset import MOST_NODES, check_host_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from preflight.fabric.samples import End, PairSamples, Rung, Sweep


def within(where: str, what: str, value: int, most: int) -> None:
    """Refuse a whole number outside 0 to `most`."""
    if not 0 <= value <= most:
        raise absurd(where, f"{what} {value}", f"it is between 0 and {most}")


def absurd(where: str, what: str, instead: str) -> UsageError:
    """Return the error to raise."""
    return UsageError(f"{where}: {what}; {instead}")


_SIZE = 1 << 50
_LONGEST_US, _LONGEST_S, _OPERATIONS = 1e12, 1e9, 10**12
_SHORTEST_US = 1e-4  # no clock is finer; 0 may be read once from a coarse one
_ROUNDED = 1.01
_LATEST_S = 1e12  # as far as a node's clock is believed in a run


def refuse_ladder(ladder: Sequence[Rung]) -> None:
    """Refuse sizes that cannot be measured; UsageError as below."""
    for number, rung in enumerate(ladder):
        where = f"ladder[{number}]"
        if not 1 <= rung.size_bytes <= _SIZE:
            raise absurd(where, f"a size of {rung.size_bytes} bytes", "correct size_bytes")
        if rung.iterations < 1 or rung.warmup < 0:
            what = f"{rung.warmup} warm-ups and {rung.iterations} iterations"
            raise absurd(where, what, "correct them")


def refuse_end(where: str, end: End, name: str, partner: str = "") -> None:
    """Refuse an impossible account, or one of another node; UsageError names place and remedy."""
    if end.node != name:
        what = f"it is the account of {end.node[:60]!a}, not of {name}"
        of_partner = end.node == partner
        raise absurd(
            where, what, "swap them" if of_partner else "correct node, or leave the entry out"
        )
    if not 0 <= end.started_s <= _LATEST_S:
        what = f"it started at {end.started_s:g} s"
        raise absurd(where, what, "correct started_s: seconds since 1970")
    kinds = [(timing.size_bytes, timing.phase) for timing in end.timings]
    if len(set(kinds)) < len(kinds):
        raise absurd(f"{where}.timings", "a size stands twice", "leave one of them out")
    for number, timing in enumerate(end.timings):
        place = f"{where}.timings[{number}]"
        if len(timing.times_us) != len(timing.gaps_us):
            what = f"{len(timing.times_us)} times and {len(timing.gaps_us)} gaps"
            raise absurd(place, what, "each operation has one of both")
        if not timing.times_us:
            raise absurd(place, "it has no times", "leave the timing out")
        # A GPU's clock may once read 0; a median of 0 would be an infinite speed.
        if timing.times_us.count(0.0) * 2 > len(timing.times_us):
            raise absurd(place, "most of its times are 0 us", "store times as they were measured")
        if any(0 < time_us < _SHORTEST_US for time_us in timing.times_us):
            raise absurd(place, "a time is under 0.1 ns", "store times as they were measured")
        for resumed in timing.resumed:
            within(place, "resumed operation", resumed.operation, len(timing.times_us) - 1)


def refuse_digest(where: str, digest: Digest) -> None:
    """Refuse a size's numbers that contradict each other; UsageError as above."""
    if not 0 < digest.size_bytes <= _SIZE:
        raise absurd(where, f"a size of {digest.size_bytes} bytes", "correct size_bytes")
    if not 0 < digest.operations <= _OPERATIONS:
        raise absurd(where, f"{digest.operations} operations", "correct operations")
    if not 0 <= digest.loaded_s <= _LONGEST_S:
        raise absurd(where, f"loaded for {digest.loaded_s:g} s", "correct loaded_s")
    ascending = (digest.best_us, digest.p50_us, digest.p99_us, digest.p999_us, digest.most_us)
    if (
        ascending[0] < 0
        or ascending[-1] > _LONGEST_US
        or any(a > b for a, b in pairwise(ascending))
    ):
        what = "its times do not ascend from best_us over the percentiles to most_us"
        raise absurd(where, what, "correct them; none is negative or over 1e12 us")
    if not digest.p50_us:
        raise absurd(where, "its median is 0 us", "store times as they were measured")
    if any(0 < time_us < _SHORTEST_US for time_us in ascending):
        raise absurd(where, "a time is under 0.1 ns", "store times as they were measured")
    if not 0 <= digest.cut_us <= _LONGEST_US:
        raise absurd(where, "a time is negative or over 1e12 us", "correct cut_us")
    _refuse_standouts(where, digest)


def _refuse_standouts(where: str, digest: Digest) -> None:
    count = len(digest.standouts)
    if count > digest.operations:
        what = f"{count} standouts of {digest.operations} operations"
        raise absurd(where, what, "correct either")
    if count > KEPT:
        raise absurd(where, f"{count} standouts", f"keep the longest {KEPT}")
    operations: set[int] = set()
    for number, standout in enumerate(digest.standouts):
        place = f"{where}.standouts[{number}]"
        if standout.operation in operations:
            raise absurd(
                place, f"operation {standout.operation} stands twice", "leave one of them out"
            )
        operations.add(standout.operation)
        _refuse_standout(place, standout, digest)


def _refuse_standout(where: str, standout: Standout, digest: Digest) -> None:
    if not 0 <= standout.operation < digest.operations:
        what = f"operation {standout.operation} of {digest.operations}"
        raise absurd(where, what, "they are counted from 0: correct either")
    if standout.network_us > _ROUNDED * digest.most_us:
        what = f"{standout.network_us:g} us at both ends, and most_us is {digest.most_us:g}"
        raise absurd(where, what, "correct either")
    if not 0 <= standout.at_s <= _LATEST_S:
        raise absurd(where, f"at {standout.at_s:g} s", "correct at_s: seconds since 1970")
    stalls = (standout.first_stall_us, standout.second_stall_us)
    times = (
        standout.first_us,
        standout.second_us,
        standout.first_gap_us,
        standout.second_gap_us,
        *stalls,
    )
    if not all(0 <= time_us <= _LONGEST_US for time_us in times):
        raise absurd(where, "a time is negative or over 1e12 us", "correct it")


BACKENDS = ("gloo", "nccl")


def refuse_backend(where: str, backend: str) -> None:
    """Refuse an unknown backend; UsageError names place and remedy."""
    if backend not in BACKENDS:
        raise absurd(where, f"its backend is {backend[:60]!a}", f"it is {' or '.join(BACKENDS)}")


def refuse_left_out(sweep: Sweep) -> None:
    """Refuse accounts of nodes in left_out, and nodes cut off but not left out; UsageError."""
    for number, pair in enumerate(sweep.pairs):
        for end in pair.ends:
            if end.node in sweep.left_out and end.state != "not_run":
                where = _where("pairs", number, pair)
                what = f"{end.node} has an account of it and stands in left_out"
                raise absurd(where, what, "leave one of them out")
    for number, samples in enumerate(sweep.inside):
        if samples.node in sweep.left_out:
            where = f"inside[{number}] ({samples.node[:60]!a})"
            raise absurd(where, "it stands in left_out too", "leave one of them out")
    paired = {name for around in sweep.rounds for pair in around for name in pair}
    # In a single round a node may have had no pair, and may have been the store's host.
    all_paired = sum(bool(around) for around in sweep.rounds) > 1
    there = paired.union(sweep.troubles, (samples.node for samples in sweep.inside))
    for out, host in sweep.cut_off.items():
        where = f"cut_off ({out[:60]!a})"
        if out not in sweep.left_out:
            raise absurd(where, "it does not stand in left_out", "add it there with the reason")
        if host in sweep.left_out or (all_paired and host not in there):
            what = f"from {host[:60]!a}, which took no part"
            raise absurd(where, what, "name the host of the sweep's store")


_RAILS, _ROUNDS = 1024, 1 << 16


class _Meetings:
    """The partners of each node: it has one per rail and round."""

    def __init__(self, nodes: Collection[str]) -> None:
        self._nodes = nodes
        self._partner: dict[tuple[int, int, str], str] = {}
        self.taken: set[tuple[str, str, int, int]] = set()

    def take(self, where: str, pair: PairSamples | PairResult) -> None:
        """Note one pair; UsageError if it is impossible."""
        a, b, rail, number = pair.a, pair.b, pair.rail, pair.round
        for name in (a, b):
            if name not in self._nodes:
                raise absurd(where, f"{name!a} is not one of the nodes", "name it among them")
        if a == b:
            raise absurd(where, f"{a} is paired with itself", "leave it out")
        within(where, "rail", rail, _RAILS)
        within(where, "round", number, _ROUNDS)
        if (a, b, rail, number) in self.taken or (b, a, rail, number) in self.taken:
            raise absurd(where, f"{a}-{b} stands twice there", "leave one of them out")
        for own, other in ((a, b), (b, a)):
            partner = self._partner.setdefault((rail, number, own), other)
            if partner != other:
                what = f"{own} is with {partner} and with {other} in the same round on one rail"
                raise absurd(where, what, "correct the rounds: ranks disagree about them")
        self.taken.add((a, b, rail, number))


def refuse_absurd_sweep(sweep: Sweep) -> None:
    """Refuse a long form that contradicts its own schedule; UsageError names the entry."""
    scheduled = _rounds(sweep)
    paired = {name for around in scheduled for pair in around for name in pair}
    meetings = _Meetings(paired.union(sweep.left_out, sweep.troubles))
    backends = {pair.backend for pair in sweep.pairs}
    if len(backends) > 1:
        what = f"backends are mixed ({', '.join(sorted(backends))!a})"
        raise absurd("pairs", what, "store one sweep per file")
    refuse_ladder(sweep.ladder)
    for where, pair in _consistent_pairs("pairs", sweep.pairs, meetings):
        if pair.round >= len(scheduled) or frozenset(pair.nodes) not in scheduled[pair.round]:
            what = f"{pair.a}-{pair.b} is not in rounds[{pair.round}]"
            raise absurd(where, what, "correct the rounds: ranks disagree about them")
    _refuse_insides(sweep, backends)
    _refuse_domains(sweep)
    refuse_left_out(sweep)
    within("sweep", "retested", sweep.retested, len(sweep.rounds))
    _refuse_names("leaves", sweep.leaves)


def _refuse_insides(sweep: Sweep, backends: Collection[str]) -> None:
    _refuse_names("inside", [samples.node for samples in sweep.inside])
    names: set[str] = set()
    for number, samples in enumerate(sweep.inside):
        where = f"inside[{number}] ({samples.node[:60]!a})"
        if samples.node in names:
            raise absurd(where, "it stands twice there", "leave one of them out")
        names.add(samples.node)
        refuse_backend(where, samples.backend)
        if backends and samples.backend not in backends:
            what = f"its backend is {samples.backend[:60]!a}, that of the pairs is not"
            raise absurd(where, what, "store one sweep per file")
        within(where, "rail", max((*samples.numbers, len(samples.rails) - 1)), _RAILS)
        if samples.numbers and (
            len(samples.numbers) != len(samples.rails)
            or list(samples.numbers) != sorted(set(samples.numbers))
        ):
            raise absurd(where, f"numbers {list(samples.numbers)}", "one per rail, ascending")
        for rail, end in enumerate(samples.rails):
            if end is not None:
                refuse_end(f"{where}.rails[{rail}]", end, samples.node)


def _refuse_domains(sweep: Sweep) -> None:
    _refuse_names("domains", sweep.domains)
    for where, pair in _consistent_pairs("domain", sweep.domain, _Meetings(sweep.domains)):
        if sweep.domains[pair.a] != sweep.domains[pair.b]:
            raise absurd(where, "its nodes are of two domains", "correct domains")


def _consistent_pairs(
    what: str, pairs: Sequence[PairSamples], meetings: _Meetings
) -> Iterator[tuple[str, PairSamples]]:
    """Yield each pair with its place; refuse its backend and key before, and its ends after."""
    for number, pair in enumerate(pairs):
        where = _where(what, number, pair)
        refuse_backend(where, pair.backend)
        meetings.take(where, pair)
        yield where, pair
        if pair.first is not None:
            refuse_end(f"{where}.first", pair.first, pair.a, pair.b)
        if pair.second is not None:
            refuse_end(f"{where}.second", pair.second, pair.b, pair.a)


def _rounds(sweep: Sweep) -> list[set[frozenset[str]]]:
    rounds = []
    for number, around in enumerate(sweep.rounds):
        often = Counter(name for pair in around for name in pair)
        twice = next((name for name, times in often.items() if times > 1), None)
        if twice is not None:
            what = f"{twice!a} stands twice"
            raise absurd(f"rounds[{number}]", what, "pairs of a round are disjoint: correct it")
        rounds.append({frozenset(pair) for pair in around})
    _refuse_names(
        "rounds", dict.fromkeys(name for around in sweep.rounds for pair in around for name in pair)
    )
    _refuse_names("left_out", sweep.left_out)
    _refuse_names("cut_off", [*sweep.cut_off, *sweep.cut_off.values()])
    _refuse_names("troubles", sweep.troubles)
    return rounds


def refuse_absurd(observed: Observed) -> None:
    """Refuse a short form that contradicts itself; UsageError as above."""
    if len(set(observed.nodes)) < len(observed.nodes):
        raise absurd("nodes", "a node stands twice", "name each once")
    within("fabric", "retested", observed.retested, _ROUNDS)
    if observed.tried or observed.backend:
        refuse_backend("fabric", observed.backend)
    for what in ("nodes", "leaves", "silent"):
        _refuse_names(what, getattr(observed, what))
    meetings = _Meetings(frozenset(observed.nodes))
    for number, tried in enumerate(observed.tried):
        where = _where("tried", number, tried)
        meetings.take(where, tried)
        if tried.stood_still not in ("", tried.a, tried.b):
            what = f"stood_still is {tried.stood_still[:60]!a}"
            raise absurd(where, what, f"it is {tried.a}, {tried.b}, or empty")
        if not set(tried.lost) <= set(tried.nodes):
            raise absurd(
                where, "lost names another node", f"it names {tried.a}, {tried.b}, or none"
            )
    kinds: set[tuple[object, ...]] = set()
    for number, digest in enumerate(observed.digests):
        where = _where("digests", number, digest)
        if digest.key not in meetings.taken:
            raise absurd(where, "its pair is not in tried", "add it there")
        kind = (*digest.key, digest.size_bytes, digest.phase)
        if kind in kinds:
            raise absurd(where, "this size of it stands twice", "leave one of them out")
        kinds.add(kind)
        refuse_digest(where, digest)


def _refuse_names(where: str, names: Collection[str]) -> None:
    if len(names) > MOST_NODES:
        raise absurd(where, f"{len(names):,} nodes", f"at most {MOST_NODES:,} are read")
    for name in names:
        try:
            check_host_name(name)
        except UsageError as error:
            what = f"{name[:60]!a} is not a host name"
            raise absurd(where, what, "letters, digits, '-' and '.' only") from error


def _where(what: str, number: int, entry: PairSamples | Digest | PairResult) -> str:
    return f"{what}[{number}] ({entry.name[:60]!a})"
