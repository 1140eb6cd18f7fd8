"""Compares the all-reduce among one node's GPUs with that of its peers, and judges it.

Peers are the other nodes of its group with as many rails. Then the expected value and the shipped
floor count; without any of these it cannot be judged.

The time of an operation is the shortest of all rails': that of the last one to begin it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from heapq import nlargest
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.statistics import LeaveOut, grouped, healthy_share, median
from preflight.core.text import gbs, size, time_us
from preflight.core.thresholds import SHIPPED, Thresholds
from preflight.fabric.compare import INDEPENDENT, Bound, latency_limit_us
from preflight.fabric.observed import STOOD_STILL
from preflight.fabric.pair_summary import (
    LATENCY_BELOW,
    busbw_gbs,
    shortest_us,
    wire_from,
    worst_state,
)
from preflight.fabric.phrases import ADVICE, OWN_CAUSES, STATES, advice_on
from preflight.fabric.samples import End, InsideSamples, PairState, Sweep, Timing
from preflight.facts.boards import nvlink_gbs
from preflight.facts.burn import Inside
from preflight.fleet.baselines import gpu_floor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from preflight.facts import Gpu
    from preflight.fleet.model import Expected, Host


SPIKE_MEDIANS = 20.0
"""An operation is an event only if it takes more than so many medians of its size."""

CPU_WAIT = "cpu wait_s"
"""Its name among a rail's counters."""

_EXPLAINS = 0.5
"""A rail is late if its own gap is at least that share of the others' wait for it."""


class Events(Struct, frozen=True):
    """Operations that took far longer than usual."""

    count: int = 0
    operations: int = 0
    worst_us: float = 0.0
    lost_us: float = 0.0
    """Their total time beyond the usual."""
    late: dict[int, int] = {}
    """Rail → in how many of them it kept the others waiting, by its own clock."""

    @property
    def rail(self) -> int | None:
        """The rail that explains most of the events, if there is one."""
        most = max(self.late, key=self.late.__getitem__, default=None)
        return most if most is not None and self.late[most] * 4 >= self.count * 3 else None


class SizeSummary(NamedTuple):
    """One size, by the shortest of all rails' times of each operation."""

    size_bytes: int
    p50_us: float
    busbw_gbs: float
    """Of the median operation."""
    best_gbs: float
    """Of the fastest one."""


class NodeAllreduce(Struct, frozen=True, kw_only=True):
    """The all-reduce among one node's rails."""

    name: str
    backend: str
    rails: int
    state: PairState
    sizes: tuple[SizeSummary, ...] = ()
    events: Events = Events()
    net: str = ""
    cpu_wait_us: float = 0.0
    """How long its processes were ready and did not run, in total."""


def measure_inside(samples: InsideSamples, limit: Thresholds = SHIPPED) -> NodeAllreduce:
    """Join the accounts of all rails."""
    ends = samples.rails
    state = worst_state(ends)
    accounts = [end for end in ends if end is not None]
    columns = _columns(accounts) if state == "measured" else {}
    if state == "measured" and not columns:
        state = "error"
    sizes = tuple(_size_summary(at, rows) for at, rows in columns.items())
    return NodeAllreduce(
        name=samples.node,
        backend=samples.backend,
        rails=len(ends),
        state=state,
        sizes=sizes,
        events=_events(limit.for_backend(samples.backend), columns, sizes, tuple(samples.numbered)),
        net=" / ".join(dict.fromkeys(end.net for end in accounts if end.net)),
        cpu_wait_us=sum(m.by * 1e6 for end in accounts for m in end.moved if m.name == CPU_WAIT),
    )


def _size_summary(size_bytes: int, rails: Sequence[Timing]) -> SizeSummary:
    times_us = shortest_us(rails)
    p50_us = median(times_us)
    speeds = (busbw_gbs(size_bytes, us / 1e6, len(rails)) for us in (p50_us, min(times_us)))
    return SizeSummary(size_bytes, p50_us, *(round(speed, 6) for speed in speeds))


def _columns(ends: Sequence[End]) -> dict[int, list[Timing]]:
    """Return each rail's timing by ascending size, for sizes that all rails measured."""
    by_size = grouped((timing.size_bytes, timing) for end in ends for timing in end.timings)
    return {at: by_size[at] for at in sorted(by_size) if len(by_size[at]) == len(ends)}


def _events(
    limit: Callable[[str], float],
    columns: dict[int, list[Timing]],
    sizes: Sequence[SizeSummary],
    numbers: Sequence[int],
) -> Events:
    count, operations, worst_us, lost_us = 0, 0, 0.0, 0.0
    late: dict[int, int] = {}
    for rails, usual in zip(columns.values(), sizes, strict=True):
        cut_us = max(limit("spike_us"), SPIKE_MEDIANS * usual.p50_us)
        operations += min(len(rail.gaps_us) for rail in rails)
        if all(max(rail.times_us) <= cut_us for rail in rails):
            continue
        gaps = list(zip(*(rail.gaps_us for rail in rails), strict=False))
        for number, times in enumerate(zip(*(rail.times_us for rail in rails), strict=False)):
            if max(times) <= cut_us:
                continue
            count += 1
            worst_us = max(worst_us, *times)
            excess_us = max(times) - usual.p50_us
            lost_us += excess_us
            last = times.index(min(times))
            if gaps[number][last] >= _EXPLAINS * excess_us:
                late[numbers[last]] = late.get(numbers[last], 0) + 1
    return Events(count, operations, worst_us, lost_us, late)


MIN_PEERS = 2
"""Other nodes that are needed for a comparison."""


class PeerNodes:
    """The measured nodes of one group with as many rails; each is compared with all others.

    What all of them share is computed once, so the cost grows with the number of nodes.
    """

    def __init__(self, nodes: Sequence[NodeAllreduce], limit: Thresholds) -> None:
        self._names = {node.name for node in nodes}
        self.limit = limit
        self._summaries = grouped(
            (summary.size_bytes, (node.name, summary)) for node in nodes for summary in node.sizes
        )
        self._largest = LeaveOut((node.sizes[-1].size_bytes, [node.name]) for node in nodes)
        self._ways = Counter(node.net for node in nodes if node.net)
        self._worst = nlargest(2, nodes, key=lambda node: node.events.lost_us)
        self._ranked: dict[tuple[int, str | float], LeaveOut] = {}

    def count(self, node: NodeAllreduce) -> int:
        """Return how many others there are."""
        return len(self._names) - (node.name in self._names)

    def bound(self, node: NodeAllreduce, expectation: Expected) -> tuple[Bound, int]:
        """Return the limit on the best operation at the node's largest size, GB/s.

        And the larger size that the peers reached, if that alone makes the node slow; else 0.
        """
        limit = self.limit.for_backend(node.backend)
        top = node.sizes[-1].size_bytes
        furthest = self._largest.median([node.name]) or 0
        further = int(furthest) if self.count(node) >= MIN_PEERS and furthest > top else 0
        if top < wire_from(node.backend):
            return Bound(), further
        bounds: list[tuple[float, str]] = []
        peers_gbs = None
        middle = self._median(node, top, "speed", lambda summary: math.log(summary.best_gbs))
        if middle is not None:
            peers_gbs = math.exp(middle)
            share = self._share(node, top, middle)
            bounds.append((peers_gbs * share, f"{share:.2g} of the peers' median"))
        if expectation.intra_node_min_gbs is not None:
            origin = expectation.origin or "the inventory"
            bounds.append((expectation.intra_node_min_gbs, f"expected by {origin}"))
        elif node.backend == "nccl":
            floor = gpu_floor(expectation, "all_reduce", algorithm="ring")
            if floor is not None and top >= floor.from_bytes:
                bounds.append((floor.value, floor.origin))
        bounds.append((limit("inside_floor_gbs"), f"shipped floor for {node.backend}"))
        gbs, origin = max(bounds)
        return Bound(gbs, origin, peers_gbs, peers_are=INDEPENDENT), 0

    def latency_us(self, node: NodeAllreduce) -> float | None:
        """Return the peers' median at the node's smallest size; None if there are too few."""
        return self._median(node, node.sizes[0].size_bytes, "time", lambda summary: summary.p50_us)

    def worst_events(self, node: NodeAllreduce) -> Events | None:
        """Return the events of the worst peer; None if there are too few."""
        if self.count(node) < MIN_PEERS:
            return None
        return next(peer.events for peer in self._worst if peer.name != node.name)

    def usual_way(self, node: NodeAllreduce) -> str:
        """What carries the data of most peers; "" if no majority does the same."""
        ways = (self._ways - Counter([node.net])).most_common(1)
        return ways[0][0] if ways and ways[0][1] * 2 > self.count(node) >= MIN_PEERS else ""

    def _share(self, node: NodeAllreduce, size_bytes: int, middle: float) -> float:
        """Return the share of the peers' median that is still good: within scatter and effect."""
        limit = self.limit.for_backend(node.backend)
        mad = self._median(
            node, size_bytes, middle, lambda summary: abs(math.log(summary.best_gbs) - middle)
        )
        assert mad is not None
        return healthy_share(mad, effect=limit("slow_effect"), scatter=limit("inside_scatter"))

    def _median(
        self,
        node: NodeAllreduce,
        size_bytes: int,
        what: str | float,
        value: Callable[[SizeSummary], float],
    ) -> float | None:
        """Return the median of the others' values at a size; None if there are too few.

        `what` names the value: the nodes are sorted by it once.
        """
        summaries = self._summaries[size_bytes]
        if len(summaries) <= MIN_PEERS:
            return None
        key = size_bytes, what
        if key not in self._ranked:
            self._ranked[key] = LeaveOut((value(summary), [name]) for name, summary in summaries)
        return self._ranked[key].median([node.name])


_LEAST_EVENTS, _TIMES_PEERS = 4, 4
"""Events are a fault if there are at least so many, and they cost so many times the worst peer."""

_STARVED = 0.5
"""With gloo, if waiting for a CPU explains so much of it, what carries the data is not at fault."""

_NVLINK_FROM = 64 << 20


_AWAITED_RAIL = re.compile(r"^rail (\d{1,4}) of this node did not come").match
NEVER = "it never reported"
_STOPPED = "stopped by a signal"  # as its supervisor says


def judge_inside(
    sweep: Sweep, hosts: Sequence[Host], limit: Thresholds = SHIPPED
) -> dict[str, Inside]:
    """Judge every node of the fleet, by name; those that were not measured get the reason."""
    samples = {inside.node: inside for inside in sweep.inside}
    results = {name: measure_inside(inside, limit) for name, inside in samples.items()}
    fleet = {host.name: host for host in hosts}
    by_group = grouped(
        ((fleet[name].group, node.rails), node)
        for name, node in results.items()
        if name in fleet and node.state == "measured"
    )
    peers = {key: PeerNodes(nodes, limit) for key, nodes in by_group.items()}
    judgements: dict[str, Inside] = {}
    for name, host in fleet.items():
        judgement = _unmeasured(name, samples.get(name), sweep)
        if judgement is None:
            node = results[name]
            peer_nodes = peers.get((host.group, node.rails)) or PeerNodes((), limit)
            short = name in sweep.short
            judgement = _judge_node(node, samples[name], peer_nodes, host, short=short)
        judgements[name] = replace(judgement, lacks=sweep.short.get(name, ""))
    return judgements


def judge_by_nvlink(inside: Inside, gpus: Sequence[Gpu], share: float) -> Inside:
    """Blame a node whose GPUs NVLinks join, according to NVML, if they did not carry the data.

    It needs no peer, and nothing in the inventory: PCIe and host memory are far below what NVLinks
    carry. `share`: the least expected share of that.
    """
    linked = nvlink_gbs(gpus, inside.rails)
    shortfall = below_nvlinks(inside.best_gbs, inside.at_bytes, linked, share)
    if inside.backend != "nccl" or inside.why or not shortfall:
        return inside
    way = f", carried by {inside.way}" if inside.way else ""
    reached = f"{gbs(inside.best_gbs or 0.0)} at best at {size(inside.at_bytes)}"
    why = f"{reached} among {inside.rails} GPUs{way}; {shortfall}"
    return replace(inside, why=why, advice=ADVICE["inside"]["no_nvlink"])


def below_nvlinks(
    best_gbs: float | None, at_bytes: int, linked_gbs: float | None, share: float
) -> str:
    """Say what GPUs with NVLinks should have reached; "" if they did, or it is not known."""
    if best_gbs is None or at_bytes < _NVLINK_FROM or not (share and linked_gbs):
        return ""
    least = share * linked_gbs
    words = f"their NVLinks carry {gbs(linked_gbs)} each way, and at least {gbs(least)} is expected"
    return words if best_gbs < least else ""


def _unmeasured(name: str, samples: InsideSamples | None, sweep: Sweep) -> Inside | None:
    """Say why there is nothing to judge; None if there is."""
    if samples is not None and all(end is not None for end in samples.rails):
        return None
    rails = len(samples.rails) if samples is not None else 0
    if name in sweep.troubles:
        why = f"{name} fell out of the sweep: {sweep.troubles[name]}"
        return Inside(state="trouble", rails=rails, reason=why, advice=sweep.advice.get(name, ""))
    if name in sweep.left_out:
        return Inside(state="not_run", rails=rails, reason=sweep.left_out[name])
    if why := sweep.waited.get(name) or sweep.unfinished:
        return Inside(state="not_run", rails=rails, reason=why, stopped=True)
    return Inside(state="one_rail") if samples is None else None


def _judge_node(
    node: NodeAllreduce, samples: InsideSamples, peers: PeerNodes, host: Host, *, short: bool
) -> Inside:
    """Judge one node; a `short` one only by failures: limits are for nodes with all rails."""
    base = Inside(state=node.state, rails=node.rails, backend=node.backend, peers=peers.count(node))
    if node.state == "not_run":
        why = next(end.error for end in samples.rails if end and end.state == "not_run")
        return replace(base, reason=why)
    if node.state != "measured":
        return _judge_failure(base, node, samples)
    top = node.sizes[-1]
    bound, further = (Bound(), 0) if short else peers.bound(node, host.expected)
    compared = replace(
        base,
        at_bytes=top.size_bytes,
        busbw_gbs=top.busbw_gbs,
        best_gbs=top.best_gbs,
        limit_gbs=bound.gbs,
        limit_origin=bound.origin,
        peers_gbs=bound.peers_gbs,
        latency_us=node.sizes[0].p50_us,
        way=node.net,
    )
    if short:
        return compared
    why = _bandwidth_words(node, bound, further) or _latency_words(node, peers)
    if why:
        advice = ADVICE["inside"]["slow"].format(node.name)
        return replace(compared, why=why + _way_words(node, peers), advice=advice)
    return _judge_events(compared, node, peers)


def _judge_failure(base: Inside, node: NodeAllreduce, samples: InsideSamples) -> Inside:
    """Judge a node without a result: blame the rail that reports its own fault, else the node."""
    errors = {
        rail: NEVER if end is None else end.error
        for rail, end in samples.numbered.items()
        if end is None or end.state != "measured"
    }
    at_fault = _rails_at_fault(errors, node.state)
    first = next((rail for rail in at_fault if rail in errors), next(iter(errors)))
    if node.state == "corrupt":
        what, advice = "sums came out wrong", ADVICE["inside"]["corrupt"]
    else:
        remedy = advice_on(node.name, errors[first]) if at_fault else ""
        advice = remedy or ADVICE["inside"]["stuck"]
        verb = STATES["error" if remedy else node.state]["inside"]
        what = f"the all-reduce among its {node.rails} rails {verb}"
    rails = at_fault if len(at_fault) < node.rails else []
    where = f" on {_rails(rails, node.backend)} of {node.name}" if rails else ""
    reason = f"{_rails([first], node.backend)}: {errors[first]}"
    return replace(
        base, reason=reason, why=f"{what}{where} ({reason})", advice=advice.format(node.name)
    )


def _rails_at_fault(errors: Mapping[int, str], state: str) -> list[int]:
    """Return the rails at fault by all rails' errors, the surest sign first; none if unknown."""
    if state == "corrupt":
        return [rail for rail, error in errors.items() if "WRONG" in error] or list(errors)
    for words in (NEVER, *OWN_CAUSES, _STOPPED, STOOD_STILL):
        if rails := [rail for rail, error in errors.items() if words in error]:
            return rails
    failed = [rail for rail, error in errors.items() if _failed_itself(error)]
    return failed or sorted({int(m[1]) for error in errors.values() if (m := _AWAITED_RAIL(error))})


def _failed_itself(error: str) -> bool:
    """Whether NCCL failed on this GPU, and not because another one had left (ncclRemoteError)."""
    return "NCCL version" in error and "remote process exited" not in error


def _bandwidth_words(node: NodeAllreduce, bound: Bound, further: int) -> str:
    """Judge a node's fastest operation: a slow link slows all, a busy machine only some."""
    top = node.sizes[-1]
    if further:
        reached, peers_reached = size(top.size_bytes), size(further)
        return f"only {reached} of the {peers_reached} that its peers came to, in the time for it"
    if bound.gbs is None or top.best_gbs >= bound.gbs:
        return ""
    reached = f"median {gbs(top.busbw_gbs)} at {size(top.size_bytes)}"
    return f"{reached} among its {node.rails} rails; {bound.words}"


def _latency_words(node: NodeAllreduce, peers: PeerNodes) -> str:
    least, usual_us = node.sizes[0], peers.latency_us(node)
    limit_us = latency_limit_us(peers.limit.for_backend(node.backend), usual_us)
    if least.size_bytes >= LATENCY_BELOW or limit_us is None or least.p50_us <= limit_us:
        return ""
    return (
        f"{time_us(least.p50_us)} at {size(least.size_bytes)} among its {node.rails} rails; peers' "
        f"median {time_us(usual_us or 0.0)}, limit {time_us(limit_us)}"
    )


def _way_words(node: NodeAllreduce, peers: PeerNodes) -> str:
    """Say what carried a node's data and that of its peers; "" if it was the same."""
    usual = peers.usual_way(node) or node.net
    return f"; carried by {node.net}, at its peers by {usual}" if node.net != usual else ""


def _judge_events(compared: Inside, node: NodeAllreduce, peers: PeerNodes) -> Inside:
    """Compare a node's events with the worst peer's: all machines have some."""
    events, usual = node.events, peers.worst_events(node)
    if usual is None or events.count < _LEAST_EVENTS:
        return compared
    starved = node.backend == "gloo" and node.cpu_wait_us >= _STARVED * events.lost_us
    if starved or events.lost_us <= _TIMES_PEERS * usual.lost_us:
        return compared
    rail = events.rail
    worst = time_us(events.worst_us)
    if rail is None:
        why = f"operations among the rails of {node.name} took up to {worst}"
    else:
        late_rail = _rails([rail], node.backend)
        why = f"{late_rail} of {node.name} kept the others waiting, up to {worst}, by its own clock"
    return replace(
        compared,
        why=f"{why}; at the worst of its {peers.count(node)} peers {_event_words(usual)}",
        advice=ADVICE["inside"]["events"].format(node.name),
        events=events.count,
        operations=events.operations,
    )


def _event_words(events: Events) -> str:
    if not events.count:
        return "none"
    return f"{events.count} of {events.operations}, up to {time_us(events.worst_us)}"


def _rails(rails: Sequence[int], backend: str) -> str:
    word = "GPU" if backend == "nccl" else "rail"
    return f"{word}{'s' * (len(rails) > 1)} {', '.join(map(str, rails))}"
