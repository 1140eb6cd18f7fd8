"""Judge NVLink between the nodes of a domain: each node by its better neighbour.

A bad node is bad with both neighbours, each of which is good with its other neighbour.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.statistics import median
from preflight.core.text import gbs, size
from preflight.core.thresholds import SHIPPED, Thresholds
from preflight.fabric.node_allreduce import NEVER, NodeAllreduce, below_nvlinks, measure_inside
from preflight.fabric.phrases import ADVICE
from preflight.fabric.samples import InsideSamples, PairSamples, Sweep
from preflight.facts.boards import nvlink_gbs
from preflight.facts.burn import OverNvlink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.facts import Gpu
    from preflight.fleet.model import Host

    ByNode = Mapping[str, Mapping[int, Sequence["_Neighbour"]]]
    """Results by node and rail."""

_LEAST_PEERS = 2
_OUTCOMES = {"hung": "hung", "corrupt": "came out wrong"}


class _Neighbour(Struct, frozen=True):
    """One rail of one node with one neighbour: the result as that node reports it."""

    partner: str
    measured: NodeAllreduce
    error: str = ""
    own_fault: bool = False
    """NCCL reports at this end that NVLink between nodes does not work here."""

    @property
    def best_gbs(self) -> float:
        """GB/s of the fastest operation; 0 if NVLink did not carry it, or none completed."""
        carried = self.measured.state == "measured" and "P2P" in self.measured.net.split()
        return self.measured.sizes[-1].best_gbs if carried else 0.0


def judge_domains(
    sweep: Sweep, hosts: Sequence[Host], limit: Thresholds = SHIPPED
) -> dict[str, OverNvlink]:
    """Judge every node in an NVLink domain, by name; those not measured get the reason."""
    results = _neighbours(sweep, limit)
    members = Counter(
        domain for name, domain in sweep.domains.items() if name not in sweep.left_out
    )
    best = {
        (name, rail): max(pair.best_gbs for pair in rails[rail])
        for name, rails in results.items()
        for rail in rails
    }
    judgements: dict[str, OverNvlink] = {}
    for name in (host.name for host in hosts if host.name in sweep.domains):
        domain = sweep.domains[name]
        base = OverNvlink(state="alone", domain=domain, nodes=members[domain])
        peers = [value for (other, _), value in best.items() if other != name and value]
        usual = median(peers) if len(peers) >= _LEAST_PEERS else None
        missing = _unmeasured(name, base, results, sweep)
        judgements[name] = missing or _judge_node(name, results, usual, base, limit)
    return judgements


def judge_domain_by_nvlink(domain: OverNvlink, gpus: Sequence[Gpu], share: float) -> OverNvlink:
    """Blame a node that reached less than this share of what its NVLinks carry."""
    shortfall = below_nvlinks(domain.best_gbs, domain.at_bytes, nvlink_gbs(gpus, len(gpus)), share)
    if domain.why or not shortfall:
        return domain
    why, advice = f"{_speed_words(domain)}; {shortfall}", ADVICE["nvlink_domain"]["slow"]
    return replace(domain, why=why, advice=advice)


def _unmeasured(name: str, base: OverNvlink, results: ByNode, sweep: Sweep) -> OverNvlink | None:
    """Say why there is nothing to judge; None if there is.

    If a pair of a node was not measured, only wrong sums are judged: with one bad pair, only the
    other pair can separate the node from the path.
    """
    if name in sweep.left_out:
        return replace(base, state="not_run", reason=sweep.left_out[name])
    if name in sweep.troubles:
        return replace(base, state="trouble", reason=sweep.troubles[name])
    cut = sweep.unfinished and any(
        name in pair.nodes and _cut_short(pair, sweep) for pair in sweep.domain
    )
    pairs = chain(*results.get(name, {}).values())
    if name in results and (not cut or any(_sums_wrong(name, pair) for pair in pairs)):
        return None
    if why := sweep.waited.get(name) or sweep.unfinished:
        return replace(base, state="not_run", reason=why, stopped=True)
    return base


def _neighbours(sweep: Sweep, limit: Thresholds) -> dict[str, dict[int, list[_Neighbour]]]:
    """Return the neighbours of each node and rail, without pairs that were not measured."""
    results: dict[str, dict[int, list[_Neighbour]]] = {}
    for pair in sweep.domain:
        if not pair.ends or _cut_short(pair, sweep):
            continue
        ends = {pair.a: pair.first, pair.b: pair.second}
        errors = {name: NEVER if end is None else end.error for name, end in ends.items()}
        samples = InsideSamples(f"{pair.a}-{pair.b}", pair.backend, (pair.first, pair.second))
        result = measure_inside(samples, limit)
        if result.state == "not_run":
            continue
        for name, partner in (pair.nodes, (pair.b, pair.a)):
            own_first = (f"{node}: {errors[node]}" for node in (name, partner) if errors[node])
            fault = "MNNVL" in errors[name] and "MNNVL" not in errors[partner]
            neighbour = _Neighbour(partner, result, next(own_first, ""), fault)
            results.setdefault(name, {}).setdefault(pair.rail, []).append(neighbour)
    return results


def _cut_short(pair: PairSamples, sweep: Sweep) -> bool:
    """Whether the sweep was over before both ends had reported."""
    return bool(sweep.unfinished) and (pair.first is None or pair.second is None)


def _judge_node(
    name: str, results: ByNode, peers_gbs: float | None, base: OverNvlink, limit: Thresholds
) -> OverNvlink:
    """Judge a node by its worst rail.

    If rail 2 of h1 reaches 40 GB/s with its better neighbour, where the others reach 400, then
    `rail` is 2, and `why` ends in "the median of the others is 400 GB/s, at least ... is expected".
    """
    rails = results[name]
    base = replace(base, rails=len(rails), peers_gbs=peers_gbs)
    for rail, neighbours in rails.items():
        for pair in neighbours:
            if _sums_wrong(name, pair):
                node = _on_rail(base, rail, neighbours, pair)
                sums = f"sums over NVLink with {pair.partner} came out wrong on GPU {rail}"
                why, advice = f"{sums} ({pair.error})", ADVICE["inside"]["corrupt"].format(name)
                return replace(node, why=why, advice=advice, proven=True)
    rail = min(rails, key=lambda number: max(pair.best_gbs for pair in rails[number]))
    best = max(rails[rail], key=lambda pair: pair.best_gbs)
    least = limit("nccl.peers_ratio") * (peers_gbs or 0.0)
    node = _on_rail(base, rail, rails[rail], best)
    partners_good = all(
        _good_elsewhere(results, partner, rail, least, without=name) for partner in node.partners
    )
    node = replace(node, proven=partners_good or any(pair.own_fault for pair in rails[rail]))
    if node.state == "broken":
        end = _OUTCOMES.get(best.measured.state, "did not come about")
        partners = " and ".join(node.partners)
        why = f"the all-reduce of GPU {rail} over NVLink with {partners} {end} ({best.error})"
        return replace(node, why=why, advice=ADVICE["nvlink_domain"]["broken"].format(name))
    if not best.best_gbs:
        joined = f"which joins the {node.nodes} nodes of its domain"
        why = f"{_speed_words(node)}, not over NVLink, {joined}"
        return replace(node, why=why, advice=ADVICE["nvlink_domain"]["no_nvlink"].format(name))
    if best.best_gbs < least:
        usual = f"the median of the others is {gbs(peers_gbs or 0.0)}"
        why = f"{_speed_words(node)}; {usual}, at least {gbs(least)} is expected"
        return replace(node, why=why, advice=ADVICE["nvlink_domain"]["slow"])
    if why := _bad_path(name, results, least):
        return replace(node, why=why, advice="run again", proven=False)
    return node


def _on_rail(
    node: OverNvlink, rail: int, neighbours: Sequence[_Neighbour], decisive: _Neighbour
) -> OverNvlink:
    """Fill in what was measured on one rail, with the neighbour by which the node is judged."""
    largest = decisive.measured.sizes[-1] if decisive.measured.sizes else None
    return replace(
        node,
        state="measured" if decisive.measured.state == "measured" else "broken",
        rail=rail,
        partners=tuple(pair.partner for pair in neighbours),
        way=decisive.measured.net,
        at_bytes=largest.size_bytes if largest else 0,
        best_gbs=largest.best_gbs if largest else None,
    )


def _bad_path(name: str, results: ByNode, least: float) -> str:
    """Name the first neighbour with which this node alone is not good; "" if there is none."""
    for rail, neighbours in results[name].items():
        for pair in neighbours:
            good_elsewhere = _good_elsewhere(results, pair.partner, rail, least, without=name)
            if good_elsewhere and not _good(pair, least):
                result = pair.error or f"{gbs(pair.best_gbs)} over {pair.measured.net}"
                return f"GPU {rail} with {pair.partner}: {result}; both are fine with another node"
    return ""


def _good_elsewhere(results: ByNode, name: str, rail: int, least: float, *, without: str) -> bool:
    """Whether that rail of a node is good with a node other than `without`."""
    several = results.get(name, {}).get(rail, ())
    return any(pair.partner != without and _good(pair, least) for pair in several)


def _good(pair: _Neighbour, least: float) -> bool:
    return bool(pair.best_gbs) and pair.best_gbs >= least


def _sums_wrong(name: str, pair: _Neighbour) -> bool:
    return pair.measured.state == "corrupt" and pair.error.startswith(f"{name}: ")


def _speed_words(node: OverNvlink) -> str:
    reached = f"{gbs(node.best_gbs or 0.0)} at best at {size(node.at_bytes)}"
    return f"{reached} on GPU {node.rail} with {' and '.join(node.partners)}, over {node.way}"
