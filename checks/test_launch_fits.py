"""The launch line comes up as one job on this fleet: nodes, ranks, GPUs, and a place to meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.check import Check
from preflight.facts.launch_fits import devices_of, misfit
from preflight.facts.words import count
from preflight.fleet.nodeset import fold
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn
from preflight.view import FleetView

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preflight.fleet.launch_shape import Shape

CHECK = Check(
    "launch.fits",
    stage="facts",
    tier="quick",
    requires=("reach.answer", "host.driver_hung"),
    user=True,
)


def judge(shape: Shape | None, nodes: int, devices: Mapping[str, int | None]) -> Verdict:
    """Hold the line against the nodes of this run. `devices`: GPUs that the job sees on each."""
    if shape is None:
        return not_run("no launch line of torchrun, accelerate or deepspeed is known")
    bad = misfit(shape, nodes, devices)
    if bad is not None and bad.grave:
        return fail(bad.sentence, advice=bad.advice)
    untold = [name for name, number in devices.items() if number is None]
    if shape.nproc is not None and untold:
        said = f"{count(shape.nproc, 'rank')} per node, and {fold(untold)} did not tell its GPUs"
        return unknown(said, advice="see gpu.count of it; then run again", culprits=untold)
    if bad is not None:
        return warn(bad.sentence, advice=bad.advice)
    said = f"{shape.launcher} for {count(nodes, 'node')}"
    if shape.nproc is not None:
        said += f", {count(shape.nproc, 'rank')} on each"
    seen = sorted({number for number in devices.values() if number})
    return ok(said + (f" with {' or '.join(map(str, seen))} GPUs" if seen else ""))


def test_launch_fits(fleet: FleetView, conclude: Conclude) -> None:
    """Joins the fleet, its job and the judgement; the frame does the rest."""
    job = next(iter(fleet.nodes.values())).job
    devices = {name: devices_of(node) for name, node in fleet.nodes.items()}
    conclude(judge(job.launch, len(fleet.nodes) + len(fleet.left_out), devices))
