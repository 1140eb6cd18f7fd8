"""Blame nodes whose data went over sockets, or over another rail's NIC, and say what to check.

NCCL's log at each end says what carried its data; the partners of each end show which is at fault.
gloo always uses TCP, so it does not count.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from preflight.core.statistics import grouped, shared_cause
from preflight.core.text import either
from preflight.fabric.decoding.culprit import Component, Culprit
from preflight.fabric.decoding.hard_failures import decode
from preflight.fabric.phrases import Blame, with_partners
from preflight.fabric.samples import Meeting, Sweep

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from preflight.fleet.model import Expected, Host


_TOGETHER = " + "
_NET, _IB, _SOCKETS = "NET/", "NET/IB ", "NET/Socket"
_NO_DEVICE = frozenset(("GDRDMA", "GDRDMA(PCI)"))


class PairTransport(Meeting, frozen=True, kw_only=True):
    """What each end's data went over, and whether that was expected."""

    ways: tuple[str, str]
    """Of each end, from NCCL's log: "NET/Socket eth0", "NET/IB mlx5_3 GDRDMA"; "": unknown."""
    fell: tuple[bool, bool]
    """Which ends used another way than expected."""

    @property
    def bad(self) -> bool:
        """Whether an end did not use the expected way."""
        return any(self.fell)

    @property
    def good(self) -> bool:
        """Whether both ends used the expected way, over NICs (not `P2P MNNVL` inside a rack)."""
        ways = [way for end in self.ways for way in end.split(_TOGETHER)]
        return not self.bad and all(way.startswith(_NET) for way in ways)

    @property
    def suspect(self) -> str:
        """The end that did not, if the other did."""
        if all(self.ways) and self.fell[0] != self.fell[1]:
            return self.a if self.fell[0] else self.b
        return ""

    @property
    def fallen_back(self) -> tuple[str, ...]:
        """The nodes whose end did not."""
        return tuple(name for name, fell in zip((self.a, self.b), self.fell, strict=True) if fell)

    def way(self, name: str) -> str:
        """Return that node's way."""
        return self.ways[(self.a, self.b).index(name)]


def pair_transports(sweep: Sweep, hosts: Iterable[Host]) -> tuple[PairTransport, ...]:
    """Return what carried each pair of nodes for which the inventory expects NICs."""
    expected = {host.name: host.expected for host in hosts if expects_ib(host.expected)}
    found: list[PairTransport] = []
    for pair in sweep.pairs:
        if pair.backend == "nccl" and pair.a in expected and pair.b in expected:
            a, b = (end.net if end is not None else "" for end in (pair.first, pair.second))
            fell = _fell(a, expected[pair.a], pair.rail), _fell(b, expected[pair.b], pair.rail)
            found.append(PairTransport(*pair.key, ways=(a, b), fell=fell))
    return tuple(found)


def expects_ib(expectation: Expected) -> bool:
    """Whether a group's inventory entry says that its data go over RDMA NICs."""
    return bool(expectation.nics or expectation.hcas)


def expected_words(expectation: Expected, rails: Iterable[int]) -> str:
    """Say what is expected of these rails: "mlx5_3 (fleet.toml [group.train])", "8 NICs (...)"."""
    known = expectation.hcas or ()
    hcas = [known[rail] for rail in rails if rail < len(known)]
    count = expectation.nics or len(known)
    what = ", ".join(hcas) if hcas else f"{count} NIC{'s' * (count != 1)}"
    return f"{what} ({expectation.origin})" if expectation.origin else what


def _fell(way: str, expectation: Expected, rail: int) -> bool:
    """Whether it used sockets, or a device that is expected on another rail."""
    ways = way.split(_TOGETHER)
    if any(each.startswith(_SOCKETS) for each in ways):
        return True
    mine = {*(expectation.hcas or ())[rail : rail + 1]}
    return bool(mine) and any(known and not known & mine for known in map(_devices, ways))


def _devices(way: str) -> set[str]:
    """Return its device, or those that NCCL merged: "NET/IB mlx5_0+mlx5_1 RoCE GDRDMA"."""
    return {*way.split()[1].split("+")} - _NO_DEVICE if way.startswith(_IB) else set()


_CERTAIN, _UNRESOLVED = 0.95, 0.3

_HERE = (
    "on {0} look for NCCL_IB_DISABLE, NCCL_IB_HCA, NCCL_NET and an nccl.conf, for libibverbs and "
    "/dev/infiniband in the job's container, at the port's state (ibstat) and nvidia_peermem"
)
_SHARED = (
    "look for NCCL_IB_DISABLE, NCCL_IB_HCA and NCCL_NET in the job's environment and in nccl.conf, "
    "for libibverbs and /dev/infiniband in its container, and at what the inventory expects"
)
_LIKELIER = "one setting of the job or its container is likelier than that many faults"
_BETWEEN = "read NCCL's log of {0} (NCCL_DEBUG=INFO); compare their GIDs, subnets and pkeys"


class _Seen(NamedTuple):
    """The input of a blame."""

    all: tuple[PairTransport, ...]
    expected: Mapping[str, Expected]
    rails: int
    """How many rails the sweep has."""


def fallback_blames(sweep: Sweep, hosts: Sequence[Host]) -> tuple[Blame, ...]:
    """Blame each node, rail or path whose data did not use the expected way."""
    every = pair_transports(sweep, hosts)
    rails = len({one.rail for one in every})
    seen = _Seen(every, {host.name: host.expected for host in hosts}, rails)
    culprits = _decode_rails(every)
    nodes = {name for one in every for name in one.nodes}
    out = [host.name for host in hosts if any(host.name in one.fallen_back for one in every)]
    blamed = {one.node for one, _ in culprits if one.node}
    all_nodes = len(out) > 1 and not any(one.good for one in every) and nodes == {*out}
    if all_nodes or shared_cause(len(blamed), len(nodes)):
        return (_everywhere(out, len(nodes), seen),)
    return tuple(_blame(culprit, own, seen) for culprit, own in culprits)


def _decode_rails(every: Iterable[PairTransport]) -> list[tuple[Culprit, list[int]]]:
    """Decode each rail by itself, and join the culprits of the same nodes, with their rails."""
    found: dict[tuple[str, tuple[str, ...]], tuple[Culprit, list[int]]] = {}
    for rail, own in sorted(grouped((one.rail, one) for one in every).items()):
        for culprit in decode(own):
            found.setdefault((culprit.kind, culprit.nodes), (culprit, []))[1].append(rail)
    return list(found.values())


def _blame(culprit: Culprit, rails: list[int], seen: _Seen) -> Blame:
    kind, names = culprit.kind, {*culprit.nodes}
    mine = [one for one in seen.all if one.bad and one.rail in rails and names & {one.a, one.b}]
    if kind != "node":
        mine = [one for one in mine if {*one.nodes} <= names] or mine
    endpoint = kind == "node" and len(rails) < seen.rails
    rail = rails[0] if endpoint and len(rails) == 1 else None
    parts = [part for part in culprit.among if kind != "unresolved" or part.kind == "node"]
    between, rest = either(culprit.nodes), ""
    advice = _HERE.format(between)
    if kind == "node":
        partners = {name for one in mine for name in one.nodes} - names
        between = with_partners(between, len(partners), min(partners))
    elif kind == "path":
        between, rest = " and ".join(culprit.nodes), "; both use the expected way with others"
        advice = _BETWEEN.format(between)
    what = _transport_words(between, mine, culprit.nodes, rails, seen)
    return Blame(
        kind="endpoint" if endpoint else kind,
        among=tuple(Component("endpoint", one.nodes, rail) if endpoint else one for one in parts),
        sentence=what + rest + _elsewhere(rails, seen),
        confidence=_UNRESOLVED if kind == "unresolved" else _CERTAIN,
        advice=advice,
        pairs=tuple(dict.fromkeys(one.nodes for one in mine)),
        rail=rail,
    )


def _everywhere(names: Sequence[str], nodes: int, seen: _Seen) -> Blame:
    """Blame many nodes at once for what they share."""
    bad = [one for one in seen.all if one.bad]
    rails = sorted({one.rail for one in bad})
    what = _transport_words(f"{len(names)} of {nodes} nodes", bad, names, rails, seen)
    return Blame(
        kind="node",
        among=tuple(Component("node", (name,)) for name in names),
        sentence=f"{what}; {_LIKELIER}",
        confidence=_CERTAIN,
        advice=_SHARED,
        pairs=tuple(dict.fromkeys(one.nodes for one in bad)),
    )


def _transport_words(
    between: str, bad: Sequence[PairTransport], names: Sequence[str], rails: list[int], seen: _Seen
) -> str:
    """Say what carried the data of these nodes, and what was expected."""
    ways = [one.way(name) for one in bad for name in names if name in one.fallen_back]
    expected = expected_words(seen.expected[names[0]], rails)
    where = ""
    if len(rails) != seen.rails:
        where = f"rail{'s' * (len(rails) > 1)} {', '.join(map(str, rails))} of "
    return f"{_most_common(ways)} carried {where}{between}; expected: {expected}"


def _elsewhere(rails: list[int], seen: _Seen) -> str:
    """Say what carried the same rails of nodes that used the expected way."""
    ways = [way for one in seen.all if one.good and one.rail in rails for way in one.ways]
    return f"; elsewhere {_most_common(ways)}" if ways else ""


def _most_common(ways: Sequence[str]) -> str:
    return Counter(ways).most_common(1)[0][0]
