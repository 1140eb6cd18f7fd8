"""Whose data went over sockets, or over another rail's NIC: named, with what to look for there."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec.structs import replace

from preflight.fabric.blame import Blame
from preflight.fabric.carried import carried, promised_words
from preflight.fabric.decode import decode
from preflight.fabric.words import either
from preflight.fleet.nodeset import fold
from preflight.stats.shared_cause import shared_cause

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.fabric.carried import Carried
    from preflight.fabric.samples import Sweep
    from preflight.fleet.model import Host, Promise

    Kind = Literal["node", "path", "unresolved"]

_CERTAIN, _UNRESOLVED = 0.95, 0.3
_TWO = 2

_HERE = (
    "on {0} look for NCCL_IB_DISABLE, NCCL_IB_HCA, NCCL_NET and an nccl.conf, for libibverbs and "
    "/dev/infiniband in the job's container, at the port's state (ibstat) and nvidia_peermem"
)
_SHARED = (
    "look for NCCL_IB_DISABLE, NCCL_IB_HCA and NCCL_NET in the job's environment and in nccl.conf, "
    "for libibverbs and /dev/infiniband in its container, and at what the inventory promises"
)
_BETWEEN = "read what NCCL says of {0} (NCCL_DEBUG=INFO); compare their GIDs, subnets and pkeys"


class _Seen(NamedTuple):
    """What a blame is worded from."""

    all: tuple[Carried, ...]
    promised: Mapping[str, Promise]
    rails: int
    """How many rails the sweep has."""


def fallen(sweep: Sweep, hosts: Sequence[Host]) -> tuple[Blame, ...]:
    """Blame each node, its rail, or path whose data did not go the way that was promised."""
    every = carried(sweep, hosts)
    rails = sorted({one.rail for one in every})
    seen = _Seen(every, {host.name: host.promised for host in hosts}, len(rails))
    found: dict[tuple[Kind, tuple[str, ...]], list[int]] = {}
    for rail in rails:
        for culprit in decode([one for one in every if one.rail == rail]):
            found.setdefault((culprit.kind, culprit.among), []).append(rail)
    nodes = {name for one in every for name in (one.a, one.b)}
    out = [host.name for host in hosts if any(host.name in one.fallen for one in every)]
    blamed = {name for kind, among in found if kind == "node" for name in among}
    nobody_else = len(out) >= _TWO and not any(one.good for one in every) and nodes == {*out}
    if nobody_else or shared_cause(len(blamed), len(nodes)):
        return (_everywhere(out, len(nodes), seen),)
    return tuple(_blame(kind, among, own, seen) for (kind, among), own in found.items())


def absorbed(causes: Sequence[Blame], effects: Sequence[Blame]) -> tuple[Blame, ...]:
    """Put what is slow or broken for a known cause under that cause: one fault is one blame."""
    left = list(effects)
    found: list[Blame] = []
    for cause in causes:
        own = [one for one in left if set(one.pairs) <= set(cause.pairs)]
        left = [one for one in left if one not in own]
        said = [one.sentence for one in own if one.component == cause.component]
        found.append(replace(cause, sentence="; ".join([cause.sentence, *said])))
    return (*found, *left)


def _blame(kind: Kind, among: tuple[str, ...], rails: list[int], seen: _Seen) -> Blame:
    mine = [one for one in seen.all if one.bad and one.rail in rails and {*among} & {one.a, one.b}]
    if kind != "node":
        mine = [one for one in mine if {one.a, one.b} <= {*among}]
    partners = {name for one in mine for name in (one.a, one.b)} - {*among}
    others = [name for name in among if any(name in one.fallen for one in mine)]
    way = _most_common([one.way(name) for one in mine for name in others if name in one.fallen])
    promised = promised_words(seen.promised[among[0]], rails)
    where, endpoint = _where(rails, seen), kind == "node" and len(rails) < seen.rails
    if kind == "node":
        whom = f"each of its {len(partners)} partners" if len(partners) > 1 else min(partners)
        sentence = f"{way} carried {where}{among[0]} with {whom}; promised: {promised}"
        component, advice = among[0], _HERE.format(among[0])
    elif kind == "path":
        both = " and ".join(among)
        sentence = f"{way} carried {where}{both}; promised: {promised}; both kept it with others"
        component, advice = f"pair {'-'.join(among)}", _BETWEEN.format(both)
    else:
        component = either(among)
        sentence = f"{way} carried {where}{component}; promised: {promised}"
        advice = _HERE.format(component)
    return Blame(
        kind="endpoint" if endpoint else kind,
        component=component,
        sentence=sentence + _elsewhere(rails, seen),
        confidence=_UNRESOLVED if kind == "unresolved" else _CERTAIN,
        advice=advice,
        pairs=tuple(dict.fromkeys(one.name for one in mine)),
        rail=rails[0] if endpoint and len(rails) == 1 else None,
        suspects=among if kind == "unresolved" else (),
    )


def _everywhere(names: Sequence[str], nodes: int, seen: _Seen) -> Blame:
    """So many at once have it from what they share."""
    bad = [one for one in seen.all if one.bad]
    rails = sorted({one.rail for one in bad})
    way = _most_common([one.way(name) for one in bad for name in one.fallen])
    return Blame(
        kind="node",
        component=fold(names),
        sentence=(
            f"{way} carried {_where(rails, seen)}{len(names)} of {nodes} nodes; promised: "
            f"{promised_words(seen.promised[names[0]], rails)}; one setting of the job or its "
            "container is likelier than that many faults"
        ),
        confidence=_CERTAIN,
        advice=_SHARED,
        pairs=tuple(dict.fromkeys(one.name for one in bad)),
        culprits=tuple(names),
    )


def _where(rails: list[int], seen: _Seen) -> str:
    """Say "rail 5 of ", or nothing where it is all of them."""
    if len(rails) == seen.rails:
        return ""
    return f"rail{'s' * (len(rails) > 1)} {', '.join(map(str, rails))} of "


def _elsewhere(rails: list[int], seen: _Seen) -> str:
    """What carried the same rails where it was as promised."""
    ways = [way for one in seen.all if one.good and one.rail in rails for way in one.ways]
    return f"; elsewhere {_most_common(ways)}" if ways else ""


def _most_common(ways: Sequence[str]) -> str:
    return Counter(ways).most_common(1)[0][0]
