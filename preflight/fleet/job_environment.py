"""The environment of the job that is to start, which is not that of the login."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from preflight.core.files import read_text, shipped_table, typed_path
from preflight.core.text import mask_secrets
from preflight.core.trust import NAMES_CODE
from preflight.errors import UsageError

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_NAMES = shipped_table(__file__, "job_variables.toml")
_PUBLIC = tuple(_NAMES["public"])
_MEASURED_IN = tuple(_NAMES["measured_in"])
SWEEP_VARIABLES = frozenset(_NAMES["of_the_sweep"])
"""job_variables.toml says what each of them is."""
_LONGEST_VALUE = 8192

HIDDEN_NAMES = (
    r"(?i)TOKEN|SECRET|(?<!BY)PASS(?!IVE|THR)|CREDENTIAL|(?:_|API|ACCESS|PRIVATE)KEY(?:_|$)|JWT|AUTH"
    r"|BEARER|COOKIE|PWD|(?<![A-Z])PW(?![A-Z])|_(?:PSK|SAS|OTP|SIG)$"
)
"""The payload has the same expression (probe/redact.py); a test holds that."""
_LARGEST_FILE = 1 << 20


def public_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Keep the variables that checks may read; drop credentials, and mask those inside values."""
    return {
        key: mask_secrets(value)
        for key, value in environ.items()
        if key.startswith(_PUBLIC) and not re.search(HIDDEN_NAMES, key)
    }


def measured_in(
    environ: Mapping[str, str], unsafe: str = ""
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the job's variables that measuring processes get, and why they do not get others.

    The second dict has the reason by name; variables that concern no measurement are in neither.
    `unsafe`: who else could have written the source; then variables that name files or code are
    left out.
    """
    variables, left_out = {}, {}
    for name, value in sorted(environ.items()):
        if not name.startswith(_MEASURED_IN):
            continue
        if name in SWEEP_VARIABLES:
            left_out[name] = "the sweep has its own"
        elif unsafe and (re.match(NAMES_CODE, name) or "/" in value):
            left_out[name] = unsafe
        elif "$" in value or "`" in value:
            left_out[name] = "a shell has yet to expand it"
        elif "***" in value or len(value) > _LONGEST_VALUE or not value.isprintable():
            left_out[name] = "its value cannot be passed on"
        else:
            variables[name] = value
    return variables, left_out


_FOR_SLURM = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_WORKING_CLUSTER")


def slurm_environ(environ: Mapping[str, str]) -> dict[str, str]:
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
        return {"": _read_file(typed_path(pattern))}
    return {name: _read_file(typed_path(pattern.replace("{node}", name))) for name in nodes}


def _read_file(path: Path) -> dict[str, str]:
    name = str(path) if str(path).isprintable() else ascii(str(path))
    what = f"the environment file {name}"
    text = read_text(path, _LARGEST_FILE, what, "write it with: env > job.env")
    environ = {}
    for number, line in enumerate(text.replace("\0", "\n").splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = ASSIGNMENT.fullmatch(stripped.removeprefix("export ").strip())
        if match:
            environ[match[1]] = _unquote(match[2])
        elif not environ:
            # Later lines may be the rest of a value with newlines in it, as `env` prints them.
            raise UsageError(
                f"{name} line {number} is not KEY=VALUE; write the file with: env > job.env"
            )
    if not environ:
        raise UsageError(f"{name} has no KEY=VALUE line; write it with: env > job.env")
    return public_variables(environ)


def _unquote(value: str) -> str:
    if value.startswith(('"', "'")):
        try:
            return "".join(shlex.split(value))
        except ValueError:
            return value
    return value
