"""Judges every node's burn-in for its checks: compares what it measured with all the others."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.burn.units import (
    Names,
    Population,
    SpeedLimit,
    effect_of,
    floor,
    found_floor,
    key_of,
    own_nights,
    speed,
    strictest,
    throttle,
    under_load,
    units,
)
from preflight.core.statistics import grouped, median
from preflight.core.text import count
from preflight.core.thresholds import Thresholds, describe_override
from preflight.facts.burn import Burn, Flaw, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from preflight.burn.units import Raw
    from preflight.facts.burn import Burned, BurnState, Held, Proof, Throttle
    from preflight.facts.model import Facts
    from preflight.fleet.model import Host

    Past = Callable[[Raw], Sequence[float]]
    """Returns the results of a series in earlier nights."""


_LEAST_WINDOWS = 8
_LEAST_BAD, _BAD_SHARE, _TIMES_PEERS = 2, 0.2, 4
"""A unit is flaky with this many bad samples, this share of them, and this multiple of its peers'
share."""


def compare_units(
    raws: Iterable[Raw], hosts: Mapping[str, Host], past: Past
) -> dict[str, list[Unit]]:
    """Judge all units of a fleet, by node. `hosts` have the group and what the inventory expects.

    A limit that the inventory sets for a group replaces the shipped one.
    """
    classes: dict[tuple[str, ...], dict[str, list[Raw]]] = {}
    for raw in raws:
        in_common = hosts[raw.node].group, raw.kind, raw.measure, raw.alike
        classes.setdefault(in_common, {}).setdefault(raw.node, []).append(raw)
    found: dict[str, list[Unit]] = {}
    for by_node in classes.values():
        limit = Thresholds(hosts[next(iter(by_node))].expected.limits)
        judged = _compare_class(by_node, hosts, past, limit)
        overrides = "".join(f"; {describe_override(name, one)}" for name, one in limit.used.items())
        for node, unit in judged:
            whole = replace(unit, limit_origin=unit.limit_origin + overrides)
            found.setdefault(node, []).append(whole)
    return found


def _compare_class(
    by_node: Mapping[str, list[Raw]], hosts: Mapping[str, Host], past: Past, limit: Thresholds
) -> list[tuple[str, Unit]]:
    like = next(iter(by_node.values()))[0]
    population = Population(
        {n: [one.speed for one in own] for n, own in by_node.items()},
        effect=effect_of(like, limit),
        scatter=limit(f"{like.kind}.scatter"),
    )
    rows = []
    for node, own in by_node.items():
        for place, raw in enumerate(own):
            known = (
                population.here(node, place),
                population.away(node),
                floor(raw, hosts[node].expected, limit),
            )
            # Peers and floors first; the unit's own past only where there are neither.
            alone = known == (None, None, None)
            nights = own_nights(raw, past(raw), limit) if alone else None
            model = found_floor(raw, hosts[node].expected) if alone else None
            rows.append((raw, strictest((*known, _own_start(raw, limit), nights, model))))
    usual = median([_bad(raw, bound) / len(raw.values) for raw, bound in rows])
    return [(raw.node, _unit(raw, bound, usual, limit)) for raw, bound in rows]


def _own_start(raw: Raw, limit: Thresholds) -> SpeedLimit | None:
    """The bound by its own first quarter: a load that slows down shows without peers."""
    samples = raw.reading.samples
    if raw.measure != "sustained_tflops" or len(samples) < _LEAST_WINDOWS:
        return None
    share = 1 - limit(f"{raw.kind}.droop")
    return SpeedLimit(
        median(samples[: len(samples) // 4]) * share, f"{share:.2g} of its own first quarter"
    )


def _bad(raw: Raw, bound: SpeedLimit | None) -> int:
    if bound is None:
        return 0
    return sum(speed(raw.measure, value) < bound.speed for value in raw.values)


def _unit(raw: Raw, bound: SpeedLimit | None, usual: float, limit: Thresholds) -> Unit:
    bad = _bad(raw, bound)
    return Unit(
        name=raw.name,
        measure=raw.measure,
        best=raw.best,
        typical=median(raw.values),
        samples=len(raw.values),
        held=_grade(raw, bound, bad, usual, limit),
        limit=None if bound is None else speed(raw.measure, bound.speed),
        limit_origin="" if bound is None else bound.origin,
        peers=None if bound is None or bound.peers is None else speed(raw.measure, bound.peers),
        bad=bad,
        waited=raw.reading.waited,
        cause=raw.cause,
        remark=raw.remark,
    )


def _grade(raw: Raw, bound: SpeedLimit | None, bad: int, usual: float, limit: Thresholds) -> Held:
    if bound is None:
        return "unheld"
    if raw.speed < bound.speed:
        waited = raw.reading.waited >= limit(f"{raw.kind}.starved")
        return "starved" if raw.excusable and waited else "slow"
    share = bad / len(raw.values)
    often = bad >= _LEAST_BAD and share >= max(_BAD_SHARE, _TIMES_PEERS * usual)
    return "flaky" if often and not raw.excusable else "ok"


_Same = tuple[str, str, str]
"""What proofs must share to be equal: kind, size, model."""

_WHAT = {
    "product": "an exact product came out wrong",
    "memory": "its memory did not keep what was written",
    "load": "a product under load came out different",
    "p2p": "what arrived was not what was sent",
}


def majorities(fleet: Mapping[str, Burned]) -> dict[_Same, str]:
    """The digest that most devices of one model reached in a fleet, by kind of proof and size.

    Exact results are equal on every device. Without a majority no device deviates.
    """
    votes: dict[_Same, Counter[str]] = {}
    for burned in fleet.values():
        names = Names(burned, None)
        for proof in burned.proofs:
            if proof.digest and not proof.wrong:
                votes.setdefault(_same(proof, names), Counter())[proof.digest] += 1
    return {
        key: ranked[0][0]
        for key, counter in votes.items()
        if (ranked := counter.most_common(1)) and 1 < ranked[0][1] > counter.total() / 2
    }


def wrong(burned: Burned, facts: Facts | None, usual: Mapping[_Same, str]) -> Iterator[Flaw]:
    """Yield a flaw for each wrong proof of each device of one node."""
    names = Names(burned, facts)
    for proof in burned.proofs:
        problem = _wrong(proof) or _odd(proof, usual.get(_same(proof, names), ""))
        if problem:
            cause = names.of(proof.device) if proof.to is None else ""
            yield Flaw(name=names.of(proof.device, proof.to), what=problem, cause=cause)


def _same(proof: Proof, names: Names) -> _Same:
    return proof.what, proof.size, names.model(proof.device)


def _wrong(proof: Proof) -> str:
    if not proof.wrong:
        return ""
    of = f"{proof.wrong} of {proof.rounds} times"
    if proof.what == "memory":
        of = f"{proof.wrong} words in {proof.rounds} passes over {proof.size}"
    return f"{_WHAT[proof.what]} ({of}; {proof.first})"


def _odd(proof: Proof, usual: str) -> str:
    if not usual or not proof.digest or proof.digest == usual:
        return ""
    return (
        f"{_WHAT[proof.what]}, the same each time: digest {proof.digest}, most devices have {usual}"
    )


_TORCH = "give preflight the job's own Python (--preflight-python), with a torch built for CUDA"
_DID = {"hung": "hung", "died": "died", "error": "failed", "held": "was not available"}
_IN = {
    "open": "coming up",
    "gemm": "the GEMM",
    "memory": "the memory copy",
    "integrity": "the integrity proofs",
    "launch": "launching kernels",
    "sustained": "the sustained load",
    "pcie": "the copies from and to the host",
    "p2p": "the copy",
}


def judge_burn(
    fleet: Mapping[str, Burned],
    hosts: Sequence[Host],
    facts: Mapping[str, Facts],
    units_past: Mapping[str, Sequence[float]] | None = None,
) -> dict[str, Burn]:
    """Judge every node of the burn-in, by name.

    `units_past`: earlier nights' results of devices without peers (`units.key_of`).
    """
    by_name = {host.name: host for host in hosts}
    earlier = units_past or {}

    def past(raw: Raw) -> Sequence[float]:
        return earlier.get(key_of(raw, fleet[raw.node], facts.get(raw.node)), ()) if earlier else ()

    raws = [
        raw
        for name, one in fleet.items()
        if name in by_name
        for raw in units(name, one, facts.get(name))
    ]
    judged = compare_units(raws, by_name, past)
    usual = majorities(fleet)
    return {
        name: _judge_node(one, facts.get(name), judged.get(name, ()), usual, by_name[name])
        for name, one in fleet.items()
        if name in by_name
    }


def _judge_node(
    burned: Burned,
    facts: Facts | None,
    judged: Sequence[Unit],
    usual: Mapping[_Same, str],
    host: Host,
) -> Burn:
    if burned.left_out:
        return Burn(state="not_run", reason=burned.left_out)
    # Where preflight's own time was up, the node is not at fault.
    unfinished: BurnState = "not_run" if burned.stopped else "trouble"
    why, advice, stopped = burned.trouble, burned.advice, burned.stopped
    if burned.ready is None:
        return Burn(state=unfinished, reason=why, advice=advice, stopped=stopped)
    gpus = host.expected.gpus or (len(facts.gpus or ()) if facts is not None else 0)
    if burned.ready.kind == "cpu" and gpus:
        reason = f"torch {burned.ready.torch} in its Python sees 0 of {count(gpus, 'GPU')}"
        return Burn(state="no_cuda", reason=reason, advice=_TORCH)
    names = Names(burned, facts)
    return Burn(
        state="measured" if burned.done else unfinished,
        kind=burned.ready.kind,
        devices=burned.ready.devices,
        unseen=max(0, gpus - burned.ready.devices) if burned.ready.kind == "cuda" else 0,
        unplaced=sum(not one.bus_id for one in burned.opened if burned.ready.kind == "cuda"),
        reason="" if burned.done else why,
        advice=advice,
        stopped=stopped,
        units=tuple(judged),
        lost=tuple(_failures(burned, names)),
        wrong=tuple(wrong(burned, facts, usual)),
        proofs=sum(one.rounds for one in burned.proofs),
        proven=_count_proven(burned),
        throttled=_throttles(burned, names, host),
        clocks=sum(bool(under_load(one)) for one in burned.clocks),
        nic_absent=next((one.error for one in burned.absent if one.what == "nic"), ""),
        nics_no_time=tuple(name for one in burned.no_time for name in one.names),
        troubles=tuple(f"{one.what} {one.error}" for one in burned.troubles),
        seconds=burned.seconds,
    )


def _failures(burned: Burned, names: Names) -> Iterator[Flaw]:
    for one in burned.lost:
        what = f"{_DID[one.how]} in {_IN[one.phase]}: {one.error}"
        name, cause = names.of(one.device, one.to), names.of(one.device) if one.to is None else ""
        held = one.how == "held"
        yield Flaw(name=name, what=what, cause=cause, starved=one.starved, held=held)


def _count_proven(burned: Burned) -> int:
    """Count the devices that reported both proofs, right or wrong."""
    proven = grouped((one.what, one.device) for one in burned.proofs)
    return len({*proven.get("product", ())} & {*proven.get("memory", ())})


def _throttles(burned: Burned, names: Names, host: Host) -> tuple[Throttle, ...]:
    limit = Thresholds(host.expected.limits)
    found = [throttle(names.of(one.device), one, limit) for one in burned.clocks]
    return tuple(one for one in found if one is not None)
