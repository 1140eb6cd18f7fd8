"""CUDA_VISIBLE_DEVICES names GPUs that exist, that belong to the job, and enough for its ranks.

CUDA takes the list up to the first entry it cannot use and silently hides the rest; an entry that
occurs twice hides everything. Indices are read like C's strtoul ("1gpu" is 1). The first entry
decides whether the list is one of indices, of GPU UUIDs or of MIG UUIDs; of MIG instances a process
sees one. Sources: CUDA programming guide 5.2.1 (environment variables); MIG user guide (CUDA
visible devices); torch.cuda's own reading, which follows the driver.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from preflight.check import Check
from preflight.checks.deviations import Deviation
from preflight.checks.env.remark import UNKNOWN_JOB
from preflight.core.text import count
from preflight.facts import Facts, Node
from preflight.facts.model import Gpu
from preflight.fleet.model import Job
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, warn

Kind = Literal["unset", "index", "gpu-uuid", "mig"]

_STRTOUL: Final = re.compile(r"\s*([+-]?[0-9]+)")
_TAIL: Final = re.compile(r"\s*+(?:[A-Za-z_][A-Za-z0-9_]*)?\s*")
"""What CUDA may drop behind a number, as in "0gpu"; "-7", ";1" and ".5" have a meaning."""

_HEX: Final = re.compile(r"[+-]?0[xX][0-9a-fA-F]+")
_RANGE: Final = re.compile(r"\s*([0-9]{1,3})\s*(?:-|:|\.\.+)\s*([0-9]{1,3})\s*")
_OLD_MIG: Final = re.compile(r"MIG-(GPU-[^/]+)/[0-9]+/[0-9]+")
_FOREIGN: Final = {
    "all": "it belongs in NVIDIA_VISIBLE_DEVICES",
    "none": "it belongs in NVIDIA_VISIBLE_DEVICES",
    "void": "it belongs in NVIDIA_VISIBLE_DEVICES",
    "NoDevFiles": "it is Slurm's word for a step without GPUs",
}


class Device(Struct, frozen=True):
    """One device of the job: a whole GPU, or one MIG instance of it."""

    gpu: int
    mig: str = ""


class Visible(Struct, frozen=True):
    """What CUDA makes of the variable on one node."""

    kind: Kind
    devices: tuple[Device, ...]
    entries: tuple[str, ...] = ()
    trouble: str = ""
    """Why CUDA used less than the whole list; empty where it used all of it."""
    remedy: str = ""
    """What to write instead, where the trouble tells it."""
    unconfirmed: str = ""
    """An entry that may be right, but that nothing seen here confirms."""

    @property
    def indices(self) -> tuple[int, ...]:
        """NVML indices of the GPUs, in the job's order."""
        return tuple(device.gpu for device in self.devices)


def read_visible(value: str | None, gpus: Sequence[Gpu]) -> Visible:
    """Apply CUDA_VISIBLE_DEVICES (None: not set) to the GPUs that NVML shows."""
    if value is None:
        return _one_mig(Visible("unset", tuple(Device(gpu.index) for gpu in gpus)), gpus)
    entries = tuple(value.split(","))
    kind: Kind = "index"
    if entries[0].startswith(("GPU-", "MIG-")):
        kind = "gpu-uuid" if entries[0].startswith("GPU-") else "mig"
    devices: list[Device] = []
    misreadings = map(_misread, entries if kind == "index" else ())
    trouble, remedy = next(filter(None, misreadings), ("", ""))
    for position, entry in enumerate(entries):
        device, why = _resolve(entry, kind, gpus)
        if device is None:
            stop = "" if _harmless_end(entries, position) else f"CUDA stops at {entry!r}: {why}"
            return _one_mig(Visible(kind, tuple(devices), entries, trouble or stop, remedy), gpus)
        if device in devices:
            why = trouble or f"{entry!r} occurs twice, so CUDA hides every GPU"
            return Visible(kind, (), entries, why, remedy)
        devices.append(device)
    old_mig = next((device.mig for device in devices if _OLD_MIG.fullmatch(device.mig)), "")
    return _one_mig(Visible(kind, tuple(devices), entries, trouble, remedy, old_mig), gpus)


def _misread(entry: str) -> tuple[str, str] | None:
    """What is wrong, and what to write, if CUDA reads a number and drops a text behind it."""
    number, is_hex = _STRTOUL.match(entry), _HEX.fullmatch(entry.strip()) is not None
    if number is None or (_TAIL.fullmatch(entry[number.end() :]) and not is_hex):
        return None
    reading, bounds = f"CUDA reads {entry!r} as {number[1]}", _RANGE.fullmatch(entry)
    first, last = map(int, bounds.groups()) if bounds else (0, 0)
    if first < last < first + 16:
        indices = ",".join(map(str, range(first, last + 1)))
        return f"{reading}: it knows no ranges", f"write {indices}"
    if is_hex:
        return f"{reading}: it knows no hexadecimal", "write decimal indices"
    with_commas = ",".join(re.findall(r"[0-9]+", entry))
    advice = f"write indices with commas, such as {with_commas}"
    return f"{reading}: only a comma separates entries", advice


def _harmless_end(entries: Sequence[str], position: int) -> bool:
    """A trailing comma or a closing -1 ends a list that was used up to there."""
    return 0 < position == len(entries) - 1 and entries[position].strip() in ("", "-1")


def _resolve(entry: str, kind: Kind, gpus: Sequence[Gpu]) -> tuple[Device | None, str]:
    if kind == "index":
        return _by_index(entry, gpus)
    prefix = "GPU-" if kind == "gpu-uuid" else "MIG-"
    if not entry.startswith(prefix):
        return None, f"the list began with {prefix}, and CUDA does not mix kinds or skip spaces"
    if kind == "gpu-uuid":
        devices = [Device(gpu.index) for gpu in gpus if gpu.uuid.startswith(entry)]
    else:
        devices = _by_mig(entry, gpus)
    if len(devices) > 1:
        return None, f"{len(devices)} devices here begin like this; give more digits"
    return (devices[0], "") if devices else (None, "no device here has this UUID")


def _by_index(entry: str, gpus: Sequence[Gpu]) -> tuple[Device | None, str]:
    number = _STRTOUL.match(entry)
    if number is None:
        foreign = _FOREIGN.get(entry.strip(), "") if entry.strip() else "it is empty"
        return None, foreign or "it is neither an index nor a UUID"
    index = int(number.group(1)) if len(number.group(1)) <= len("-2147483648") else -1
    if not 0 <= index < len(gpus):
        return None, f"there are {len(gpus)} GPUs here, numbered from 0"
    return Device(gpus[index].index), ""


def _by_mig(entry: str, gpus: Sequence[Gpu]) -> list[Device]:
    matches = [
        Device(gpu.index, mig.uuid) for gpu in gpus for mig in gpu.mig if mig.uuid.startswith(entry)
    ]
    old = _OLD_MIG.fullmatch(entry)
    if matches or old is None:
        return matches
    return [Device(gpu.index, entry) for gpu in gpus if gpu.mig and gpu.uuid == old.group(1)]


def _one_mig(visible: Visible, gpus: Sequence[Gpu]) -> Visible:
    """With MIG on, CUDA shows one instance: the first named, or the first of a GPU named."""
    split = {gpu.index: gpu for gpu in gpus if gpu.mig_enabled}
    first = next((device for device in visible.devices if device.mig or device.gpu in split), None)
    if first is None:
        return visible
    instances = split[first.gpu].mig if first.gpu in split else ()
    if not first.mig and not instances:
        whole_gpus = tuple(device for device in visible.devices if device.gpu not in split)
        trouble = f"GPU{first.gpu} is in MIG mode without an instance"
        return replace(visible, devices=whole_gpus, trouble=visible.trouble or trouble)
    instance = first if first.mig else Device(first.gpu, instances[0].uuid)
    trouble = f"CUDA shows a process one MIG instance, not {len(visible.devices)} devices"
    if len(visible.devices) == 1:
        trouble = ""
    return replace(visible, devices=(instance,), trouble=visible.trouble or trouble)


class Allocation(Struct, frozen=True):
    """What Slurm says it gave the job on this node."""

    number: int
    host_indices: tuple[int, ...] = ()
    """As the host counts them; inside a device cgroup the same GPUs count from 0."""


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Read the step's or the job's GPUs from its environment; None without one."""
    ids = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS") or ""
    if re.fullmatch(r"[0-9]{1,4}(?:,[0-9]{1,4})*", ids):
        indices = tuple(int(word) for word in ids.split(","))
        return Allocation(len(indices), indices)
    match = re.fullmatch(r"(?:[\w.\-]+:)*([0-9]{1,4})", environ.get("SLURM_GPUS_ON_NODE", ""))
    return Allocation(int(match.group(1))) if match and int(match.group(1)) else None


def unusable(visible: Visible, gpus: tuple[Gpu, ...], owner: str | None) -> Deviation | None:
    """Entries that CUDA cannot use here. `owner`: the other node whose GPUs they name."""
    if visible.entries == ("",):
        return Deviation("it is empty, so the job sees no GPU", "unset it, or list the GPUs")
    if not visible.trouble:
        return None
    sentence = f"the job gets {len(visible.devices)} of {count(len(gpus), 'GPU')}"
    if owner is not None:
        return Deviation(
            f"it names GPUs of {owner}; here {sentence}",
            "let each node set its own list; UUIDs never hold on two nodes",
        )
    advice = visible.remedy or "list indices or UUIDs of `nvidia-smi -L`"
    return Deviation(f"{visible.trouble}; {sentence}", advice)


def unconfirmed(visible: Visible) -> Deviation | None:
    """A MIG instance by its numbers: the driver shows UUIDs only, so it may not be there."""
    if not visible.unconfirmed:
        return None
    return Deviation(
        f"whether the instance {visible.unconfirmed[:60]!r} exists cannot be seen here",
        "name it by its MIG-<uuid> of `nvidia-smi -L`",
        grave=False,
    )


def fewer_than_ranks(visible: Visible, nproc: int | None) -> Deviation | None:
    """Fewer GPUs than ranks: the surplus ranks die of "invalid device ordinal"."""
    number = len(visible.devices)
    if nproc is None or nproc <= number:
        return None
    return Deviation(
        f"{count(nproc, 'rank')} per node, {count(number, 'GPU')} visible: "
        f'rank {number} gets "invalid device ordinal"',
        f"use --nproc-per-node={number}, or make {nproc} GPUs visible",
    )


def beyond_allocation(visible: Visible, grant: Allocation | None, listed: int) -> Deviation | None:
    """GPUs beyond the allocation. `listed`: GPUs that NVML lists, fewer inside a device cgroup."""
    if grant is None or visible.kind == "mig":
        return None
    number, has = len(visible.devices), f"Slurm gave the job {count(grant.number, 'GPU')}"
    if visible.kind == "unset":
        sentence = f"it is not set and {listed} GPUs are in sight; {has}"
        advice = "export CUDA_VISIBLE_DEVICES, or constrain devices in Slurm's cgroup.conf"
        return Deviation(sentence, advice, grave=False) if listed > grant.number else None
    if number > grant.number:
        return Deviation(f"it shows {count(number, 'GPU')}; {has}", "leave the list to Slurm")
    numberings = (set(grant.host_indices), set(range(grant.number)))
    if grant.host_indices and not any(map(set(visible.indices).issubset, numberings)):
        granted = ",".join(map(str, grant.host_indices))
        outside = ",".join(map(str, sorted(set(visible.indices) - numberings[0])))
        return Deviation(f"GPU {outside} is not in the allocation ({granted})", "leave it to Slurm")
    if number < grant.number:
        sentence = f"it shows {count(number, 'GPU')}; {has}"
        return Deviation(sentence, "use all, or ask for fewer", grave=False)
    return None


def host_numbers(visible: Visible, grant: Allocation | None, listed: int) -> Deviation | None:
    """The host's numbers inside a device cgroup, where the job's GPUs count from 0."""
    numbers = [entry.strip() for entry in visible.entries]
    if not visible.trouble or grant is None or listed != grant.number or not grant.host_indices:
        return None
    if sorted(numbers) != sorted(str(index) for index in grant.host_indices):
        return None
    return Deviation(
        f"it has the host's numbers, but inside the job's cgroup its {listed} GPUs count from 0",
        "if a script exported it, remove that line; Slurm sets it right inside the job",
        grave=False,
    )


def ambiguous_order(visible: Visible, gpus: tuple[Gpu, ...], order: str) -> Deviation | None:
    """Indices on a node of mixed models: CUDA's default order is fastest first, not the bus's."""
    models = {gpu.name for gpu in gpus}
    by_bus = visible.kind != "index" or order == "PCI_BUS_ID"
    if by_bus or len(models) == 1 or len({*visible.indices}) == len(gpus):
        return None
    return Deviation(
        f"indices on {len(models)} GPU models: CUDA numbers the fastest first, nvidia-smi by bus",
        "export CUDA_DEVICE_ORDER=PCI_BUS_ID, or list UUIDs",
        grave=False,
    )


def unlike_other_nodes(visible: Visible, job: Job) -> Deviation | None:
    """A list of another length than on most other nodes: the ranks will not add up."""
    lists = [environ.get("CUDA_VISIBLE_DEVICES") for environ in (job.environ or {}).values()]
    lengths = Counter(0 if value is None else len(value.split(",")) for value in lists)
    usual, votes = lengths.most_common(1)[0] if lengths else (0, 0)
    length = len(visible.entries)
    if length == usual or votes < 2 or 2 * votes <= lengths.total():  # noqa: PLR2004 - a majority
        return None
    holders = f"{votes} of {lengths.total()} nodes"
    own, theirs = (count(n, "entry", "entries") if n else "unset" for n in (length, usual))
    sentence = f"{own} here, {theirs} on {holders}"
    return Deviation(sentence, "give every node a list of one length", grave=False)


def owner_of(visible: Visible, local: Facts, others: Mapping[str, Facts]) -> str | None:
    """The node to which a list of UUIDs belongs that names nothing here."""
    if visible.kind not in ("gpu-uuid", "mig") or visible.devices:
        return None
    for name, facts in others.items():
        for gpu in () if facts is local else facts.gpus or ():
            uuids = (gpu.uuid, *(mig.uuid for mig in gpu.mig))
            if any(uuid.startswith(visible.entries[0]) for uuid in uuids):
                return name
    return None


_BEFORE: Final = ("reach.answer", "host.driver_hung", "gpu.count")
CHECK = Check("env.cuda_visible_devices", stage="facts", tier="prolog", requires=_BEFORE, user=True)


def judge(
    environ: Mapping[str, str] | None, job: Job, facts: Facts, others: Mapping[str, Facts]
) -> Verdict:
    """Read the list as CUDA does here, then ask whether the job can live with the result."""
    if environ is None:
        return not_run(UNKNOWN_JOB)
    if not facts.gpus:
        return not_run("no GPUs here")
    value = environ.get("CUDA_VISIBLE_DEVICES")
    visible = read_visible(value, facts.gpus)
    setting = "CUDA_VISIBLE_DEVICES " + ("is not set" if value is None else f"is {value[:80]!r}")
    setting += f" ({job.environ_origin})" if job.environ_origin else ""
    devices = [device.mig or device.gpu for device in visible.devices]
    deviation = first_deviation(environ, visible, job, facts, others)
    if deviation is None:
        return ok(f"{setting}: {count(len(visible.devices), 'device')} visible", visible=devices)
    conclude = fail if deviation.grave else warn
    return conclude(f"{setting}: {deviation.sentence}", advice=deviation.advice, visible=devices)


def first_deviation(
    env: Mapping[str, str], visible: Visible, job: Job, facts: Facts, others: Mapping[str, Facts]
) -> Deviation | None:
    """The worst thing about the list; what kills ranks comes before what is only odd."""
    gpus, grant = facts.gpus or (), allocation(env)
    return (
        host_numbers(visible, grant, len(gpus))
        or unusable(visible, gpus, owner_of(visible, facts, others))
        or fewer_than_ranks(visible, job.nproc_per_node)
        or beyond_allocation(visible, grant, len(gpus))
        or ambiguous_order(visible, gpus, env.get("CUDA_DEVICE_ORDER", ""))
        or unconfirmed(visible)
        or unlike_other_nodes(visible, job)
    )


def test_env_cuda_visible_devices(node: Node, conclude: Conclude) -> None:
    """Joins a node, the job's environment there and the judgement; the frame does the rest."""
    conclude(judge(node.environ, node.job, node.facts, node.group.facts))
