"""The launch line starts one job on this fleet, and its script hangs no rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import to_builtins

from preflight.check import Check
from preflight.checks.deviations import Deviation
from preflight.checks.env.test_cuda_visible_devices import read_visible
from preflight.checks.fleet_view import FleetView
from preflight.core.text import count
from preflight.facts.node import Node
from preflight.fleet.model import Shape
from preflight.fleet.nodeset import fold
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn

if TYPE_CHECKING:
    from preflight.lint import LintResult

_DRIVER = ("reach.answer", "host.driver_hung")
CHECKS = (
    Check("launch.fits", stage="facts", tier="quick", requires=_DRIVER, user=True),
    Check("launch.script", stage="facts", tier="quick", requires=("reach.answer",), user=True),
)


def devices_of(node: Node) -> int | None:
    """How many GPUs the job will see on a node; None where the node reported none."""
    gpus = node.facts.gpus
    if gpus is None:
        return 0 if node.facts.driver.state == "absent" else None
    return len(read_visible((node.environ or {}).get("CUDA_VISIBLE_DEVICES"), gpus).devices)


def _srun(shape: Shape) -> Deviation | None:
    tasks, nodes = shape.srun_tasks, shape.srun_nodes
    if shape.launcher == "torchrun" and tasks is not None and tasks > 1:
        return Deviation(
            f"srun starts torchrun {tasks} times on each node, 1 is expected: it starts the ranks "
            "there itself",
            "--ntasks-per-node=1, and --nproc-per-node for the ranks",
        )
    if nodes is None or shape.nnodes is None or shape.nnodes[0] <= nodes <= shape.nnodes[1]:
        return None
    return Deviation(
        f"srun starts it on {count(nodes, 'node')}, and --nnodes expects {_range(shape.nnodes)}",
        f"--nnodes={nodes}",
    )


def _nodes(shape: Shape, nodes: int) -> Deviation | None:
    if shape.nnodes is None:
        return None
    fewest, most = shape.nnodes
    if fewest > nodes:
        return Deviation(
            f"--nnodes={_range(shape.nnodes)} waits for {fewest} nodes, and this run has {nodes}",
            f"give --nnodes={nodes}, or name all nodes of the job here",
        )
    if most >= nodes:
        return None
    if most == 1:
        how = "--standalone" if shape.standalone else "--nnodes is 1, torchrun's default"
        return Deviation(
            f"{how}: each of {nodes} nodes would train by itself, one job is expected",
            f"--nnodes={nodes} --rdzv-backend=c10d --rdzv-endpoint=HOST:29500",
            grave=False,
        )
    return Deviation(
        f"--nnodes={_range(shape.nnodes)}, and this run has {nodes}: {nodes - most} will not be "
        "part of the job",
        f"--nnodes={nodes}, or --preflight-need={most} if spare nodes are meant",
        grave=False,
    )


def _rendezvous(shape: Shape) -> Deviation | None:
    """Where the nodes of torchrun find each other."""
    if shape.launcher != "torchrun" or shape.nnodes is None or shape.nnodes[1] == 1:
        return None
    if not shape.endpoint:
        problem = "neither --rdzv-endpoint nor --master-addr"
        if shape.ignored:
            problem = f"{' and '.join(shape.ignored)} count for the static rendezvous only, and no "
            problem += "--rdzv-endpoint is given"
        return Deviation(
            f"{problem}: each of {_range(shape.nnodes)} nodes waits for the others on itself",
            "--rdzv-backend=c10d --rdzv-endpoint=HOST:29500, HOST being one of the nodes",
        )
    if shape.endpoint.endswith(":0"):
        return Deviation(
            f"--rdzv-endpoint={shape.endpoint[:60]}: port 0 is a random one, which the other nodes "
            "cannot know",
            "give a port, such as 29500",
        )
    if shape.static and not shape.node_rank:
        return Deviation(
            "the static rendezvous without --node-rank: every node takes itself for node 0",
            "--rdzv-backend=c10d, or --node-rank=0, 1, ... on each node",
        )
    if shape.ignored:
        problem = f"{' and '.join(shape.ignored)} beside --rdzv-endpoint: torchrun ignores it"
        return Deviation(problem, "leave it out: it has no effect", grave=False)
    return None


def _idle_gpus(shape: Shape, devices: Mapping[str, int | None]) -> Deviation | None:
    """GPUs that no rank will use; `env.cuda_visible_devices` reports too few of them."""
    counts = Counter(number for number in devices.values() if number)
    if shape.nproc is None or not counts:
        return None
    usual, votes = counts.most_common(1)[0]
    if usual <= shape.nproc:
        return None
    return Deviation(
        f"{count(shape.nproc, 'rank')} per node, and the job sees {usual} GPUs on {votes} of "
        f"{len(devices)} nodes: {usual - shape.nproc} idle on each",
        f"--nproc-per-node={usual} (or =gpu)",
        grave=False,
    )


def _range(nnodes: tuple[int, int]) -> str:
    fewest, most = nnodes
    return str(most) if fewest == most else f"{fewest}:{most}"


def judge_fits(shape: Shape | None, nodes: int, devices: Mapping[str, int | None]) -> Verdict:
    """Compare the launch line with the nodes. `devices`: GPUs that the job sees on each."""
    if shape is None:
        return not_run("no launch line of torchrun, accelerate or deepspeed is known")
    # The first reason why the launch will not become one job on all of these nodes and GPUs.
    fault = _srun(shape) or _nodes(shape, nodes) or _rendezvous(shape) or _idle_gpus(shape, devices)
    if fault is not None and fault.grave:
        return fail(fault.sentence, advice=fault.advice)
    unreported = [name for name, number in devices.items() if number is None]
    if shape.nproc is not None and unreported:
        ranks = count(shape.nproc, "rank")
        sentence = f"{ranks} per node, and {fold(unreported)} did not report its GPUs"
        return unknown(sentence, advice="see gpu.count of it; then run again", culprits=unreported)
    if fault is not None:
        return warn(fault.sentence, advice=fault.advice)
    summary = f"{shape.launcher} for {count(nodes, 'node')}"
    if shape.nproc is not None:
        summary += f", {count(shape.nproc, 'rank')} on each"
    numbers = sorted({number for number in devices.values() if number})
    return ok(summary + (f" with {' or '.join(map(str, numbers))} GPUs" if numbers else ""))


def test_launch_fits(fleet: FleetView, conclude: Conclude) -> None:
    """The launch line starts one job on this fleet: nodes, ranks, GPUs and rendezvous fit."""
    job = next(iter(fleet.nodes.values())).job
    devices = {name: devices_of(node) for name, node in fleet.nodes.items()}
    conclude(judge_fits(job.launch, len(fleet.nodes) + len(fleet.left_out), devices))


def judge_script(script: LintResult | None) -> Verdict:
    """Report the gravest finding and count the others, which `preflight lint` shows."""
    if script is None:
        return not_run("no training script known; give --preflight-script")
    if script.unread is not None:
        sentence = f"{script.path} was not judged: {script.unread.reason}"
        return unknown(sentence, advice=script.unread.remedy)
    from preflight.lint.script import Severity  # it knows the whole language

    errors, warnings = script.of(Severity.ERROR), script.of(Severity.WARNING)
    hints = len(script.of(Severity.HINT))
    evidence = {"findings": to_builtins(script.findings), "ignored": script.ignored}
    if not errors and not warnings:
        if not script.distributed:
            return ok(f"{script.path}: nothing in it is for several ranks", **evidence)
        hint_words = f", {count(hints, 'hint')} (preflight lint)" if hints else ""
        return ok(f"{script.path}: nothing found{hint_words}", **evidence)
    first = (errors or warnings)[0]
    others = len(errors) + len(warnings) - 1
    sentence = f"{script.path} line {first.line}: {first.sentence}; {first.will}"
    more = f"; {count(others, 'more finding')}: preflight lint {script.path}" if others else ""
    conclude = fail if errors else warn
    return conclude(sentence, advice=first.remedy + more, **evidence)


def test_launch_script(fleet: FleetView, conclude: Conclude) -> None:
    """Nothing in the training script will hang its ranks, as far as its text shows."""
    from preflight.lint import lint  # its rules take 25 ms

    script = next(iter(fleet.nodes.values())).job.script
    conclude(judge_script(lint(script.content, script.path) if script else None))
