"""What a launch script says beside its variables: ranks without a GPU, ports that others take.

Names as Slurm exports them (SLURM_GPU_BIND, SLURM_NTASKS_PER_GPU), or an option of the launch line
(`--nproc-per-node`). On a live node the GPUs are counted by
`env.cuda_visible_devices`, and the port is tried by `net.ports`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from preflight.facts.environ.remark import Remark, told
from preflight.facts.words import count

if TYPE_CHECKING:
    from collections.abc import Mapping

_RANKS: Final = ("--nproc-per-node", "NPROC_PER_NODE")
_GIVEN: Final = ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE", "PBS_NGPUS")
_EPHEMERAL: Final = (32768, 60999)
"""Linux's default net.ipv4.ip_local_port_range."""

_PORTS: Final = ("--master-port", "--rdzv-endpoint", "--dist-init-addr", "--main-process-port")
_SINGLE: Final = re.compile(r"(?:.*,)?(?:gres:gpu:|gres/gpu:)?(?:verbose,)?(?:per_task|single):1")


def launching(environ: Mapping[str, str]) -> list[Remark]:
    """Remarks on how ranks are bound, counted, and told where to meet."""
    found = (_masked(environ), _too_many(environ), _port(environ))
    return [one for one in found if one is not None]


def _masked(environ: Mapping[str, str]) -> Remark | None:
    """Slurm shows each task its own GPU only: NCCL cannot open a neighbour's memory.

    NVIDIA/nccl issues 1066 and 1948; a task that alone has all GPUs of its node is not meant.
    """
    bind = environ.get("SLURM_GPU_BIND", environ.get("SLURM_TRES_BIND", ""))
    if "none" in bind or environ.get("SLURM_NTASKS_PER_NODE", "") == "1":
        return None
    if _SINGLE.fullmatch(bind):
        said = f"--gpu-bind={bind} shows each task only its own GPU"
    elif environ.get("SLURM_NTASKS_PER_GPU"):
        said = f"--ntasks-per-gpu={environ['SLURM_NTASKS_PER_GPU']} binds each task to its own GPU"
    elif environ.get("--gpus-per-task") == "1":
        said = "--gpus-per-task=1 binds each task to its own GPU"
    else:
        return None
    then = f'{said}: ranks of one node lose each other, or die of "invalid device ordinal"'
    return Remark(then, "add --gpu-bind=none, and let LOCAL_RANK choose the GPU", "warn")


def _too_many(environ: Mapping[str, str]) -> Remark | None:
    ranks = next((environ[name] for name in _RANKS if environ.get(name, "").isdecimal()), None)
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    given = next((environ[name] for name in _GIVEN if name in environ), "").rpartition(":")[2]
    seen = len(listed.split(",")) if listed else int(given[:6]) if given.isdecimal() else None
    if ranks is None or seen is None or int(ranks[:6]) <= seen:
        return None
    where = f"CUDA_VISIBLE_DEVICES lists {listed[:40]}" if listed else f"{count(seen, 'GPU')} given"
    said = f'{ranks[:6]} ranks per node, {where}: rank {seen} gets "invalid device ordinal"'
    return Remark(said, f"start {seen} per node, or give {ranks[:6]} GPUs")


def _port(environ: Mapping[str, str]) -> Remark | None:
    """A port of the launch line from which the kernel serves outgoing connections."""
    for name in _PORTS:
        port = environ.get(name, "").rpartition(":")[2]
        if port.isdecimal() and _EPHEMERAL[0] <= int(port[:6]) <= _EPHEMERAL[1]:
            low, high = _EPHEMERAL
            said = f"{told(name, environ[name])[:80]} is inside the ephemeral range {low}-{high}"
            then = "any outgoing connection may take it before the job does"
            return Remark(f"{said}: {then}", f"choose a port below {low}, such as 29500", "warn")
    return None
