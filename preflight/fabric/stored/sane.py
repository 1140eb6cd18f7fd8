"""What has the right types and still cannot be: refused with its place, before anybody is blamed.

Blame rests on who met whom when; a file that contradicts itself there would blame at random.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.fleet.nodeset import MOST_NODES, check_host_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from preflight.fabric.digest import Digest
    from preflight.fabric.observed import Observed
    from preflight.fabric.samples import End, PairSamples, Sweep

_RAILS, _ROUNDS, _SIZE = 1024, 1 << 16, 1 << 50
_LONGEST_US, _LONGEST_S, _OPERATIONS = 1e12, 1e9, 10**12


class _Turns:
    """Who was with whom: on one rail of one round a node has one partner."""

    def __init__(self, nodes: Collection[str]) -> None:
        self._nodes = nodes
        self._partner: dict[tuple[int, int, str], str] = {}
        self.taken: set[tuple[str, str, int, int]] = set()

    def take(self, where: str, a: str, b: str, rail: int, number: int) -> None:
        """Note one pair; UsageError if it cannot have been."""
        for name in (a, b):
            if name not in self._nodes:
                raise _absurd(where, f"{name!a} is none of the nodes", "name it among them")
        if a == b:
            raise _absurd(where, f"{a} is paired with itself", "leave it out")
        _within(where, "rail", rail, _RAILS)
        _within(where, "round", number, _ROUNDS)
        if (a, b, rail, number) in self.taken or (b, a, rail, number) in self.taken:
            raise _absurd(where, f"{a}-{b} stands twice there", "leave one of them out")
        for own, other in ((a, b), (b, a)):
            partner = self._partner.setdefault((rail, number, own), other)
            if partner != other:
                said = f"{own} is with {partner} and with {other} in the same round on one rail"
                raise _absurd(where, said, "correct the rounds: ranks disagree about them")
        self.taken.add((a, b, rail, number))


def refuse_absurd_sweep(sweep: Sweep) -> None:
    """Hold the long form to its own schedule; UsageError says which entry contradicts it."""
    scheduled = _rounds(sweep)
    turns = _Turns(set().union(*map(_names, scheduled), sweep.left_out, sweep.troubles))
    backends = {pair.backend for pair in sweep.pairs}
    if len(backends) > 1:
        said = f"backends are mixed ({', '.join(sorted(backends))!a})"
        raise _absurd("pairs", said, "store one sweep per file")
    for number, pair in enumerate(sweep.pairs):
        where = _where("pairs", number, pair)
        turns.take(where, pair.a, pair.b, pair.rail, pair.round)
        if pair.round >= len(scheduled) or frozenset((pair.a, pair.b)) not in scheduled[pair.round]:
            said = f"{pair.a}-{pair.b} is not in rounds[{pair.round}]"
            raise _absurd(where, said, "correct the rounds: ranks disagree about them")
        for side, end, name in (("first", pair.first, pair.a), ("second", pair.second, pair.b)):
            if end is not None:
                _refuse_end(f"{where}.{side}", end, name)
    _refuse_insides(sweep, backends)


def _refuse_insides(sweep: Sweep, backends: Collection[str]) -> None:
    names = [one.node for one in sweep.inside]
    _refuse_names("inside", names)
    for number, one in enumerate(sweep.inside):
        where = f"inside[{number}] ({one.node[:60]!a})"
        if one.node in names[:number]:
            raise _absurd(where, "it stands twice there", "leave one of them out")
        if backends and one.backend not in backends:
            said = f"its backend is {one.backend[:60]!a}, that of the pairs is not"
            raise _absurd(where, said, "store one sweep per file")
        _within(where, "rail", len(one.rails) - 1, _RAILS)
        for rail, end in enumerate(one.rails):
            if end is not None:
                _refuse_end(f"{where}.rails[{rail}]", end, one.node)


def _rounds(sweep: Sweep) -> list[set[frozenset[str]]]:
    found = []
    for number, around in enumerate(sweep.rounds):
        names = [name for pair in around for name in pair]
        twice = (
            next((name for name in names if names.count(name) > 1), None)
            if (len(set(names)) < len(names))
            else None
        )
        if twice is not None:
            said = f"{twice!a} stands twice"
            raise _absurd(f"rounds[{number}]", said, "pairs of a round are disjoint: correct it")
        found.append({frozenset(pair) for pair in around})
    _refuse_names(
        "rounds", dict.fromkeys(name for around in sweep.rounds for pair in around for name in pair)
    )
    _refuse_names("left_out", sweep.left_out)
    _refuse_names("troubles", sweep.troubles)
    return found


def _names(around: Iterable[frozenset[str]]) -> set[str]:
    return set().union(*around)


def _refuse_end(where: str, end: End, name: str) -> None:
    if end.node != name:
        raise _absurd(where, f"it is the account of {end.node!a}, not of {name}", "swap them")
    kinds = [(timing.size_bytes, timing.phase) for timing in end.timings]
    if len(set(kinds)) < len(kinds):
        raise _absurd(f"{where}.timings", "a size stands twice", "leave one of them out")
    for number, timing in enumerate(end.timings):
        place = f"{where}.timings[{number}]"
        if len(timing.times_us) != len(timing.gaps_us):
            said = f"{len(timing.times_us)} times and {len(timing.gaps_us)} gaps"
            raise _absurd(place, said, "each operation has one of both")
        _within(place, "size_bytes", timing.size_bytes, _SIZE)


def refuse_absurd(observed: Observed) -> None:
    """Hold the short form to itself; UsageError as above."""
    if len(set(observed.nodes)) < len(observed.nodes):
        raise _absurd("nodes", "a node stands twice", "name each once")
    _refuse_names("nodes", observed.nodes)
    turns = _Turns(frozenset(observed.nodes))
    for number, tried in enumerate(observed.tried):
        where = _where("tried", number, tried)
        turns.take(where, tried.a, tried.b, tried.rail, tried.round)
    kinds: set[tuple[object, ...]] = set()
    for number, digest in enumerate(observed.digests):
        where = _where("digests", number, digest)
        if (digest.a, digest.b, digest.rail, digest.round) not in turns.taken:
            raise _absurd(where, "it is of no pair that was tried", "add it to tried")
        kind = (digest.a, digest.b, digest.rail, digest.round, digest.size_bytes, digest.phase)
        if kind in kinds:
            raise _absurd(where, "this size of it stands twice", "leave one of them out")
        kinds.add(kind)
        _refuse_digest(where, digest)


def _refuse_digest(where: str, digest: Digest) -> None:
    if not 0 < digest.size_bytes <= _SIZE:
        raise _absurd(where, f"a size of {digest.size_bytes} bytes", "correct size_bytes")
    if not 0 < digest.operations <= _OPERATIONS:
        raise _absurd(where, f"{digest.operations} operations", "correct operations")
    if not 0 <= digest.loaded_s <= _LONGEST_S:
        raise _absurd(where, f"loaded for {digest.loaded_s:g} s", "correct loaded_s")
    ascending = (digest.best_us, digest.p50_us, digest.p99_us, digest.p999_us, digest.most_us)
    if (
        ascending[0] < 0
        or ascending[-1] > _LONGEST_US
        or any(a > b for a, b in pairwise(ascending))
    ):
        said = "its times do not ascend from best_us over the percentiles to most_us"
        raise _absurd(where, said, "correct them; none is negative or over 1e12 us")
    others = (digest.early_us, digest.late_us, digest.cut_us)
    if not all(0 <= time_us <= _LONGEST_US for time_us in others):
        raise _absurd(where, "a time is negative or over 1e12 us", "correct early, late and cut_us")
    if len(digest.standouts) > digest.operations:
        said = f"{len(digest.standouts)} standouts of {digest.operations} operations"
        raise _absurd(where, said, "correct either")
    for number, one in enumerate(digest.standouts):
        times = (one.first_us, one.second_us, one.first_gap_us, one.second_gap_us)
        if not all(0 <= time_us <= _LONGEST_US for time_us in times) or one.operation < 0:
            said = "a time is negative or over 1e12 us, or its operation negative"
            raise _absurd(f"{where}.standouts[{number}]", said, "correct it")


def _refuse_names(where: str, names: Collection[str]) -> None:
    if len(names) > MOST_NODES:
        raise _absurd(where, f"{len(names):,} nodes", f"at most {MOST_NODES:,} are read")
    for name in names:
        try:
            check_host_name(name)
        except UsageError as error:
            said = f"{name[:60]!a} is no host name"
            raise _absurd(where, said, "letters, digits, '-' and '.' only") from error


def _within(where: str, what: str, value: int, most: int) -> None:
    if not 0 <= value <= most:
        raise _absurd(where, f"{what} {value}", f"it is between 0 and {most}")


def _where(what: str, number: int, one: PairSamples | Digest | object) -> str:
    a, b = getattr(one, "a", ""), getattr(one, "b", "")
    return f"{what}[{number}] ({f'{a}-{b}'[:60]!a})"


def _absurd(where: str, said: str, instead: str) -> UsageError:
    return UsageError(f"{where}: {said}; {instead}")
