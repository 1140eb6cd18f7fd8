"""Judges every node's burn-in for its checks: compares what it measured with all the others."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from preflight.burn.units import (
    Bound,
    Names,
    Population,
    clock_remark,
    earlier_of,
    effect_of,
    floor,
    own_nights,
    speed,
    strictest,
    throttle,
    under_load,
    units,
)
from preflight.core.statistics import median
from preflight.core.thresholds import Thresholds, describe_override
from preflight.facts.burn import Burn, Flaw, Unit
from preflight.facts.words import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from preflight.burn.units import Raw
    from preflight.facts.burn import Burned, BurnState, Clocks, Held, Proof, Throttle
    from preflight.facts.model import Facts
    from preflight.fleet.model import Host

    Earlier = Mapping[tuple[str, str, str], Sequence[float]]
    """A unit's results in earlier nights, by node, measure and name."""


_LEAST_WINDOWS = 8
_LEAST_BAD, _BAD_SHARE, _TIMES_PEERS = 2, 0.2, 4
"""A unit is flaky with this many bad samples, this share of them, and this multiple of its peers'
share."""


class _UnitClass(NamedTuple):
    """What units must have in common to be compared."""

    group: str
    kind: str
    measure: str
    alike: str


def compare_units(
    raws: Iterable[Raw], hosts: Mapping[str, Host], earlier: Earlier | None = None
) -> dict[str, list[tuple[Raw, Unit]]]:
    """Judge all units of a fleet, by node. `hosts` have the group and what the inventory expects.

    A limit that the inventory sets for a group replaces the shipped one.
    """
    classes: dict[_UnitClass, dict[str, list[Raw]]] = {}
    for raw in raws:
        unit_class = _UnitClass(hosts[raw.node].group, raw.kind, raw.measure, raw.alike)
        classes.setdefault(unit_class, {}).setdefault(raw.node, []).append(raw)
    found: dict[str, list[tuple[Raw, Unit]]] = {}
    for by_node in classes.values():
        expectation = hosts[next(iter(by_node))].expected
        limit = Thresholds(expectation.limits)
        judged = _compare_class(by_node, hosts, earlier or {}, limit)
        overrides = "".join(f"; {describe_override(name, one)}" for name, one in limit.used.items())
        for raw, unit in judged:
            whole = replace(unit, limit_origin=unit.limit_origin + overrides)
            found.setdefault(raw.node, []).append((raw, whole))
    return found


def _compare_class(
    by_node: Mapping[str, list[Raw]],
    hosts: Mapping[str, Host],
    earlier: Earlier,
    limit: Thresholds,
) -> list[tuple[Raw, Unit]]:
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
            nights = earlier.get((node, raw.measure, raw.name), ())
            past = own_nights(raw, nights, limit) if known == (None, None, None) else None
            rows.append((raw, strictest((*known, _own_start(raw, limit), past))))
    usual = median([_bad(raw, bound) / len(raw.values) for raw, bound in rows])
    return [(raw, _unit(raw, bound, usual, limit)) for raw, bound in rows]


def _own_start(raw: Raw, limit: Thresholds) -> Bound | None:
    """The bound by its own first quarter: a load that slows down shows without peers."""
    samples = raw.reading.samples
    if raw.measure != "sustained_tflops" or len(samples) < _LEAST_WINDOWS:
        return None
    share = 1 - limit(f"{raw.kind}.droop")
    return Bound(
        median(samples[: len(samples) // 4]) * share, f"{share:.2g} of its own first quarter"
    )


def _bad(raw: Raw, bound: Bound | None) -> int:
    if bound is None:
        return 0
    return sum(speed(raw.measure, value) < bound.speed for value in raw.values)


def _unit(raw: Raw, bound: Bound | None, usual: float, limit: Thresholds) -> Unit:
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
    )


def _grade(raw: Raw, bound: Bound | None, bad: int, usual: float, limit: Thresholds) -> Held:
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
            name = names.of(proof.device)
            cause = name if proof.to is None else ""
            to = f" to {names.index(proof.to)}" if proof.to is not None else ""
            yield Flaw(name=name + to, what=problem, cause=cause)


def _same(proof: Proof, names: Names) -> _Same:
    return proof.what, proof.size, names.model(proof.device)


def _wrong(proof: Proof) -> str:
    if not proof.wrong:
        return ""
    of = (
        f"{proof.wrong} of {proof.rounds} times"
        if proof.what != "memory"
        else (f"{proof.wrong} words in {proof.rounds} passes over {proof.size}")
    )
    return f"{_WHAT[proof.what]} ({of}; {proof.first})"


def _odd(proof: Proof, usual: str) -> str:
    if not usual or not proof.digest or proof.digest == usual:
        return ""
    return (
        f"{_WHAT[proof.what]}, the same each time: digest {proof.digest}, most devices have {usual}"
    )


_TORCH = "give preflight the job's own Python (--preflight-python), with a torch built for CUDA"
_WARMED = ("gemm_tflops", "sustained_tflops", "memory_gbs")
"""Measures that clocks can explain."""

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
    raws = [
        raw
        for name, one in fleet.items()
        if name in by_name
        for raw in units(name, one, facts.get(name))
    ]
    judged = compare_units(raws, by_name, earlier_of(raws, fleet, facts, units_past or {}))
    usual = majorities(fleet)
    return {
        name: _judge_node(one, facts.get(name), judged.get(name, ()), usual, by_name[name])
        for name, one in fleet.items()
        if name in by_name
    }


def _judge_node(
    burned: Burned,
    facts: Facts | None,
    judged: Sequence[tuple[Raw, Unit]],
    usual: Mapping[tuple[str, str, str], str],
    host: Host,
) -> Burn:
    if burned.left_out:
        return Burn(state="not_run", reason=burned.left_out)
    if burned.ready is None:
        return _without(burned)
    gpus = host.expected.gpus or (len(facts.gpus or ()) if facts is not None else 0)
    if burned.ready.kind == "cpu" and gpus:
        reason = f"torch {burned.ready.torch} in its Python sees 0 of {count(gpus, 'GPU')}"
        return Burn(state="no_cuda", reason=reason, advice=_TORCH)
    names = Names(burned, facts)
    clocks = {one.device: one for one in burned.clocks}
    flaws = tuple(wrong(burned, facts, usual))
    return Burn(
        state="measured" if burned.done else _unfinished(burned),
        kind=burned.ready.kind,
        devices=burned.ready.devices,
        unseen=max(0, gpus - burned.ready.devices) if burned.ready.kind == "cuda" else 0,
        unplaced=sum(not one.bus_id for one in burned.opened if burned.ready.kind == "cuda"),
        reason="" if burned.done else burned.trouble,
        advice=burned.advice,
        stopped=burned.stopped,
        units=tuple(_with_cause(raw, unit, names, clocks) for raw, unit in judged),
        lost=tuple(_failures(burned, names)),
        wrong=flaws,
        proofs=sum(one.rounds for one in burned.proofs),
        proven=_count_proven(burned),
        throttled=_throttles(burned, names, host),
        clocks=sum(bool(under_load(one)) for one in burned.clocks),
        nic_absent=next((one.error for one in burned.absent if one.what == "nic"), ""),
        nics_no_time=tuple(name for one in burned.no_time for name in one.names),
        troubles=tuple(f"{one.what} {one.error}" for one in burned.troubles),
        seconds=burned.seconds,
    )


def _without(burned: Burned) -> Burn:
    """The result of a node whose burn-in never started."""
    return Burn(
        state=_unfinished(burned),
        reason=burned.trouble,
        advice=burned.advice,
        stopped=burned.stopped,
    )


def _unfinished(burned: Burned) -> BurnState:
    """`not_run` where preflight's own time was up; otherwise the node is at fault."""
    return "not_run" if burned.stopped else "trouble"


def _with_cause(raw: Raw, unit: Unit, names: Names, clocks: Mapping[int, Clocks]) -> Unit:
    """Add which device is at fault if the unit is slow, and its clocks."""
    if raw.device is None:
        return unit
    remark = ""
    if raw.kind == "cuda" and raw.measure in _WARMED:
        remark = clock_remark(clocks.get(raw.device))
    return replace(unit, cause=names.of(raw.device), remark=remark)


def _failures(burned: Burned, names: Names) -> Iterator[Flaw]:
    for one in burned.lost:
        name = names.of(one.device)
        to = f" to {names.index(one.to)}" if one.to is not None else ""
        what = f"{_DID[one.how]} in {_IN[one.phase]}: {one.error}"
        cause = name if one.to is None else ""
        held = one.how == "held"
        yield Flaw(name=name + to, what=what, cause=cause, starved=one.starved, held=held)


def _count_proven(burned: Burned) -> int:
    """Count the devices that reported both proofs, right or wrong."""
    proofs = {(one.device, one.what) for one in burned.proofs}
    devices = {device for device, _ in proofs}
    return sum((each, "product") in proofs and (each, "memory") in proofs for each in devices)


def _throttles(burned: Burned, names: Names, host: Host) -> tuple[Throttle, ...]:
    limit = Thresholds(host.expected.limits)
    found = [throttle(names.of(one.device), one, limit) for one in burned.clocks]
    return tuple(one for one in found if one is not None)
