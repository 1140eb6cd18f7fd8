"""Burn-ins of made-up nodes, so that a test states only what matters to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from preflight.burn.comparison import judge_burn
from preflight.facts.burn import (
    Burned,
    Clocks,
    Kind,
    Look,
    Lost,
    Measure,
    Opened,
    Proof,
    Reading,
    Ready,
)
from preflight.fleet.model import Expected, Host
from tests.unit.facts.builders import facts, gpu

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.facts.burn import Burn

H100 = "NVIDIA H100 80GB HBM3"
UNKNOWN = "NVIDIA L40S"
"""A GPU of which no number is shipped."""
EXPECTATION = Expected(gpus=8)
USUAL: dict[Measure, float] = {
    "gemm_tflops": 740.0,
    "memory_gbs": 2900.0,
    "h2d_gbs": 55.0,
    "d2h_gbs": 54.0,
    "p2p_gbs": 380.0,
    "launch_us": 8.0,
    "sustained_tflops": 700.0,
    "host_copy_gbs": 200.0,
    "host_gflops": 3000.0,
    "nic_gbits": 390.0,
}
"""An H100's, in the unit of each measure."""

SINGLE: tuple[Measure, ...] = ("gemm_tflops", "memory_gbs", "launch_us", "sustained_tflops")
COPIES: tuple[Measure, ...] = ("h2d_gbs", "d2h_gbs")
HOST: tuple[Measure, ...] = ("host_copy_gbs", "host_gflops")
SIDES = (0, 1)

assert set(USUAL) == set(get_args(Measure))

DIGEST = "00100f2530171e80"


def opened(device: int, model: str = H100) -> Opened:
    """A GPU of the builders' node, as torch found it."""
    one = gpu(device)
    return Opened(device=device, name=model, bus_id=one.bus_id, numa=one.numa)


def series(value: float, samples: int = 9) -> tuple[float, ...]:
    """Samples that scatter by half a per cent, the same for all."""
    return tuple(value * (1 - 0.005 * (place % 3 - 1)) for place in range(samples))


def burned(
    slow: Mapping[tuple[Measure, int], float] | None = None,
    *,
    gpus: int = 8,
    kind: Kind = "cuda",
    every: float = 1.0,
    waited: float = 0.0,
    model: str = H100,
) -> Burned:
    """A whole burn-in. `slow`: (measure, device) → factor on its value; `every`: on all."""
    factors = dict(slow or {})

    def one(measure: Measure, device: int | None, **where: int | str) -> Reading:
        value = USUAL[measure] * factors.get((measure, device or 0), 1.0) * every
        samples = series(value, 40 if measure == "sustained_tflops" else 9)
        return Reading(measure=measure, samples=samples, device=device, waited=waited, **where)  # type: ignore[arg-type]

    readings = [one(measure, device) for device in range(gpus) for measure in SINGLE]
    readings += [one(measure, None, side=side, threads=48) for side in SIDES for measure in HOST]
    if kind == "cuda":
        for device in range(gpus):
            readings += [one(way, device, side=side) for side in SIDES for way in COPIES]
            others = [other for other in range(gpus) if other != device]
            readings += [one("p2p_gbs", device, to=other) for other in others]
            readings.append(one("nic_gbits", None, name=f"mlx5_{device}"))
    cpus = tuple(Opened(device=n, name=f"CPU {n}") for n in range(gpus))
    return Burned(
        ready=Ready(torch="2.9.0", kind=kind, devices=gpus),
        opened=tuple(opened(n, model) for n in range(gpus)) if kind == "cuda" else cpus,
        readings=tuple(readings),
        proofs=tuple(proof for n in range(gpus) for proof in proofs(n)),
        clocks=tuple(clocks(n) for n in range(gpus)) if kind == "cuda" else (),
        done=True,
        seconds=41.0,
    )


def proofs(device: int) -> tuple[Proof, ...]:
    """All is right on this device."""
    return (
        Proof(device=device, what="product", rounds=200, wrong=0, digest=DIGEST, size="8192x256"),
        Proof(device=device, what="memory", rounds=4, wrong=0, size="65536 MiB"),
    )


def clocks(device: int, *reasons: str, mhz: int = 1755) -> Clocks:
    """Looks at a GPU before and during the load; `reasons` hold during all of it."""
    before = Look(sm_mhz=1980, celsius=34, watts=120.0, reasons=())
    under = tuple(
        Look(sm_mhz=mhz, celsius=62, watts=690.0, reasons=("sw_power_cap", *reasons))
        for _ in range(40)
    )
    return Clocks(device=device, looks=(before, *under))


def lost(device: int, how: str = "hung", phase: str = "gemm", *, starved: bool = False) -> Lost:
    """A GPU that did not come through."""
    error = "it stood still for 30 s and was killed"
    return Lost(device=device, phase=phase, how=how, error=error, starved=starved)  # type: ignore[arg-type]


def judged(*nodes: Burned, expectation: Expected = EXPECTATION) -> Sequence[Burn]:
    """The nodes h1, h2, ... of one group, judged together."""
    fleet = {f"h{number}": one for number, one in enumerate(nodes, 1)}
    hosts = [Host(name=name, address=name, expected=expectation) for name in fleet]
    node_facts = {
        name: facts(name, gpus=None) if one.ready and one.ready.kind == "cpu" else facts(name)
        for name, one in fleet.items()
    }
    found = judge_burn(fleet, hosts, node_facts)
    return [found[name] for name in fleet]
