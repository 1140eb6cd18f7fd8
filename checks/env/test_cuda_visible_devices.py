"""The job's CUDA_VISIBLE_DEVICES names GPUs that are there, are its own, and are enough."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from preflight.check import Check
from preflight.checks.env.visible import Visible, read_visible
from preflight.facts import Facts, Node
from preflight.facts.words import count
from preflight.fleet.model import Job
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, warn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preflight.facts.model import Gpu


@dataclass(frozen=True, slots=True)
class Complaint:
    """What is wrong with the job's GPU list. `grave`: ranks will die of it."""

    sentence: str
    advice: str
    grave: bool = True


@dataclass(frozen=True, slots=True)
class Allocation:
    """What Slurm says it gave the job on this node."""

    number: int
    host_indices: tuple[int, ...] = ()
    """As the host counts them; inside a device cgroup the same GPUs count from 0."""


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Read the step's or the job's GPUs from its environment; None without one."""
    listed = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS") or ""
    if re.fullmatch(r"[0-9]{1,4}(?:,[0-9]{1,4})*", listed):
        indices = tuple(int(word) for word in listed.split(","))
        return Allocation(len(indices), indices)
    counted = re.fullmatch(r"(?:[\w.\-]+:)*([0-9]{1,4})", environ.get("SLURM_GPUS_ON_NODE", ""))
    return Allocation(int(counted.group(1))) if counted and int(counted.group(1)) else None


def unusable(visible: Visible, gpus: tuple[Gpu, ...], owner: str | None) -> Complaint | None:
    """Entries that CUDA cannot use here. `owner`: the other node whose GPUs they name."""
    if visible.entries == ("",):
        return Complaint("it is empty, so the job sees no GPU", "unset it, or list the GPUs")
    if not visible.trouble:
        return None
    seen = f"the job gets {len(visible.devices)} of {count(len(gpus), 'GPU')}"
    if owner is not None:
        return Complaint(
            f"it names GPUs of {owner}; here {seen}",
            "let each node set its own list; UUIDs never hold on two nodes",
        )
    advice = visible.remedy or "list indices or UUIDs of `nvidia-smi -L`"
    return Complaint(f"{visible.trouble}; {seen}", advice)


def unconfirmed(visible: Visible) -> Complaint | None:
    """A MIG instance by its numbers: the driver shows UUIDs only, so it may not be there."""
    if not visible.unconfirmed:
        return None
    return Complaint(
        f"whether the instance {visible.unconfirmed[:60]!r} exists cannot be seen here",
        "name it by its MIG-<uuid> of `nvidia-smi -L`",
        grave=False,
    )


def too_few(visible: Visible, nproc: int | None) -> Complaint | None:
    """Fewer GPUs than ranks: the surplus ranks die of "invalid device ordinal"."""
    seen = len(visible.devices)
    if nproc is None or nproc <= seen:
        return None
    return Complaint(
        f"{count(nproc, 'rank')} per node, {count(seen, 'GPU')} visible: "
        f'rank {seen} gets "invalid device ordinal"',
        f"use --nproc-per-node={seen}, or make {nproc} GPUs visible",
    )


def not_its_own(visible: Visible, given: Allocation | None, seen: int) -> Complaint | None:
    """GPUs beyond the allocation. `seen`: GPUs that NVML shows, fewer inside a device cgroup."""
    if given is None or visible.kind == "mig":
        return None
    used, has = len(visible.devices), f"Slurm gave the job {count(given.number, 'GPU')}"
    if visible.kind == "unset":
        return _unset(seen, has) if seen > given.number else None
    if used > given.number:
        return Complaint(f"it shows {count(used, 'GPU')}; {has}", "leave the list to Slurm")
    ours = (set(given.host_indices), set(range(given.number)))
    if given.host_indices and not any(set(visible.indices) <= own for own in ours):
        listed = ",".join(str(index) for index in given.host_indices)
        strangers = sorted(set(visible.indices) - ours[0])
        shown = ",".join(str(index) for index in strangers)
        return Complaint(f"GPU {shown} is not of the allocation ({listed})", "leave it to Slurm")
    if used < given.number:
        return Complaint(
            f"it shows {count(used, 'GPU')}; {has}", "use all or ask less", grave=False
        )
    return None


def _unset(seen: int, has: str) -> Complaint:
    advice = "export CUDA_VISIBLE_DEVICES, or constrain devices in Slurm's cgroup.conf"
    return Complaint(f"it is not set and {seen} GPUs are in sight; {has}", advice, grave=False)


def host_numbered(visible: Visible, given: Allocation | None, seen: int) -> Complaint | None:
    """The host's numbers inside a device cgroup, where the job's GPUs count from 0."""
    numbers = [entry.strip() for entry in visible.entries]
    if not visible.trouble or given is None or seen != given.number or not given.host_indices:
        return None
    if sorted(numbers) != sorted(str(index) for index in given.host_indices):
        return None
    return Complaint(
        f"it has the host's numbers, but inside the job's cgroup its {seen} GPUs count from 0",
        "if a script exported it, remove that line; Slurm sets it right inside the job",
        grave=False,
    )


def ambiguous_order(visible: Visible, gpus: tuple[Gpu, ...], order: str) -> Complaint | None:
    """Indices on a node of mixed models: CUDA's default order is fastest first, not the bus's."""
    models = {gpu.name for gpu in gpus}
    listed = {device.gpu for device in visible.devices}
    if (
        visible.kind != "index"
        or len(models) == 1
        or order == "PCI_BUS_ID"
        or len(listed) == len(gpus)
    ):
        return None
    return Complaint(
        f"indices on {len(models)} GPU models: CUDA numbers the fastest first, nvidia-smi by bus",
        "export CUDA_DEVICE_ORDER=PCI_BUS_ID, or list UUIDs",
        grave=False,
    )


def unlike_other_nodes(visible: Visible, job: Job) -> Complaint | None:
    """A list of another length than on most other nodes: the ranks will not add up."""
    lists = [environ.get("CUDA_VISIBLE_DEVICES") for environ in (job.environ or {}).values()]
    lengths = Counter(0 if value is None else len(value.split(",")) for value in lists)
    usual, votes = lengths.most_common(1)[0] if lengths else (0, 0)
    mine = len(visible.entries)
    if mine == usual or votes < 2 or 2 * votes <= lengths.total():  # noqa: PLR2004 - a majority
        return None
    whom = f"{votes} of {lengths.total()} nodes"
    here, there = (
        count(number, "entry", "entries") if number else "unset" for number in (mine, usual)
    )
    return Complaint(
        f"{here} here, {there} on {whom}", "give every node a list of one length", grave=False
    )


def owner_of(visible: Visible, here: Facts, others: Mapping[str, Facts]) -> str | None:
    """The node to which a list of UUIDs belongs that names nothing here."""
    if visible.kind not in ("gpu-uuid", "mig") or visible.devices:
        return None
    for name, facts in others.items():
        for gpu in () if facts is here else facts.gpus or ():
            uuids = (gpu.uuid, *(mig.uuid for mig in gpu.mig))
            if any(uuid.startswith(visible.entries[0]) for uuid in uuids):
                return name
    return None


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
