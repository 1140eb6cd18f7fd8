"""Every node's burn-in as its checks see it: what was measured, held against all the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.burn import clocks as looked
from preflight.burn.held import hold
from preflight.burn.own_past import earlier_of
from preflight.burn.proofs import majorities, wrong
from preflight.burn.units import Names, units
from preflight.facts.burn import Burn, Flaw
from preflight.facts.words import count
from preflight.numbers import in_force

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight.burn.units import Raw
    from preflight.facts.burn import BurnState, Throttle, Unit
    from preflight.facts.burned import Burned, Clocks
    from preflight.facts.model import Facts
    from preflight.fleet.model import Host

_TORCH = "give preflight the job's own Python (--preflight-python), with a torch built for CUDA"
_WARMED = ("gemm_tflops", "sustained_tflops", "memory_gbs")
"""What clocks explain."""

_DID = {"hung": "hung", "died": "was lost", "error": "failed", "held": "was not to be had"}
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
    """Judge every node that was to be loaded, by name.

    `units_past`: what devices without peers reached on earlier nights (`own_past.key_of`).
    """
    by_name = {host.name: host for host in hosts}
    raws = [
        raw
        for name, one in fleet.items()
        if name in by_name
        for raw in units(name, one, facts.get(name))
    ]
    held = hold(raws, by_name, earlier_of(raws, fleet, facts, units_past or {}))
    usual = majorities(fleet)
    return {
        name: _judged(one, facts.get(name), held.get(name, ()), usual, by_name[name])
        for name, one in fleet.items()
        if name in by_name
    }


def _judged(
    burned: Burned,
    facts: Facts | None,
    held: Sequence[tuple[Raw, Unit]],
    usual: Mapping[tuple[str, str, str], str],
    host: Host,
) -> Burn:
    if burned.left_out:
        return Burn(state="not_run", reason=burned.left_out)
    if burned.ready is None:
        return _without(burned)
    gpus = host.promised.gpus or (len(facts.gpus or ()) if facts is not None else 0)
    if burned.ready.kind == "cpu" and gpus:
        said = f"torch {burned.ready.torch} in its Python sees none of {count(gpus, 'GPU')}"
        return Burn(state="no_cuda", reason=said, advice=_TORCH)
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
        units=tuple(_explained(raw, unit, names, clocks) for raw, unit in held),
        lost=tuple(_lost(burned, names)),
        wrong=flaws,
        proofs=sum(one.rounds for one in burned.proofs),
        proven=_proven(burned),
        throttled=_throttled(burned, names, host),
        clocks=sum(bool(looked.under_load(one)) for one in burned.clocks),
        nic_absent=next((one.error for one in burned.absent if one.what == "nic"), ""),
        nics_no_time=tuple(name for one in burned.no_time for name in one.names),
        troubles=tuple(f"{one.what} {one.error}" for one in burned.troubles),
        seconds=burned.seconds,
    )


def _without(burned: Burned) -> Burn:
    """It did not even come up."""
    return Burn(
        state=_unfinished(burned),
        reason=burned.trouble,
        advice=burned.advice,
        stopped=burned.stopped,
    )


def _unfinished(burned: Burned) -> BurnState:
    """Our own time was up, or the node is at fault."""
    return "not_run" if burned.stopped else "trouble"


def _explained(raw: Raw, unit: Unit, names: Names, clocks: Mapping[int, Clocks]) -> Unit:
    """Add whose fault a slow unit is, and what its clocks did."""
    if raw.device is None:
        return unit
    remark = ""
    if raw.kind == "cuda" and raw.measure in _WARMED:
        remark = looked.remark(clocks.get(raw.device))
    return replace(unit, cause=names.of(raw.device), remark=remark)


def _lost(burned: Burned, names: Names) -> Iterator[Flaw]:
    for one in burned.lost:
        name = names.of(one.device)
        to = f" to {names.index(one.to)}" if one.to is not None else ""
        what = f"{_DID[one.how]} in {_IN[one.phase]}: {one.error}"
        cause = name if one.to is None else ""
        held = one.how == "held"
        yield Flaw(name=name + to, what=what, cause=cause, starved=one.starved, held=held)


def _proven(burned: Burned) -> int:
    """Devices that told of both proofs, right or wrong."""
    told = {(one.device, one.what) for one in burned.proofs}
    devices = {device for device, _ in told}
    return sum((each, "product") in told and (each, "memory") in told for each in devices)


def _throttled(burned: Burned, names: Names, host: Host) -> tuple[Throttle, ...]:
    with in_force(host.promised.limits):
        found = [looked.throttle(names.of(one.device), one) for one in burned.clocks]
    return tuple(one for one in found if one is not None)
