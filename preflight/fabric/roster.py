"""Who takes part in a sweep, with what, and in which rounds: decided once all have answered."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from preflight.fabric.limits import limit
from preflight.fabric.rails import match
from preflight.fabric.samples import Ladder
from preflight.fabric.schedule import Rounds, repair
from preflight.fabric.store_host import cut_off, host_first

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.fabric.events import Ready
    from preflight.fabric.plan import Budget, SweepPlan
    from preflight.fabric.schedule import Pairing
    from preflight.fleet.model import Host

_SOME = 2
_RAREST, _TIMES_USUAL = 1e-4, 10.0
_WRONGLY, _MISSED = 1e-6, 1e-3


class Roster(Struct, frozen=True, kw_only=True):
    """The nodes of one launch: the store's host, then the others in fleet order.

    `unfit` says who was ready but does not fit in.
    """

    names: tuple[str, ...]
    backend: Literal["gloo", "nccl"]
    rails: int
    rounds: Rounds
    ladder: tuple[Ladder, ...]
    soak: Ladder | None
    unfit: dict[str, str]
    missing: dict[str, tuple[int, ...]] = {}
    """Node name → rails of the launch that it does not have."""
    short: dict[str, str] = {}
    """Node name → which of its group's rails it lacks, in words."""
    inside_sizes: tuple[Ladder, ...] = ()
    """Larger sizes for the rails of one node among themselves."""
    inside: bool = False
    """After the rounds each node's rails all-reduce among themselves."""
    keep_logs: bool = False
    """Each rail sends what NCCL logged."""
    domain_rounds: Rounds = ()
    """Last of all, pairs of nodes of one NVLink domain."""
    cut_off: frozenset[str] = frozenset()
    """Ready and fit, but the store's host is out of their reach."""

    @property
    def host(self) -> str:
        """Who hosts the sweep's store; empty where nobody takes part."""
        return self.names[0] if self.names else ""

    def rails_of(self, *names: str) -> list[int]:
        """The rails that all of these nodes have."""
        lacking = {rail for name in names for rail in self.missing.get(name, ())}
        return [rail for rail in range(self.rails) if rail not in lacking]

    def looks_inside(self, name: str) -> bool:
        """Whether that node has rails enough to all-reduce among themselves."""
        return self.inside and len(self.rails_of(name)) >= _SOME

    @property
    def enough(self) -> bool:
        """Whether there is anything to measure."""
        return len(self.names) >= _SOME or (self.inside and bool(self.names))


def roster(
    plan: SweepPlan, ready: Mapping[str, Ready], hosts: Mapping[str, Host] | None = None
) -> Roster:
    """Choose NCCL when at least half of the nodes that are ready have GPUs, else gloo.

    A node without GPUs cannot be in an NCCL group, so it is left out of one; so is a node of whose
    GPUs it is not known which rails they are. `hosts`: by name, for their groups.
    """
    seeing = [name for name in plan.nodes if name in ready and ready[name].cuda]
    there = [name for name in plan.nodes if name in ready]
    nccl = len(seeing) >= max(1, min(_SOME, len(there))) and len(seeing) * 2 >= len(there)
    rails = match(ready, seeing if nccl else there, hosts or {}, nccl=nccl)
    able = [name for name in (seeing if nccl else there) if name not in rails.unknown]
    fit = host_first(able, plan.cut)
    cut = cut_off(fit[0], fit, plan.cut) if fit else frozenset()
    names = [name for name in fit if name not in cut]
    return Roster(
        names=tuple(names),
        backend="nccl" if nccl else "gloo",
        rails=rails.count,
        missing={name: own for name, own in rails.missing.items() if name in names},
        short={name: words for name, words in rails.short.items() if name in names},
        rounds=repair(plan.rounds, plan.nodes, set(plan.nodes) - set(names)).rounds,
        ladder=plan.nccl if nccl else plan.gloo,
        soak=plan.nccl_soak if nccl else plan.gloo_soak,
        unfit={
            name: rails.unknown.get(name)
            or f"its torch sees no GPU, while that of {len(seeing)} nodes does"
            for name in there
            if name not in fit
        },
        cut_off=cut,
        inside_sizes=plan.nccl_inside if nccl else (),
        inside=plan.inside and rails.count >= _SOME,
        keep_logs=plan.keep_logs and nccl,
        domain_rounds=neighbours(names, plan.domains) if nccl else (),
    )


def neighbours(names: Sequence[str], domains: Mapping[str, str]) -> Rounds:
    """Pair every node with the one before and the one after it in its NVLink domain.

    Two rounds, a third for the last pair of a domain of an odd number of nodes. A node that is slow
    is so with both of its neighbours, each of which is fine with its other one.
    """
    members: dict[str, list[str]] = {}
    for name in names:
        if name in domains:
            members.setdefault(domains[name], []).append(name)
    rounds: list[list[Pairing]] = [[], [], []]
    for own in members.values():
        pairs = list(pairwise(own)) + [(own[0], own[-1])] * (len(own) > _SOME)
        for place, pair in enumerate(pairs):
            closing = place == len(own) - 1 and len(own) % 2
            rounds[2 if closing else place % 2].append(pair)
    return tuple(tuple(around) for around in rounds if around)


def budget(plan: SweepPlan, who: Roster) -> Budget:
    """The deadlines that go with the backend."""
    return plan.nccl_budget if who.backend == "nccl" else plan.gloo_budget


def go_order(
    plan: SweepPlan,
    who: Roster,
    hosts: Mapping[str, Host],
    name: str,
    *,
    nonce: str,
    store: tuple[str, int] | None,
    more: bool = False,
) -> dict[str, object]:
    """The order to one agent; without a store it hosts one itself. Holds its own pairs only.

    `more`: after these rounds it is to wait for others.
    """
    limits = budget(plan, who)
    other = next((each for each in who.names if each != name), name)
    return {
        "run": nonce,
        "index": who.names.index(name),
        "nodes": len(who.names),
        "rails": who.rails,
        "missing": [
            number * who.rails + rail
            for number, each in enumerate(who.names)
            for rail in who.missing.get(each, ())
        ],
        "backend": who.backend,
        "address": hosts[name].address,
        "towards": hosts[other].address,
        "interface": plan.interface,
        "pinned": name not in plan.unpinned,
        "store": store,
        "ladder": [rung_order(rung) for rung in who.ladder],
        "soak": None if who.soak is None else rung_order(who.soak),
        "turns": turns_of(who, name),
        "domain": turns_of(msgspec.structs.replace(who, rounds=who.domain_rounds), name),
        "seed": plan.seed,
        "sysfs": plan.sysfs,
        "meet_s": limits.meet_s,
        "op_s": limits.op_s,
        "box_s": limits.box_s,
        "pair_s": limits.pair_s,
        "soak_s": limits.soak_s,
        "barrier_s": limits.barrier_s,
        "init_s": limits.init_s,
        "more": more,
        "inside": who.looks_inside(name),
        "inside_sizes": [rung_order(rung) for rung in who.inside_sizes],
        "keep_log": who.keep_logs,
        "condemn": _condemn(who.backend) if plan.stop_early else None,
    }


def _condemn(backend: str) -> list[float] | None:
    """Spikes of what length, how often is usual and how often is not, and the evidence wanted.

    As Wald's sequential test has it: ten times as often as usual, wrongly in 1 of a million sizes,
    missed in 1 of a thousand.
    """
    spike_us, usual = limit(backend, "spike_us"), limit(backend, "usual_events")
    if spike_us is None or usual is None:
        return None
    usual = max(usual, _RAREST)
    return [spike_us, usual, _TIMES_USUAL * usual, math.log((1 - _MISSED) / _WRONGLY)]


def rung_order(rung: Ladder) -> list[int]:
    """One size, as an order names it."""
    return [rung.size_bytes, rung.warmup, rung.iterations]


def turns_of(who: Roster, name: str) -> list[dict[str, object] | None]:
    """One node's part in each round; None where it has none."""
    number = {member: place for place, member in enumerate(who.names)}
    turns: list[dict[str, object] | None] = []
    for place, around in enumerate(who.rounds):
        own = next((pair for pair in around if name in pair), None)
        if own is None:
            turns.append(None)
            continue
        rank = own.index(name)
        partner = number[own[1 - rank]]
        turns.append({"round": place, "a": own[0], "b": own[1], "rank": rank, "partner": partner})
    return turns
