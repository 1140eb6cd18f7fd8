"""The environment and the launch line of the job that is to start: not those of our login."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
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
    "OMP_NUM_THREADS",
    "ROCR_",
    "HIP_",
    "UCX_",
    "FI_",
)
"""Only variables that a check reads are kept: a token in any other is gone right here."""

_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|_KEY$|API_KEY", re.IGNORECASE)
_LARGEST_FILE = 1 << 20


class Launch(Struct, frozen=True, kw_only=True):
    """What a launch line says: variables in front of it, and torchrun's options in it."""

    environ: dict[str, str]
    nproc_per_node: int | None = None
    master_addr: str | None = None
    master_port: int | None = None


def public(environ: Mapping[str, str]) -> dict[str, str]:
    """Keep the variables that checks may read, and none that looks like a credential."""
    return {
        key: value
        for key, value in environ.items()
        if key.startswith(_PUBLIC) and not _SECRET.search(key)
    }


def read_env_file(pattern: str, nodes: Sequence[str]) -> dict[str, dict[str, str]]:
    """Read `KEY=VALUE` lines; `{node}` in the path stands for each node's name.

    Returns the environment by node name; one file for all comes back under "".
    """
    if "{node}" not in pattern:
        return {"": _read_one(Path(pattern).expanduser())}
    return {name: _read_one(Path(pattern.replace("{node}", name)).expanduser()) for name in nodes}


def _read_one(path: Path) -> dict[str, str]:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_LARGEST_FILE + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(
            f"cannot read the environment file {path}: {reason}; write it with: env > job.env"
        ) from error
    if len(text) > _LARGEST_FILE:
        raise UsageError(
            f"the environment file {path} is larger than 1 MiB: write it with: env > job.env"
        )
    environ = {}
    for number, line in enumerate(text.replace("\0", "\n").splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _ASSIGNMENT.fullmatch(stripped.removeprefix("export ").strip())
        if match:
            environ[match[1]] = _unquoted(match[2])
        elif not environ:
            # Later lines may be the rest of a value with newlines in it, as `env` prints them.
            raise UsageError(
                f"{path} line {number} is not KEY=VALUE; write the file with: env > job.env"
            )
    return public(environ)


def _unquoted(value: str) -> str:
    if value[:1] in "\"'" and value[:1]:
        try:
            return "".join(shlex.split(value))
        except ValueError:
            return value
    return value


def read_launch(line: str) -> Launch:
    """Read `VAR=... torchrun --nproc-per-node=8 ... train.py`; nothing of it is ever run."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"--preflight-launch: {error}; quote it as the shell would") from error
    environ: dict[str, str] = {}
    rest = list(words)
    while rest:
        match = _ASSIGNMENT.fullmatch(rest[0])
        if match:
            environ[match[1]] = match[2]
        elif rest[0] not in ("env", "export", "exec"):
            break
        rest.pop(0)
    options = _options(rest)
    address, port = options.get("master-addr"), options.get("master-port")
    endpoint = options.get("rdzv-endpoint")
    if endpoint:
        host, colon, tail = endpoint.rpartition(":")
        address, port = (host, tail) if colon else (endpoint, None)
    return Launch(
        environ=public(environ),
        nproc_per_node=_number(options.get("nproc-per-node"), "--nproc-per-node"),
        master_addr=address or environ.get("MASTER_ADDR"),
        master_port=port_number(port or environ.get("MASTER_PORT"), "--preflight-launch"),
    )


def _options(words: Sequence[str]) -> dict[str, str]:
    """Collect torchrun's options; it accepts `-` and `_`, `--key value` and `--key=value`."""
    wanted = ("nproc-per-node", "master-addr", "master-port", "rdzv-endpoint")
    found: dict[str, str] = {}
    for place, word in enumerate(words):
        if not word.startswith("--"):
            continue
        key, equals, value = word[2:].partition("=")
        name = key.replace("_", "-")
        if name in wanted:
            found[name] = value if equals else next(iter(words[place + 1 : place + 2]), "")
    return found


def _number(text: str | None, option: str) -> int | None:
    if text is None or text in ("auto", "gpu", "cpu", "xpu"):
        return None
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 1024:  # noqa: PLR2004  more than any node has
        return int(text)
    if text.startswith("$"):
        raise UsageError(
            f"--preflight-launch: {option} is {text!r}: give the number itself, "
            "variables of the shell are not expanded here"
        )
    raise UsageError(f"--preflight-launch: {option} is {text!r}: give a number of ranks, 1 to 1024")


def port_number(text: str | None, where: str) -> int | None:
    """Read a TCP port; UsageError that names where it stood."""
    if text is None:
        return None
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 65535:  # noqa: PLR2004  TCP
        return int(text)
    raise UsageError(f"{where}: the master port is {text!r}: give a number, 1 to 65535")
