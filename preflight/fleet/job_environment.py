"""The environment of the job that is to start, which is not that of the login."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from preflight.core.files import read_text, typed_path
from preflight.core.text import starred
from preflight.core.trust import NAMES_CODE
from preflight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_PUBLIC = (
    *("CUDA_", "NCCL_", "TORCH_", "TORCHELASTIC_", "GLOO_", "PYTORCH_", "NVIDIA_VISIBLE_"),
    # Not all of them: SLURM_EXPORT_ENV, comments and work keys hold what their user wrote.
    *("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_GPU_BIND", "SLURM_JOB_GPUS"),
    *("SLURM_JOB_ID", "SLURM_NTASKS_PER_", "SLURM_STEP_GPUS", "SLURM_TRES_BIND"),
    *("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("GROUP_RANK", "NODE_RANK", "OMP_NUM_THREADS", "PET_", "ROCR_", "HIP_"),
    *("UCX_", "FI_", "OFI_", "RDMAV_", "IBV_", "MLX5_", "LD_LIBRARY_PATH", "LD_PRELOAD"),
    # Spelled wrong, they have no effect: `env.exists` says so.
    *("NCLL_", "NCC_", "NCCLL_", "nccl_", "Nccl_", "PYTROCH_"),
)
"""Only variables that a check reads, or that a measuring process gets, are kept: a token in any
other is gone right here."""

_MEASURED_IN = (
    *("NCCL_", "UCX_", "FI_", "OFI_", "RDMAV_", "IBV_", "MLX5_", "GLOO_SOCKET_IFNAME"),
    *("CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH", "LD_PRELOAD"),
)
"""What burn-in and sweep run with: NCCL, the libraries under it, gloo's interface and the loader.

Not CUDA_VISIBLE_DEVICES (all GPUs are measured; env.cuda_visible_devices judges it), and nothing of
torch's: its time-outs and dumps must not end a measurement."""

OWN = frozenset(
    (
        *("NCCL_ALGO", "NCCL_COLLNET_ENABLE", "NCCL_CROSS_NIC", "NCCL_IB_TIMEOUT"),
        *("NCCL_MNNVL_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_PXN_DISABLE", "NCCL_RAS_ENABLE"),
        *("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"),
        # The one meeting point of the job's own communicator.
        "NCCL_COMM_ID",
        # torch's old names.
        *("NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_DESYNC_DEBUG"),
        "NCCL_ENABLE_TIMING",
        # They write files.
        *("NCCL_GRAPH_DUMP_FILE", "NCCL_TOPO_DUMP_FILE", "UCX_LOG_FILE", "UCX_STATS_DEST"),
    )
)
"""What the sweep sets in its own way, or leaves unset, whatever the job has: see groups.py and
nccl_log.py of its payload."""

_LONGEST_VALUE = 8192

HIDDEN_NAMES = (
    r"(?i)TOKEN|SECRET|(?<!BY)PASS(?!IVE|THR)|CREDENTIAL|(?:_|API|ACCESS|PRIVATE)KEY(?:_|$)|JWT|AUTH"
    r"|BEARER|COOKIE|PWD|(?<![A-Z])PW(?![A-Z])|_(?:PSK|SAS|OTP|SIG)$"
)
"""The payload has the same expression (probe/redact.py); a test holds that."""
_LARGEST_FILE = 1 << 20


def public(environ: Mapping[str, str]) -> dict[str, str]:
    """Keep the variables that checks may read, none that looks like a credential, none inside."""
    return {
        key: starred(value)
        for key, value in environ.items()
        if key.startswith(_PUBLIC) and not re.search(HIDDEN_NAMES, key)
    }


def measured_in(
    environ: Mapping[str, str], unsafe: str = ""
) -> tuple[dict[str, str], dict[str, str]]:
    """Return what measuring processes get of a job's environment, and why they do not get the rest.

    The second has a reason by name; those that concern no measurement are in neither. `unsafe`: who
    else could have written the source; what names files or code does not count from there.
    """
    given, left_out = {}, {}
    for name, value in sorted(environ.items()):
        if not name.startswith(_MEASURED_IN):
            continue
        if name in OWN:
            left_out[name] = "the sweep has its own"
        elif unsafe and (re.match(NAMES_CODE, name) or "/" in value):
            left_out[name] = unsafe
        elif "$" in value or "`" in value:
            left_out[name] = "a shell has yet to expand it"
        elif "***" in value or len(value) > _LONGEST_VALUE or not value.isprintable():
            left_out[name] = "its value cannot be passed on"
        else:
            given[name] = value
    return given, left_out


_FOR_SLURM = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_WORKING_CLUSTER")


def for_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for Slurm's commands: our allocation, without options for steps.

    srun reads SLURM_NTASKS, SLURM_MEM_PER_CPU and others as options, which would change our step.
    Each command takes its configuration, with plugins, from the machine in SLURM_CONF_SERVER.
    """
    foreign = ("SLURM_", "SRUN_", "SLURMD_")
    return {k: v for k, v in environ.items() if k in _FOR_SLURM or not k.startswith(foreign)}


def read_env_file(pattern: str, nodes: Sequence[str]) -> dict[str, dict[str, str]]:
    """Read `KEY=VALUE` lines; `{node}` in the path stands for each node's name.

    Returns the environment by node name; one file for all comes back under "".
    """
    if not pattern.strip():
        raise UsageError("--preflight-env-file is empty: give a file written with: env > job.env")
    if "{node}" not in pattern:
        return {"": _read_one(typed_path(pattern))}
    return {name: _read_one(typed_path(pattern.replace("{node}", name))) for name in nodes}


def _read_one(path: Path) -> dict[str, str]:
    what = f"the environment file {_plain(path)}"
    text = read_text(path, _LARGEST_FILE, what, "write it with: env > job.env")
    environ = {}
    for number, line in enumerate(text.replace("\0", "\n").splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = ASSIGNMENT.fullmatch(stripped.removeprefix("export ").strip())
        if match:
            environ[match[1]] = _unquoted(match[2])
        elif not environ:
            # Later lines may be the rest of a value with newlines in it, as `env` prints them.
            raise UsageError(
                f"{_plain(path)} line {number} is not KEY=VALUE; write the file with: env > job.env"
            )
    if not environ:
        raise UsageError(f"{_plain(path)} has no KEY=VALUE line; write it with: env > job.env")
    return public(environ)


def _plain(path: Path) -> str:
    return str(path) if str(path).isprintable() else ascii(str(path))


def _unquoted(value: str) -> str:
    if value.startswith(('"', "'")):
        try:
            return "".join(shlex.split(value))
        except ValueError:
            return value
    return value
