"""Which nodes take part in a sweep, with which rails and rounds: decided when all have answered.

Rail i is the GPU at place i of a complete node's list of PCI addresses. CUDA numbers the remaining
GPUs without gaps, so by CUDA's index every GPU above a missing one would get the wrong rail.

A firewall between two nodes costs their pair; if one of them hosted the store, it would cost the
other node all of its pairs.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from preflight.core.statistics import grouped
from preflight.core.thresholds import SHIPPED
from preflight.fabric.samples import Rung
from preflight.fabric.schedule import Pairing, Rounds, repair
from preflight.fabric.sweep_plan import Budget, SweepPlan

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from preflight.fabric.agent_events import Ready
    from preflight.fleet.model import Host

    Links = Collection[tuple[str, str]]
    """(from, to) of connections that are known to fail."""


class Rails(Struct, frozen=True, kw_only=True):
    """The rails of one launch."""

    count: int = 1
    """The largest number on any node."""
    missing: dict[str, tuple[int, ...]] = {}
    """Node name → rails below `count` that it does not have."""
    short: dict[str, str] = {}
    """Node name → which of its group's rails it lacks, as a phrase."""
    unknown: dict[str, str] = {}
    """Node name → why it is unknown which of its GPUs is which rail."""


def match_rails(
    ready: Mapping[str, Ready], names: Sequence[str], hosts: Mapping[str, Host], *, nccl: bool
) -> Rails:
    """Give each GPU of these nodes its rail.

    A node with the first, second and fourth of its group's four PCI addresses has rails 0, 1 and 3.

    A node lacks GPUs if the inventory expects more, else if more than half of its group (at least
    two nodes) have more. Without such a number, nodes whose PCI addresses do not match are machines
    of another kind: they get the first rails.
    """
    if not nccl or any(ready[name].rails for name in names):
        least = min((ready[name].rails or 1 for name in names), default=1)
        return Rails(count=least)
    groups = grouped((hosts[name].group if name in hosts else "", name) for name in names)
    rails_by_node: dict[str, tuple[int, ...]] = {}
    short: dict[str, str] = {}
    unknown: dict[str, str] = {}
    for members in groups.values():
        expected, source = _expected_gpus(ready, members, hosts)
        most = expected or max(ready[name].gpus for name in members)
        complete = Counter(ready[name].bus_ids for name in members if ready[name].gpus >= most)
        for name in members:
            gpus, bus_ids = ready[name].gpus, ready[name].bus_ids
            rails = _rails_of(bus_ids, complete)
            another_kind = not expected and bool(bus_ids) and () not in complete
            if rails is not None:
                rails_by_node[name] = rails
                if source and gpus < most:
                    lacks = [rail for rail in range(most) if rail not in rails]
                    words = f"rail{'s' * (len(lacks) > 1)} {', '.join(map(str, lacks))}"
                    short[name] = f"{words} (its torch sees {gpus} GPUs, {source})"
            elif gpus >= most or another_kind:
                rails_by_node[name] = tuple(range(gpus))
            else:
                unknown[name] = (
                    f"its torch sees {gpus} GPUs, {source or f'others of its group {most}'}, and "
                    "their PCI addresses do not tell which rails these are"
                )
    count = max((rails[-1] + 1 for rails in rails_by_node.values() if rails), default=1)
    lacking = {
        name: tuple(rail for rail in range(count) if rail not in rails)
        for name, rails in rails_by_node.items()
    }
    return Rails(
        count=count,
        missing={name: rails for name, rails in lacking.items() if rails},
        short=short,
        unknown=unknown,
    )


def _expected_gpus(
    ready: Mapping[str, Ready], members: Sequence[str], hosts: Mapping[str, Host]
) -> tuple[int, str]:
    """Return how many GPUs each node of a group should have, and the source; 0 without one."""
    expected = hosts[members[0]].expected.gpus if members[0] in hosts else None
    counts = Counter(ready[name].gpus for name in members)
    unlike = len({ready[name].bus_ids for name in members}) > 1
    # If no node has all of them, different addresses may mean different missing GPUs.
    if expected is not None and (expected in counts or (unlike and expected > max(counts))):
        return expected, f"{expected} expected"
    usual, votes = counts.most_common(1)[0]
    if votes > 1 and votes * 2 > len(members):
        return usual, f"{usual} on {votes} of {len(members)} nodes of its group"
    return 0, ""


def _rails_of(bus_ids: tuple[str, ...], lists: Counter[tuple[str, ...]]) -> tuple[int, ...] | None:
    """Return the rail of each GPU: its place in the longest list that holds all in that order.

    `lists`: the PCI addresses of complete nodes, counted. None if no list holds them.
    """
    for complete, _ in sorted(lists.items(), key=lambda entry: (-len(entry[0]), -entry[1])):
        if bus_ids and set(bus_ids) <= set(complete):
            rails = tuple(complete.index(bus_id) for bus_id in bus_ids)
            if list(rails) == sorted(rails):
                return rails
    return None


def host_first(names: Sequence[str], failed: Links) -> tuple[str, ...]:
    """Return the nodes with the store's host first and the others in their order.

    The host is the first with the fewest failed connections to the others, in either direction.
    """
    if not names:
        return ()
    present = set(names)
    links = {frozenset(link) for link in failed if present.issuperset(link)}
    failures = Counter(name for link in links for name in link)
    host = min(names, key=lambda name: failures[name])
    return (host, *(name for name in names if name != host))


_TWO = 2
_RAREST, _TIMES_USUAL = 1e-4, 10.0
_FALSE_ALARM, _MISS = 1e-6, 1e-3


class Roster(Struct, frozen=True, kw_only=True):
    """The nodes of one launch: the store's host, then the others in fleet order.

    `mismatched`: nodes that were ready but do not match the others, and why.
    """

    names: tuple[str, ...]
    backend: Literal["gloo", "nccl"]
    rails: int
    rounds: Rounds
    ladder: tuple[Rung, ...]
    soak: Rung | None
    limits: Budget
    mismatched: dict[str, str]
    missing: dict[str, tuple[int, ...]] = {}
    """Node name → rails of the launch that it does not have."""
    short: dict[str, str] = {}
    """Node name → which of its group's rails it lacks, as a phrase."""
    inside_sizes: tuple[Rung, ...] = ()
    """Larger sizes, for the all-reduce among the rails of one node."""
    inside: bool = False
    """Whether each node's rails all-reduce among themselves after the rounds."""
    keep_logs: bool = False
    """Whether each rail sends NCCL's log."""
    domain_rounds: Rounds = ()
    """Pairs of nodes of one NVLink domain, measured last."""
    cut_off: frozenset[str] = frozenset()
    """Nodes that are ready but cannot reach the store's host."""

    @property
    def host(self) -> str:
        """The node that hosts the sweep's store; "" if no node takes part."""
        return self.names[0] if self.names else ""

    def rails_of(self, *names: str) -> list[int]:
        """Return the rails that all of these nodes have."""
        lacking = {rail for name in names for rail in self.missing.get(name, ())}
        return [rail for rail in range(self.rails) if rail not in lacking]

    def measures_inside(self, name: str) -> bool:
        """Whether that node has enough rails to all-reduce among themselves."""
        return self.inside and len(self.rails_of(name)) >= _TWO

    @property
    def has_work(self) -> bool:
        """Whether there is anything to measure."""
        return len(self.names) >= _TWO or (self.inside and bool(self.names))


def build_roster(
    plan: SweepPlan, ready: Mapping[str, Ready], hosts: Mapping[str, Host] | None = None
) -> Roster:
    """Build the roster, with NCCL if at least half of the ready nodes have GPUs, else gloo.

    A node without GPUs cannot be in an NCCL group, so it is left out; so is a node whose GPUs
    cannot be matched to rails. `hosts`: by name, for their groups.
    """
    answered = [name for name in plan.nodes if name in ready]
    with_gpus = [name for name in answered if ready[name].cuda]
    enough = max(1, min(_TWO, len(answered)))
    nccl = len(with_gpus) >= enough and len(with_gpus) * 2 >= len(answered)
    candidates = with_gpus if nccl else answered
    rails = match_rails(ready, candidates, hosts or {}, nccl=nccl)
    matched = host_first([name for name in candidates if name not in rails.unknown], plan.cut)
    # The others connect to the store's host, which connects to none.
    unreachable = frozenset(name for name in matched if (name, matched[0]) in plan.cut)
    names = [name for name in matched if name not in unreachable]
    backend: Literal["gloo", "nccl"] = "nccl" if nccl else "gloo"
    ladder, soak = plan.sizes(backend)
    return Roster(
        names=tuple(names),
        backend=backend,
        rails=rails.count,
        missing={name: missing for name, missing in rails.missing.items() if name in names},
        short={name: words for name, words in rails.short.items() if name in names},
        rounds=repair(plan.rounds, plan.nodes, set(plan.nodes) - set(names)),
        ladder=ladder,
        soak=soak,
        limits=plan.limits(backend),
        mismatched={
            name: rails.unknown.get(name)
            or f"its torch sees no GPU, while that of {len(with_gpus)} nodes does"
            for name in answered
            if name not in matched
        },
        cut_off=unreachable,
        inside_sizes=plan.nccl_inside if nccl else (),
        inside=plan.inside and rails.count >= _TWO,
        keep_logs=plan.keep_logs and nccl,
        domain_rounds=neighbours(names, plan.domains) if nccl else (),
    )


def neighbours(names: Sequence[str], domains: Mapping[str, str]) -> Rounds:
    """Pair every node with the one before and the one after it in its NVLink domain.

    Two rounds, and a third for the last pair of a domain with an odd number of nodes. A slow node
    is slow with both neighbours, each of which is good with its other neighbour.
    """
    members = grouped((domains[name], name) for name in names if name in domains)
    rounds: list[list[Pairing]] = [[], [], []]
    for nodes in members.values():
        pairs = list(pairwise(nodes)) + [(nodes[0], nodes[-1])] * (len(nodes) > _TWO)
        for index, pair in enumerate(pairs):
            closing = index == len(nodes) - 1 and len(nodes) % 2
            rounds[2 if closing else index % 2].append(pair)
    return tuple(tuple(round_pairs) for round_pairs in rounds if round_pairs)


def go_order(
    plan: SweepPlan,
    roster: Roster,
    hosts: Mapping[str, Host],
    name: str,
    *,
    nonce: str,
    store: tuple[str, int] | None,
    more: bool = False,
) -> dict[str, object]:
    """Return the order to one agent, with its own pairs; without a store it must host one.

    `more`: it must wait for more rounds after these.
    """
    other = next((node for node in roster.names if node != name), name)
    return {
        "run": nonce,
        "index": roster.names.index(name),
        "nodes": len(roster.names),
        "rails": roster.rails,
        "missing": [
            number * roster.rails + rail
            for number, node in enumerate(roster.names)
            for rail in roster.missing.get(node, ())
        ],
        "backend": roster.backend,
        "address": hosts[name].address,
        "towards": hosts[other].address,
        "interface": plan.interface,
        "pinned": name not in plan.unpinned,
        "store": store,
        **measuring_order(roster, name),
        "domain": turns_of(msgspec.structs.replace(roster, rounds=roster.domain_rounds), name),
        "seed": plan.seed,
        "sysfs": plan.sysfs,
        "meet_s": roster.limits.meet_s,
        "op_s": roster.limits.op_s,
        "init_s": roster.limits.init_s,
        "more": more,
        "inside": roster.measures_inside(name),
        "inside_sizes": [_rung(rung) for rung in roster.inside_sizes],
        "keep_log": roster.keep_logs,
        "stop_rule": _stop_early(roster.backend) if plan.stop_early else None,
    }


def _stop_early(backend: str) -> list[float]:
    """Return the spike length, its usual and its bad rate, and the evidence needed.

    For Wald's sequential test: ten times the usual rate, false alarm in 1 of a million sizes, miss
    in 1 of a thousand.
    """
    limit = SHIPPED.for_backend(backend)
    usual = max(limit("usual_events"), _RAREST)
    return [limit("spike_us"), usual, _TIMES_USUAL * usual, math.log((1 - _MISS) / _FALSE_ALARM)]


def measuring_order(roster: Roster, name: str, first: int = 0) -> dict[str, object]:
    """Return one node's turns from round `first` on, and how they are measured."""
    return {
        "turns": turns_of(roster, name)[first:],
        "ladder": [_rung(rung) for rung in roster.ladder],
        "soak": None if roster.soak is None else _rung(roster.soak),
        "box_s": roster.limits.box_s,
        "soak_s": roster.limits.soak_s,
        "pair_s": roster.limits.pair_s,
        "barrier_s": roster.limits.barrier_s,
    }


def _rung(rung: Rung) -> list[int]:
    return [rung.size_bytes, rung.warmup, rung.iterations]


def turns_of(roster: Roster, name: str) -> list[dict[str, object] | None]:
    """Return one node's turn in each round; None in rounds without one."""
    number_of = {member: number for number, member in enumerate(roster.names)}
    turns: list[dict[str, object] | None] = []
    for place, pairs in enumerate(roster.rounds):
        pair = next((pair for pair in pairs if name in pair), None)
        if pair is None:
            turns.append(None)
            continue
        rank = pair.index(name)
        partner = number_of[pair[1 - rank]]
        turns.append({"round": place, "a": pair[0], "b": pair[1], "rank": rank, "partner": partner})
    return turns
