"""The environment of the job that is to start: not that of our login."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.fleet.files import read_regular
from preflight.fleet.starred import starred

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_PUBLIC = (
    "CUDA_",
    "NCCL_",
    "TORCH_",
    "TORCHELASTIC_",
    "GLOO_",
    "PYTORCH_",
    "NVIDIA_VISIBLE_",
    "SLURM_",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "NODE_RANK",
    "OMP_NUM_THREADS",
    "PET_",
    "ROCR_",
    "HIP_",
    "UCX_",
    "FI_",
    "LD_LIBRARY_PATH",
    # Spelled wrong, they have no effect: `env.exists` says so.
    "NCLL_",
    "NCC_",
    "NCCLL_",
    "nccl_",
    "Nccl_",
    "PYTROCH_",
)
"""Only variables that a check reads are kept: a token in any other is gone right here."""

_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|_KEY$|API_KEY|_PSK$", re.IGNORECASE)
_LARGEST_FILE = 1 << 20


def public(environ: Mapping[str, str]) -> dict[str, str]:
    """Keep the variables that checks may read, none that looks like a credential, none inside."""
    return {
        key: starred(value)
        for key, value in environ.items()
        if key.startswith(_PUBLIC) and not _SECRET.search(key)
    }


def read_env_file(pattern: str, nodes: Sequence[str]) -> dict[str, dict[str, str]]:
    """Read `KEY=VALUE` lines; `{node}` in the path stands for each node's name.

    Returns the environment by node name; one file for all comes back under "".
    """
    if not pattern.strip():
        raise UsageError("--preflight-env-file is empty: give a file written with: env > job.env")
    if "{node}" not in pattern:
        return {"": _read_one(Path(pattern).expanduser())}
    return {name: _read_one(Path(pattern.replace("{node}", name)).expanduser()) for name in nodes}


def _read_one(path: Path) -> dict[str, str]:
    try:
        text = read_regular(path, _LARGEST_FILE).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(
            f"cannot read the environment file {_plain(path)}: {reason}; "
            "write it with: env > job.env"
        ) from error
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
    return public(environ)


def _plain(path: Path) -> str:
    return str(path) if str(path).isprintable() else ascii(str(path))


def _unquoted(value: str) -> str:
    if value[:1] in "\"'" and value[:1]:
        try:
            return "".join(shlex.split(value))
        except ValueError:
            return value
    return value
