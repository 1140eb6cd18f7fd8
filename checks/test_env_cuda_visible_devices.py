"""The job's CUDA_VISIBLE_DEVICES names GPUs that are there, are its own, and are enough."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - read like its documentation

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.job_gpus import (
    Complaint,
    allocation,
    ambiguous_order,
    host_numbered,
    not_its_own,
    owner_of,
    too_few,
    unconfirmed,
    unlike_other_nodes,
    unusable,
)
from preflight.facts.visible import Visible, read_visible
from preflight.facts.words import count
from preflight.fleet.model import Job
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, warn

CHECK = Check(
    "env.cuda_visible_devices",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung", "gpu.count"),
    user=True,
)
UNKNOWN_JOB = (
    "no job environment known; give --preflight-env-file, --preflight-launch, "
    "or run inside the allocation"
)


def judge(
    environ: Mapping[str, str] | None, job: Job, facts: Facts, others: Mapping[str, Facts]
) -> Verdict:
    """Read the list as CUDA does here, then ask whether the job can live with the result."""
    if environ is None:
        return not_run(UNKNOWN_JOB)
    if not facts.gpus:
        return not_run("no GPUs here to hold CUDA_VISIBLE_DEVICES against")
    value = environ.get("CUDA_VISIBLE_DEVICES")
    visible = read_visible(value, facts.gpus)
    told = "CUDA_VISIBLE_DEVICES " + ("is not set" if value is None else f"is {value[:80]!r}")
    told += f" ({job.environ_origin})" if job.environ_origin else ""
    devices = [device.mig or device.gpu for device in visible.devices]
    complaint = first_complaint(environ, visible, job, facts, others)
    if complaint is None:
        return ok(f"{told}: {count(len(visible.devices), 'device')} visible", visible=devices)
    conclude = fail if complaint.grave else warn
    return conclude(f"{told}: {complaint.sentence}", advice=complaint.advice, visible=devices)


def first_complaint(
    env: Mapping[str, str], visible: Visible, job: Job, facts: Facts, others: Mapping[str, Facts]
) -> Complaint | None:
    """The worst thing about the list; what kills ranks comes before what is only odd."""
    gpus, given = facts.gpus or (), allocation(env)
    return (
        host_numbered(visible, given, len(gpus))
        or unusable(visible, gpus, owner_of(visible, facts, others))
        or too_few(visible, job.nproc_per_node)
        or not_its_own(visible, given, len(gpus))
        or ambiguous_order(visible, gpus, env.get("CUDA_DEVICE_ORDER", ""))
        or unconfirmed(visible)
        or unlike_other_nodes(visible, job)
    )


def test_env_cuda_visible_devices(node: Node, conclude: Conclude) -> None:
    """Joins a node, the job's environment there and the judgement; the frame does the rest."""
    conclude(judge(node.environ, node.job, node.facts, node.group.facts))
