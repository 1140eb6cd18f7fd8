"""Refuse samples that have the right types and are impossible, with their place, before any blame.

Blame depends on which nodes met when; a file that contradicts itself there would blame at random.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.fleet.nodeset import MOST_NODES, check_host_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from preflight.fabric.observed import Digest, Observed, PairResult
    from preflight.fabric.samples import End, PairSamples, Sweep


def absurd(where: str, problem: str, remedy: str) -> UsageError:
    """Return the error for an entry; `where`: its place in the file."""
    return UsageError(f"{where}: {problem}; {remedy}")


_SHORTEST_US = 1e-4  # no clock is finer; 0 may be read once from a coarse one
_ROUNDED = 1.01


def refuse_end(where: str, end: End, name: str) -> None:
    """Refuse an impossible account, or one of another node; UsageError names place and remedy."""
    if end.node != name:
        problem = f"it is the account of {end.node[:60]!a}, not of {name}"
        raise absurd(where, problem, "correct node, or swap first and second")
    kinds = [(timing.size_bytes, timing.phase) for timing in end.timings]
    if len(set(kinds)) < len(kinds):
        raise absurd(f"{where}.timings", "a size stands twice", "leave one of them out")
    for number, timing in enumerate(end.timings):
        place = f"{where}.timings[{number}]"
        if len(timing.times_us) != len(timing.gaps_us):
            problem = f"{len(timing.times_us)} times and {len(timing.gaps_us)} gaps"
            raise absurd(place, problem, "each operation has one of both")
        # A GPU's clock may once read 0; a median of 0 would be an infinite speed.
        if timing.times_us.count(0.0) * 2 > len(timing.times_us):
            raise absurd(place, "most of its times are 0 us", "store times as they were measured")
        if any(0 < time_us < _SHORTEST_US for time_us in timing.times_us):
            raise absurd(place, "a time is under 0.1 ns", "store times as they were measured")
        if any(resumed.operation >= len(timing.times_us) for resumed in timing.resumed):
            raise absurd(place, "it resumed after its last operation", "correct operation")


def refuse_digest(where: str, digest: Digest) -> None:
    """Refuse a size's numbers that contradict each other; UsageError as above."""
    ascending = (digest.best_us, digest.p50_us, digest.p99_us, digest.p999_us, digest.most_us)
    if any(a > b for a, b in pairwise(ascending)):
        problem = "its times do not ascend from best_us over the percentiles to most_us"
        raise absurd(where, problem, "correct them")
    if any(0 < time_us < _SHORTEST_US for time_us in ascending):
        raise absurd(where, "a time is under 0.1 ns", "store times as they were measured")
    if len({standout.operation for standout in digest.standouts}) < len(digest.standouts):
        raise absurd(where, "an operation stands out twice", "leave one of them out")
    for number, standout in enumerate(digest.standouts):
        place = f"{where}.standouts[{number}]"
        if standout.operation >= digest.operations:
            problem = f"operation {standout.operation} of {digest.operations}"
            raise absurd(place, problem, "they are counted from 0: correct either")
        if standout.network_us > _ROUNDED * digest.most_us:
            problem = f"{standout.network_us:g} us at both ends, and most_us is {digest.most_us:g}"
            raise absurd(place, problem, "correct either")


def refuse_left_out(sweep: Sweep) -> None:
    """Refuse accounts of nodes in left_out, and nodes cut off but not left out; UsageError."""
    measured = {end.node for pair in sweep.pairs for end in pair.ends if end.state != "not_run"}
    measured.update(samples.node for samples in sweep.inside)
    if contradictory := sorted(measured & sweep.left_out.keys()):
        problem = f"{contradictory[0][:60]!a} stands there, and has an account"
        raise absurd("left_out", problem, "leave one of them out")
    paired = {name for round_pairs in sweep.rounds for pair in round_pairs for name in pair}
    # In a single round a node may have had no pair, and may have been the store's host.
    all_paired = sum(bool(round_pairs) for round_pairs in sweep.rounds) > 1
    present = paired.union(sweep.troubles, (samples.node for samples in sweep.inside))
    for out, host in sweep.cut_off.items():
        where = f"cut_off ({out[:60]!a})"
        if out not in sweep.left_out:
            raise absurd(where, "it does not stand in left_out", "add it there with the reason")
        if host in sweep.left_out or (all_paired and host not in present):
            problem = f"from {host[:60]!a}, which took no part"
            raise absurd(where, problem, "name the host of the sweep's store")


class _Meetings:
    """The partners of each node: it has one per rail and round."""

    def __init__(self, nodes: Collection[str]) -> None:
        self._nodes = nodes
        self._partner: dict[tuple[int, int, str], str] = {}

    def add(self, where: str, pair: PairSamples | PairResult) -> None:
        """Note one pair; UsageError if it is impossible."""
        a, b, rail, number = pair.a, pair.b, pair.rail, pair.round
        for name in (a, b):
            if name not in self._nodes:
                raise absurd(where, f"{name!a} is not one of the nodes", "name it among them")
        if a == b:
            raise absurd(where, f"{a} is paired with itself", "leave it out")
        for name, other in ((a, b), (b, a)):
            partner = self._partner.get((rail, number, name))
            if partner == other:
                raise absurd(where, f"{a}-{b} stands twice there", "leave one of them out")
            if partner is not None:
                problem = f"{name} is with {partner} and with {other} in the same round on one rail"
                raise absurd(where, problem, "correct the rounds: ranks disagree about them")
        self._partner |= {(rail, number, a): b, (rail, number, b): a}


def refuse_absurd_sweep(sweep: Sweep) -> None:
    """Refuse a long form that contradicts its own schedule; UsageError names the entry."""
    scheduled = _rounds(sweep)
    paired = {name for round_pairs in scheduled for pair in round_pairs for name in pair}
    meetings = _Meetings(paired.union(sweep.left_out, sweep.troubles))
    backends = {pair.backend for pair in sweep.pairs}
    if len(backends) > 1:
        problem = f"backends are mixed ({', '.join(sorted(backends))!a})"
        raise absurd("pairs", problem, "store one sweep per file")
    for where, pair in _consistent_pairs("pairs", sweep.pairs, meetings):
        if pair.round >= len(scheduled) or frozenset(pair.nodes) not in scheduled[pair.round]:
            problem = f"{pair.a}-{pair.b} is not in rounds[{pair.round}]"
            raise absurd(where, problem, "correct the rounds: ranks disagree about them")
    _refuse_insides(sweep, backends)
    _refuse_domains(sweep)
    refuse_left_out(sweep)
    if sweep.retested > len(sweep.rounds):
        problem = f"retested {sweep.retested}"
        raise absurd("sweep", problem, f"there are {len(sweep.rounds)} rounds")
    _refuse_names("leaves", sweep.leaves)


def _refuse_insides(sweep: Sweep, backends: Collection[str]) -> None:
    _refuse_names("inside", [samples.node for samples in sweep.inside])
    names: set[str] = set()
    for number, samples in enumerate(sweep.inside):
        where = f"inside[{number}] ({samples.node[:60]!a})"
        if samples.node in names:
            raise absurd(where, "it stands twice there", "leave one of them out")
        names.add(samples.node)
        if backends and samples.backend not in backends:
            problem = f"its backend is {samples.backend[:60]!a}, that of the pairs is not"
            raise absurd(where, problem, "store one sweep per file")
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
    table: str, pairs: Sequence[PairSamples], meetings: _Meetings
) -> Iterator[tuple[str, PairSamples]]:
    """Yield each pair with its place; refuse its key before, and its ends after."""
    for number, pair in enumerate(pairs):
        where = _where(table, number, pair)
        meetings.add(where, pair)
        yield where, pair
        for side, end, name in (("first", pair.first, pair.a), ("second", pair.second, pair.b)):
            if end is not None:
                refuse_end(f"{where}.{side}", end, name)


def _rounds(sweep: Sweep) -> list[set[frozenset[str]]]:
    rounds = []
    for number, round_pairs in enumerate(sweep.rounds):
        counts = Counter(name for pair in round_pairs for name in pair)
        twice = next((name for name, times in counts.items() if times > 1), None)
        if twice is not None:
            problem = f"{twice!a} stands twice"
            raise absurd(f"rounds[{number}]", problem, "pairs of a round are disjoint: correct it")
        rounds.append({frozenset(pair) for pair in round_pairs})
    paired = (name for pairs in sweep.rounds for pair in pairs for name in pair)
    _refuse_names("rounds", dict.fromkeys(paired))
    _refuse_names("left_out", sweep.left_out)
    _refuse_names("cut_off", [*sweep.cut_off, *sweep.cut_off.values()])
    _refuse_names("troubles", sweep.troubles)
    return rounds


def refuse_absurd(observed: Observed) -> None:
    """Refuse a short form that contradicts itself; UsageError as above."""
    if len(set(observed.nodes)) < len(observed.nodes):
        raise absurd("nodes", "a node stands twice", "name each once")
    if observed.tried and not observed.backend:
        raise absurd("fabric", "it names no backend", "it is gloo or nccl")
    for what in ("nodes", "leaves", "silent"):
        _refuse_names(what, getattr(observed, what))
    meetings = _Meetings(frozenset(observed.nodes))
    for number, tried in enumerate(observed.tried):
        where = _where("tried", number, tried)
        meetings.add(where, tried)
        if not {tried.suspect, *tried.lost} <= {"", *tried.nodes}:
            what = "stood_still or lost names another node"
            raise absurd(where, what, f"they name {tried.a}, {tried.b}, or none")
    tried_keys = {tried.key for tried in observed.tried}
    kinds: set[tuple[object, ...]] = set()
    for number, digest in enumerate(observed.digests):
        where = _where("digests", number, digest)
        if digest.key not in tried_keys:
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
            problem = f"{name[:60]!a} is not a host name"
            raise absurd(where, problem, "letters, digits, '-' and '.' only") from error


def _where(table: str, number: int, entry: PairSamples | Digest | PairResult) -> str:
    return f"{table}[{number}] ({entry.name[:60]!a})"
