"""Judges every node's burn-in: compares its units with those of the other nodes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.burn.units import (
    Names,
    Population,
    SpeedLimit,
    effect_of,
    find_throttle,
    history_key,
    history_limit,
    inventory_floor,
    looks_under_load,
    model_floor,
    series_of_node,
    speed,
)
from preflight.core.files import shipped_table
from preflight.core.statistics import grouped, median
from preflight.core.text import count
from preflight.core.thresholds import Thresholds, describe_override
from preflight.facts.burn import Burn, Burned, BurnState, Flaw, Held, Proof, Throttle, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from preflight.burn.units import RawSeries
    from preflight.facts.model import Facts
    from preflight.fleet.model import Host

    Past = Callable[[RawSeries], Sequence[float]]
    """Returns the results of a series in earlier nights."""


_TORCH = "give preflight the job's own Python (--preflight-python), with a torch built for CUDA"


def judge_burn(
    fleet: Mapping[str, Burned],
    hosts: Sequence[Host],
    facts: Mapping[str, Facts],
    units_past: Mapping[str, Sequence[float]] | None = None,
) -> dict[str, Burn]:
    """Judge every node of the burn-in, by name.

    `units_past`: earlier nights' results of devices without peers, by `units.history_key`.
    """
    by_name = {host.name: host for host in hosts}

    def earlier(raw: RawSeries) -> Sequence[float]:
        return (units_past or {}).get(history_key(raw, fleet[raw.node], facts.get(raw.node)), ())

    raws = [
        raw
        for name, burned in fleet.items()
        if name in by_name
        for raw in series_of_node(name, burned, facts.get(name))
    ]
    judged = compare_units(raws, by_name, earlier)
    digests = majority_digests(fleet)
    return {
        name: _judge_node(burned, facts.get(name), judged.get(name, ()), digests, by_name[name])
        for name, burned in fleet.items()
        if name in by_name
    }


def _judge_node(
    burned: Burned,
    facts: Facts | None,
    judged: Sequence[Unit],
    digests: Mapping[_ProofKey, str],
    host: Host,
) -> Burn:
    if burned.left_out:
        return Burn(state="not_run", reason=burned.left_out)
    # Where preflight's own time was up, the node is not at fault.
    unfinished: BurnState = "not_run" if burned.stopped else "trouble"
    base = Burn(state=unfinished, advice=burned.advice, stopped=burned.stopped)
    if burned.ready is None:
        return replace(base, reason=burned.trouble)
    gpus = host.expected.gpus or (len(facts.gpus or ()) if facts is not None else 0)
    if burned.ready.kind == "cpu" and gpus:
        reason = f"torch {burned.ready.torch} in its Python sees 0 of {count(gpus, 'GPU')}"
        return Burn(state="no_cuda", reason=reason, advice=_TORCH)
    names, on_gpus = Names(burned, facts), burned.ready.kind == "cuda"
    return replace(
        base,
        state="measured" if burned.done else unfinished,
        kind=burned.ready.kind,
        devices=burned.ready.devices,
        unseen=max(0, gpus - burned.ready.devices) if on_gpus else 0,
        unplaced=sum(not device.bus_id for device in burned.opened) if on_gpus else 0,
        reason="" if burned.done else burned.trouble,
        units=tuple(judged),
        lost=tuple(_failures(burned, names)),
        wrong=tuple(_wrong_proofs(burned, names, digests)),
        proofs=sum(proof.rounds for proof in burned.proofs),
        proven=_count_proven(burned),
        throttled=_throttles(burned, names, host),
        clocks=sum(bool(looks_under_load(clocks)) for clocks in burned.clocks),
        nic_absent=next((part.error for part in burned.absent if part.what == "nic"), ""),
        nics_no_time=tuple(name for part in burned.no_time for name in part.names),
        troubles=tuple(f"{trouble.what} {trouble.error}" for trouble in burned.troubles),
        seconds=burned.seconds,
    )


def _failures(burned: Burned, names: Names) -> Iterator[Flaw]:
    for loss in burned.lost:
        problem = f"{_WORDS['end'][loss.how]} in {_WORDS['phase'][loss.phase]}: {loss.error}"
        name = names.of(loss.device, loss.to)
        cause = names.of(loss.device) if loss.to is None else ""
        used_by_others = loss.how == "held"
        yield Flaw(name=name, what=problem, cause=cause, starved=loss.starved, held=used_by_others)


def _count_proven(burned: Burned) -> int:
    """Count the devices that reported both proofs, right or wrong."""
    proven = grouped((proof.what, proof.device) for proof in burned.proofs)
    return len({*proven.get("product", ())} & {*proven.get("memory", ())})


def _throttles(burned: Burned, names: Names, host: Host) -> tuple[Throttle, ...]:
    limit = Thresholds(host.expected.limits)
    throttles = [find_throttle(names.of(clocks.device), clocks, limit) for clocks in burned.clocks]
    return tuple(row for row in throttles if row is not None)


_LEAST_WINDOWS = 8
"""A sustained load with fewer samples than this is not compared with its own first quarter."""

# A unit is flaky if all three hold for its slow samples.
_LEAST_SLOW = 2
_LEAST_SLOW_SHARE = 0.2
_LEAST_TIMES_PEERS_SHARE = 4


def compare_units(
    raws: Iterable[RawSeries], hosts: Mapping[str, Host], earlier: Past
) -> dict[str, list[Unit]]:
    """Judge all units of a fleet, by node. `hosts` have the group and what the inventory expects.

    A limit that the inventory sets for a group replaces the shipped one.
    """
    peer_groups: dict[tuple[str, ...], dict[str, list[RawSeries]]] = {}
    for raw in raws:
        key = hosts[raw.node].group, raw.kind, raw.measure, raw.peer_key
        peer_groups.setdefault(key, {}).setdefault(raw.node, []).append(raw)
    by_node: dict[str, list[Unit]] = {}
    for peers_by_node in peer_groups.values():
        limit = Thresholds(hosts[next(iter(peers_by_node))].expected.limits)
        judged = _compare_peers(peers_by_node, hosts, earlier, limit)
        overrides = "".join(
            f"; {describe_override(name, override)}" for name, override in limit.used.items()
        )
        for node, unit in judged:
            with_origin = replace(unit, limit_origin=unit.limit_origin + overrides)
            by_node.setdefault(node, []).append(with_origin)
    return by_node


def _compare_peers(
    peers: Mapping[str, list[RawSeries]],
    hosts: Mapping[str, Host],
    earlier: Past,
    limit: Thresholds,
) -> list[tuple[str, Unit]]:
    any_peer = next(iter(peers.values()))[0]
    population = Population(
        {node: [raw.speed for raw in raws] for node, raws in peers.items()},
        effect=effect_of(any_peer, limit),
        scatter=limit(f"{any_peer.kind}.scatter"),
    )
    rows = []
    for node, raws in peers.items():
        for index, raw in enumerate(raws):
            limits = [
                population.limit_by_same_node(node, index),
                population.limit_by_other_nodes(node),
                inventory_floor(raw, hosts[node].expected, limit),
            ]
            own_start = _own_start_limit(raw, limit)
            if not any(limits):
                past = history_limit(raw, earlier(raw), limit)
                limits = [own_start, past, model_floor(raw, hosts[node].expected)]
            known = [bound for bound in (*limits, own_start) if bound is not None]
            rows.append((raw, max(known, key=lambda bound: bound.speed, default=None)))
    slow_share = median([_count_slow_samples(raw, bound) / len(raw.values) for raw, bound in rows])
    return [(raw.node, _unit(raw, bound, slow_share, limit)) for raw, bound in rows]


def _own_start_limit(raw: RawSeries, limit: Thresholds) -> SpeedLimit | None:
    """The limit by the load's own first quarter: a load that slows down shows without peers."""
    samples = raw.reading.samples
    if raw.measure != "sustained_tflops" or len(samples) < _LEAST_WINDOWS:
        return None
    share = 1 - limit(f"{raw.kind}.droop")
    return SpeedLimit(
        median(samples[: len(samples) // 4]) * share, f"{share:.2g} of its own first quarter"
    )


def _count_slow_samples(raw: RawSeries, bound: SpeedLimit | None) -> int:
    if bound is None:
        return 0
    return sum(speed(raw.measure, value) < bound.speed for value in raw.values)


def _unit(raw: RawSeries, bound: SpeedLimit | None, peers_share: float, limit: Thresholds) -> Unit:
    slow = _count_slow_samples(raw, bound)
    return Unit(
        name=raw.name,
        measure=raw.measure,
        best=raw.best,
        typical=median(raw.values),
        samples=len(raw.values),
        held=_grade(raw, bound, slow, peers_share, limit),
        limit=None if bound is None else speed(raw.measure, bound.speed),
        limit_origin="" if bound is None else bound.origin,
        peers=None if bound is None or bound.peers is None else speed(raw.measure, bound.peers),
        bad=slow,
        waited=raw.reading.waited,
        cause=raw.cause,
        remark=raw.remark,
    )


def _grade(
    raw: RawSeries, bound: SpeedLimit | None, slow: int, peers_share: float, limit: Thresholds
) -> Held:
    if bound is None:
        return "unheld"
    if raw.speed < bound.speed:
        waited = raw.reading.waited >= limit(f"{raw.kind}.starved")
        return "starved" if raw.excusable and waited else "slow"
    least_share = max(_LEAST_SLOW_SHARE, _LEAST_TIMES_PEERS_SHARE * peers_share)
    often = slow >= _LEAST_SLOW and slow / len(raw.values) >= least_share
    return "flaky" if often and not raw.excusable else "ok"


_ProofKey = tuple[str, str, str]
"""What proofs must share to be equal: kind, size, model."""

_WORDS: dict[str, dict[str, str]] = shipped_table(__file__, "words.toml")


def majority_digests(fleet: Mapping[str, Burned]) -> dict[_ProofKey, str]:
    """The digest that most devices of one model reached in a fleet, by kind of proof and size.

    Exact results are equal on every device. Without a majority no device deviates.
    """
    votes: dict[_ProofKey, Counter[str]] = {}
    for burned in fleet.values():
        names = Names(burned, None)
        for proof in burned.proofs:
            if proof.digest and not proof.wrong:
                votes.setdefault(_proof_key(proof, names), Counter())[proof.digest] += 1
    ranked = {key: counter.most_common(1)[0] for key, counter in votes.items()}
    return {
        key: digest
        for key, (digest, holders) in ranked.items()
        if holders > 1 and holders > votes[key].total() / 2
    }


def _wrong_proofs(burned: Burned, names: Names, digests: Mapping[_ProofKey, str]) -> Iterator[Flaw]:
    """Yield a flaw for each wrong proof of each device of one node."""
    for proof in burned.proofs:
        if problem := _problem(proof, digests.get(_proof_key(proof, names), "")):
            cause = names.of(proof.device) if proof.to is None else ""
            yield Flaw(name=names.of(proof.device, proof.to), what=problem, cause=cause)


def _proof_key(proof: Proof, names: Names) -> _ProofKey:
    return proof.what, proof.size, names.model(proof.device)


def _problem(proof: Proof, majority: str) -> str:
    """Say that a result was wrong, or that most devices have another digest; "" if neither."""
    what = _WORDS["proof"][proof.what]
    if proof.wrong:
        extent = f"{proof.wrong} of {proof.rounds} times"
        if proof.what == "memory":
            extent = f"{proof.wrong} words in {proof.rounds} passes over {proof.size}"
        return f"{what} ({extent}; {proof.first})"
    if proof.digest in ("", majority) or not majority:
        return ""
    digests = f"digest {proof.digest}, most devices have {majority}"
    return f"{what}, the same each time: {digests}"
