"""What has the right types and still cannot be: refused with its place, before anybody is blamed.

Blame rests on who met whom when; a file that contradicts itself there would blame at random.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.fabric.stored.account import refuse_digest, refuse_end, refuse_ladder
from preflight.fabric.stored.partakers import refuse_backend, refuse_partakers
from preflight.fabric.stored.refusal import absurd, within
from preflight.fleet.nodeset import MOST_NODES, check_host_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from preflight.fabric.digest import Digest
    from preflight.fabric.observed import Observed, Tried
    from preflight.fabric.samples import PairSamples, Sweep

_RAILS, _ROUNDS = 1024, 1 << 16


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
                raise absurd(where, f"{name!a} is none of the nodes", "name it among them")
        if a == b:
            raise absurd(where, f"{a} is paired with itself", "leave it out")
        within(where, "rail", rail, _RAILS)
        within(where, "round", number, _ROUNDS)
        if (a, b, rail, number) in self.taken or (b, a, rail, number) in self.taken:
            raise absurd(where, f"{a}-{b} stands twice there", "leave one of them out")
        for own, other in ((a, b), (b, a)):
            partner = self._partner.setdefault((rail, number, own), other)
            if partner != other:
                said = f"{own} is with {partner} and with {other} in the same round on one rail"
                raise absurd(where, said, "correct the rounds: ranks disagree about them")
        self.taken.add((a, b, rail, number))


def refuse_absurd_sweep(sweep: Sweep) -> None:
    """Hold the long form to its own schedule; UsageError says which entry contradicts it."""
    scheduled = _rounds(sweep)
    turns = _Turns(set().union(*map(_names, scheduled), sweep.left_out, sweep.troubles))
    backends = {pair.backend for pair in sweep.pairs}
    if len(backends) > 1:
        said = f"backends are mixed ({', '.join(sorted(backends))!a})"
        raise absurd("pairs", said, "store one sweep per file")
    refuse_ladder(sweep.ladder)
    for number, pair in enumerate(sweep.pairs):
        where = _where("pairs", number, pair)
        refuse_backend(where, pair.backend)
        turns.take(where, pair.a, pair.b, pair.rail, pair.round)
        if pair.round >= len(scheduled) or frozenset((pair.a, pair.b)) not in scheduled[pair.round]:
            said = f"{pair.a}-{pair.b} is not in rounds[{pair.round}]"
            raise absurd(where, said, "correct the rounds: ranks disagree about them")
        for side, end, name in (("first", pair.first, pair.a), ("second", pair.second, pair.b)):
            if end is not None:
                refuse_end(f"{where}.{side}", end, name, pair.b if end is pair.first else pair.a)
    _refuse_insides(sweep, backends)
    _refuse_domains(sweep)
    refuse_partakers(sweep)
    within("sweep", "retested", sweep.retested, len(sweep.rounds))
    _refuse_names("leaves", sweep.leaves)


def _refuse_insides(sweep: Sweep, backends: Collection[str]) -> None:
    names = [one.node for one in sweep.inside]
    _refuse_names("inside", names)
    for number, one in enumerate(sweep.inside):
        where = f"inside[{number}] ({one.node[:60]!a})"
        if one.node in names[:number]:
            raise absurd(where, "it stands twice there", "leave one of them out")
        refuse_backend(where, one.backend)
        if backends and one.backend not in backends:
            said = f"its backend is {one.backend[:60]!a}, that of the pairs is not"
            raise absurd(where, said, "store one sweep per file")
        within(where, "rail", max((*one.numbers, len(one.rails) - 1)), _RAILS)
        if one.numbers and (
            len(one.numbers) != len(one.rails) or list(one.numbers) != sorted(set(one.numbers))
        ):
            raise absurd(where, f"numbers {list(one.numbers)}", "one per rail, ascending")
        for rail, end in enumerate(one.rails):
            if end is not None:
                refuse_end(f"{where}.rails[{rail}]", end, one.node)


def _refuse_domains(sweep: Sweep) -> None:
    _refuse_names("domains", sweep.domains)
    turns = _Turns(sweep.domains)
    for number, pair in enumerate(sweep.domain):
        where = _where("domain", number, pair)
        refuse_backend(where, pair.backend)
        turns.take(where, pair.a, pair.b, pair.rail, pair.round)
        if sweep.domains[pair.a] != sweep.domains[pair.b]:
            raise absurd(where, "its nodes are of two domains", "correct domains")
        for side, end, name in (("first", pair.first, pair.a), ("second", pair.second, pair.b)):
            if end is not None:
                refuse_end(f"{where}.{side}", end, name, pair.b if end is pair.first else pair.a)


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
            raise absurd(f"rounds[{number}]", said, "pairs of a round are disjoint: correct it")
        found.append({frozenset(pair) for pair in around})
    _refuse_names(
        "rounds", dict.fromkeys(name for around in sweep.rounds for pair in around for name in pair)
    )
    _refuse_names("left_out", sweep.left_out)
    _refuse_names("cut_off", [*sweep.cut_off, *sweep.cut_off.values()])
    _refuse_names("troubles", sweep.troubles)
    return found


def _names(around: Iterable[frozenset[str]]) -> set[str]:
    return set().union(*around)


def refuse_absurd(observed: Observed) -> None:
    """Hold the short form to itself; UsageError as above."""
    if len(set(observed.nodes)) < len(observed.nodes):
        raise absurd("nodes", "a node stands twice", "name each once")
    within("fabric", "retested", observed.retested, _ROUNDS)
    if observed.tried or observed.backend:
        refuse_backend("fabric", observed.backend)
    for what in ("nodes", "leaves", "silent"):
        _refuse_names(what, getattr(observed, what))
    turns = _Turns(frozenset(observed.nodes))
    for number, tried in enumerate(observed.tried):
        where = _where("tried", number, tried)
        turns.take(where, tried.a, tried.b, tried.rail, tried.round)
        if tried.stood_still not in ("", tried.a, tried.b):
            said = f"stood_still is {tried.stood_still[:60]!a}"
            raise absurd(where, said, f"it is {tried.a}, {tried.b}, or empty")
    kinds: set[tuple[object, ...]] = set()
    for number, digest in enumerate(observed.digests):
        where = _where("digests", number, digest)
        if (digest.a, digest.b, digest.rail, digest.round) not in turns.taken:
            raise absurd(where, "it is of no pair that was tried", "add it to tried")
        kind = (digest.a, digest.b, digest.rail, digest.round, digest.size_bytes, digest.phase)
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
            said = f"{name[:60]!a} is no host name"
            raise absurd(where, said, "letters, digits, '-' and '.' only") from error


def _where(what: str, number: int, one: PairSamples | Digest | Tried) -> str:
    a, b = getattr(one, "a", ""), getattr(one, "b", "")
    return f"{what}[{number}] ({f'{a}-{b}'[:60]!a})"
