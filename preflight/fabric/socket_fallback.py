"""Blame nodes whose data went over sockets, or over another rail's NIC, and say what to check.

NCCL's log at each end says what carried its data; the partners of each end show which is at fault.
gloo always uses TCP, so it does not count.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from preflight.core.statistics import grouped, shared_cause
from preflight.core.text import join_or
from preflight.fabric.decoding.culprit import Component, Culprit
from preflight.fabric.decoding.hard_failures import decode
from preflight.fabric.phrases import ADVICE, Blame, with_partners
from preflight.fabric.samples import Meeting, Sweep

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from preflight.fleet.model import Expected, Host


_SEPARATOR = " + "
_NET, _IB, _SOCKETS = "NET/", "NET/IB ", "NET/Socket"
_NO_DEVICE = frozenset(("GDRDMA", "GDRDMA(PCI)"))


class PairTransport(Meeting, frozen=True, kw_only=True):
    """What each end's data went over, and whether that was expected."""

    ways: tuple[str, str]
    """Of each end, from NCCL's log: "NET/Socket eth0", "NET/IB mlx5_3 GDRDMA"; "": unknown."""
    fallback: tuple[bool, bool]
    """Which ends used another way than expected."""

    @property
    def bad(self) -> bool:
        """Whether an end did not use the expected way."""
        return any(self.fallback)

    @property
    def good(self) -> bool:
        """Whether both ends used the expected way, over NICs (not `P2P MNNVL` inside a rack)."""
        ways = [way for end in self.ways for way in end.split(_SEPARATOR)]
        return not self.bad and all(way.startswith(_NET) for way in ways)

    @property
    def suspect(self) -> str:
        """The end that did not use the expected way, if the other did."""
        if all(self.ways) and self.fallback[0] != self.fallback[1]:
            return self.a if self.fallback[0] else self.b
        return ""

    @property
    def fallback_nodes(self) -> tuple[str, ...]:
        """The nodes whose end did not use the expected way."""
        ends = zip(self.nodes, self.fallback, strict=True)
        return tuple(name for name, fallback in ends if fallback)

    def way(self, name: str) -> str:
        """Return that node's way."""
        return self.ways[self.nodes.index(name)]


def pair_transports(sweep: Sweep, hosts: Iterable[Host]) -> tuple[PairTransport, ...]:
    """Return what carried each pair of nodes for which the inventory expects NICs."""
    with_nics = (host for host in hosts if host.expected.nics or host.expected.hcas)
    expected = {host.name: host.expected for host in with_nics}
    transports: list[PairTransport] = []
    for pair in sweep.pairs:
        if pair.backend == "nccl" and pair.a in expected and pair.b in expected:
            a, b = (end.net if end is not None else "" for end in (pair.first, pair.second))
            first = _is_fallback(a, expected[pair.a], pair.rail)
            second = _is_fallback(b, expected[pair.b], pair.rail)
            transports.append(PairTransport(*pair.key, ways=(a, b), fallback=(first, second)))
    return tuple(transports)


def expected_words(expectation: Expected, rails: Iterable[int]) -> str:
    """Say what is expected of these rails: "mlx5_3 (fleet.toml [group.train])", "8 NICs (...)"."""
    expected_hcas = expectation.hcas or ()
    hcas = [expected_hcas[rail] for rail in rails if rail < len(expected_hcas)]
    count = expectation.nics or len(expected_hcas)
    what = ", ".join(hcas) if hcas else f"{count} NIC{'s' * (count != 1)}"
    return f"{what} ({expectation.origin})" if expectation.origin else what


def _is_fallback(way: str, expectation: Expected, rail: int) -> bool:
    """Whether an end used sockets, or a device that is expected on another rail."""
    ways = way.split(_SEPARATOR)
    if any(carrier.startswith(_SOCKETS) for carrier in ways):
        return True
    expected = {*(expectation.hcas or ())[rail : rail + 1]}
    return bool(expected) and any(used and not used & expected for used in map(_devices, ways))


def _devices(way: str) -> set[str]:
    """Return the device of a way, or those that NCCL merged: "NET/IB mlx5_0+mlx5_1 RoCE GDRDMA"."""
    return {*way.split()[1].split("+")} - _NO_DEVICE if way.startswith(_IB) else set()


_CERTAIN, _UNRESOLVED = 0.95, 0.3

_LIKELIER = "one setting of the job or its container is likelier than that many faults"


class _Context(NamedTuple):
    """The input of a blame."""

    all: tuple[PairTransport, ...]
    expected: Mapping[str, Expected]
    rails: int
    """How many rails the sweep has."""


def fallback_blames(sweep: Sweep, hosts: Sequence[Host]) -> tuple[Blame, ...]:
    """Blame each node, rail or path whose data did not use the expected way."""
    transports = pair_transports(sweep, hosts)
    rails = len({pair.rail for pair in transports})
    context = _Context(transports, {host.name: host.expected for host in hosts}, rails)
    culprits = _decode_rails(transports)
    nodes = {name for pair in transports for name in pair.nodes}
    fallback_nodes = {name for pair in transports for name in pair.fallback_nodes}
    affected = [host.name for host in hosts if host.name in fallback_nodes]
    blamed = {culprit.node for culprit, _ in culprits if culprit.node}
    any_good = any(pair.good for pair in transports)
    all_nodes = len(affected) > 1 and not any_good and nodes == fallback_nodes
    if all_nodes or shared_cause(len(blamed), len(nodes)):
        return (_blame_shared_cause(affected, len(nodes), context),)
    return tuple(_blame(culprit, rails, context) for culprit, rails in culprits)


def _decode_rails(transports: Iterable[PairTransport]) -> list[tuple[Culprit, list[int]]]:
    """Decode each rail by itself, and join the culprits of the same nodes, with their rails."""
    by_nodes: dict[tuple[str, tuple[str, ...]], tuple[Culprit, list[int]]] = {}
    for rail, pairs in sorted(grouped((pair.rail, pair) for pair in transports).items()):
        for culprit in decode(pairs):
            by_nodes.setdefault((culprit.kind, culprit.nodes), (culprit, []))[1].append(rail)
    return list(by_nodes.values())


def _blame(culprit: Culprit, rails: list[int], context: _Context) -> Blame:
    kind, names = culprit.kind, {*culprit.nodes}
    pairs = [
        pair for pair in context.all if pair.bad and pair.rail in rails and names & {pair.a, pair.b}
    ]
    if kind != "node":
        pairs = [pair for pair in pairs if {*pair.nodes} <= names] or pairs
    endpoint = kind == "node" and len(rails) < context.rails
    rail = rails[0] if endpoint and len(rails) == 1 else None
    parts = [part for part in culprit.among if kind != "unresolved" or part.kind == "node"]
    between, contrast = join_or(culprit.nodes), ""
    advice = ADVICE["sockets"]["node"].format(between)
    if kind == "node":
        partners = {name for pair in pairs for name in pair.nodes} - names
        between = with_partners(between, len(partners), min(partners))
    elif kind == "path":
        between, contrast = " and ".join(culprit.nodes), "; both use the expected way with others"
        advice = ADVICE["sockets"]["path"].format(between)
    what = _transport_words(between, pairs, culprit.nodes, rails, context)
    return Blame(
        kind="endpoint" if endpoint else kind,
        among=tuple(
            Component("endpoint", part.nodes, rail) if endpoint else part for part in parts
        ),
        sentence=what + contrast + _expected_way_words(rails, context),
        confidence=_UNRESOLVED if kind == "unresolved" else _CERTAIN,
        advice=advice,
        pairs=tuple(dict.fromkeys(pair.nodes for pair in pairs)),
        rail=rail,
    )


def _blame_shared_cause(names: Sequence[str], nodes: int, context: _Context) -> Blame:
    """Blame many nodes at once for what they share."""
    bad = [pair for pair in context.all if pair.bad]
    rails = sorted({pair.rail for pair in bad})
    what = _transport_words(f"{len(names)} of {nodes} nodes", bad, names, rails, context)
    return Blame(
        kind="node",
        among=tuple(Component("node", (name,)) for name in names),
        sentence=f"{what}; {_LIKELIER}",
        confidence=_CERTAIN,
        advice=ADVICE["sockets"]["most_nodes"],
        pairs=tuple(dict.fromkeys(pair.nodes for pair in bad)),
    )


def _transport_words(
    between: str,
    bad: Sequence[PairTransport],
    names: Sequence[str],
    rails: list[int],
    context: _Context,
) -> str:
    """Say what carried the data of these nodes, and what was expected."""
    ways = [pair.way(name) for pair in bad for name in names if name in pair.fallback_nodes]
    expected = expected_words(context.expected[names[0]], rails)
    where = ""
    if len(rails) != context.rails:
        where = f"rail{'s' * (len(rails) > 1)} {', '.join(map(str, rails))} of "
    return f"{_most_common(ways)} carried {where}{between}; expected: {expected}"


def _expected_way_words(rails: list[int], context: _Context) -> str:
    """Say what carried the same rails of nodes that used the expected way."""
    ways = [way for pair in context.all if pair.good and pair.rail in rails for way in pair.ways]
    return f"; elsewhere {_most_common(ways)}" if ways else ""


def _most_common(ways: Sequence[str]) -> str:
    return Counter(ways).most_common(1)[0][0]
