"""Which GPUs a job really gets from CUDA_VISIBLE_DEVICES, read as CUDA reads it.

CUDA takes the list up to the first entry it cannot use and silently hides the rest; an entry that
occurs twice hides everything. Indices are read like C's strtoul ("1gpu" is 1). The first entry
decides whether the list is one of indices, of GPU UUIDs or of MIG UUIDs; of MIG instances a process
sees one. Sources: CUDA programming guide 5.2.1 (environment variables); MIG user guide (CUDA
visible devices); torch.cuda's own reading, which follows the driver.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.facts.model import Gpu

Kind = Literal["unset", "index", "gpu-uuid", "mig"]

_STRTOUL: Final = re.compile(r"\s*([+-]?[0-9]+)")
_TAIL: Final = re.compile(r"\s*+(?:[A-Za-z_][A-Za-z0-9_]*)?\s*")
"""What CUDA drops behind a number and nobody misses: "0gpu". "-7", ";1" and ".5" were meant."""

_HEX: Final = re.compile(r"[+-]?0[xX][0-9a-fA-F]+")
_RANGE: Final = re.compile(r"\s*([0-9]{1,3})\s*(?:-|:|\.\.+)\s*([0-9]{1,3})\s*")
_OLD_MIG: Final = re.compile(r"MIG-(GPU-[^/]+)/[0-9]+/[0-9]+")
_FOREIGN: Final = {
    "all": "belongs in NVIDIA_VISIBLE_DEVICES",
    "none": "belongs in NVIDIA_VISIBLE_DEVICES",
    "void": "belongs in NVIDIA_VISIBLE_DEVICES",
    "NoDevFiles": "is Slurm's word for a step without GPUs",
}


@dataclass(frozen=True, slots=True)
class Device:
    """One device of the job: a whole GPU, or one MIG instance of it."""

    gpu: int
    mig: str = ""


@dataclass(frozen=True, slots=True)
class Visible:
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
    lost = next((entry for entry in entries if _loses(entry)), None) if kind == "index" else None
    trouble, remedy = _misread(lost) if lost is not None else ("", "")
    for at, entry in enumerate(entries):
        device, why = _resolve(entry, kind, gpus)
        if device is None:
            stop = "" if _harmless_end(entries, at) else f"CUDA stops at {entry!r}: {why}"
            return _one_mig(Visible(kind, tuple(devices), entries, trouble or stop, remedy), gpus)
        if device in devices:
            why = trouble or f"{entry!r} occurs twice, so CUDA hides every GPU"
            return Visible(kind, (), entries, why, remedy)
        devices.append(device)
    doubt = next((device.mig for device in devices if _OLD_MIG.fullmatch(device.mig)), "")
    return _one_mig(Visible(kind, tuple(devices), entries, trouble, remedy, doubt), gpus)


def _loses(entry: str) -> bool:
    """Whether CUDA reads a number and drops what somebody meant behind it."""
    number = _STRTOUL.match(entry)
    if number is None:
        return False
    return not _TAIL.fullmatch(entry[number.end() :]) or bool(_HEX.fullmatch(entry.strip()))


def _misread(entry: str) -> tuple[str, str]:
    number = _STRTOUL.match(entry)
    read = number.group(1) if number else ""
    bounds = _RANGE.fullmatch(entry)
    first, last = map(int, bounds.groups()) if bounds else (0, 0)
    listed = ",".join(map(str, range(first, last + 1))) if first < last < first + 16 else ""
    separated = ",".join(re.findall(r"[0-9]+", entry))
    if bounds and listed:
        return f"CUDA reads {entry!r} as {read}: it knows no ranges", f"write {listed}"
    if _HEX.fullmatch(entry.strip()):
        return f"CUDA reads {entry!r} as {read}: it knows no hexadecimal", "write decimal indices"
    return (
        f"CUDA reads {entry!r} as {read}: only a comma separates entries",
        f"write indices with commas, such as {separated}",
    )


def _harmless_end(entries: Sequence[str], at: int) -> bool:
    """A trailing comma or a closing -1 ends a list that was used up to there."""
    return 0 < at == len(entries) - 1 and entries[at].strip() in ("", "-1")


def _resolve(entry: str, kind: Kind, gpus: Sequence[Gpu]) -> tuple[Device | None, str]:
    if kind == "index":
        return _by_index(entry, gpus)
    prefix = "GPU-" if kind == "gpu-uuid" else "MIG-"
    if not entry.startswith(prefix):
        return None, f"the list began with {prefix}, and CUDA does not mix kinds or skip spaces"
    if kind == "gpu-uuid":
        found = [Device(gpu.index) for gpu in gpus if gpu.uuid.startswith(entry)]
    else:
        found = _by_mig(entry, gpus)
    if len(found) > 1:
        return None, f"{len(found)} devices here begin like this; give more digits"
    return (found[0], "") if found else (None, "no device here has this UUID")


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
    named = [
        Device(gpu.index, mig.uuid) for gpu in gpus for mig in gpu.mig if mig.uuid.startswith(entry)
    ]
    old = _OLD_MIG.fullmatch(entry)
    if named or old is None:
        return named
    return [Device(gpu.index, entry) for gpu in gpus if gpu.mig and gpu.uuid == old.group(1)]


def _one_mig(visible: Visible, gpus: Sequence[Gpu]) -> Visible:
    """With MIG on, CUDA shows one instance: the first named, or the first of a GPU named."""
    split = {gpu.index: gpu for gpu in gpus if gpu.mig_enabled}
    first = next((device for device in visible.devices if device.mig or device.gpu in split), None)
    if first is None:
        return visible
    instances = split[first.gpu].mig if first.gpu in split else ()
    if not first.mig and not instances:
        rest = tuple(device for device in visible.devices if device.gpu not in split)
        trouble = f"GPU{first.gpu} is in MIG mode without an instance"
        return replace(visible, devices=rest, trouble=visible.trouble or trouble)
    chosen = first if first.mig else Device(first.gpu, instances[0].uuid)
    trouble = f"CUDA shows a process one MIG instance, not {len(visible.devices)} devices"
    if len(visible.devices) == 1:
        trouble = ""
    return replace(visible, devices=(chosen,), trouble=visible.trouble or trouble)
