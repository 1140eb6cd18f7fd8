"""Logging left on slows every step; nothing left on, and a hang tells nobody anything."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Final

from preflight.facts.environ.numbers import number
from preflight.facts.environ.remark import Remark, told
from preflight.facts.environ.variables import variables

if TYPE_CHECKING:
    from collections.abc import Mapping

_EVERY_CALL: Final = frozenset(("ALL", "COLL", "CALL", "P2P", "NET", "PROXY"))
"""Subsystems that write a line for every operation or message, not only at the start."""

_RECORDER: Final = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_ADVICE: Final = (
    "export TORCH_FR_BUFFER_SIZE=2000 (torch before 2.8: TORCH_NCCL_TRACE_BUFFER_SIZE), "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1 and NCCL_DEBUG=WARN"
)


def too_loud(environ: Mapping[str, str]) -> list[Remark]:
    """Settings for debugging that cost a production run its speed, or its disk."""
    level = environ.get("NCCL_DEBUG", "").strip().upper()
    parts = {part.strip().upper() for part in environ.get("NCCL_DEBUG_SUBSYS", "").split(",")}
    found = []
    if level == "TRACE":
        said = "NCCL_DEBUG=TRACE logs every call of every rank"
        found.append(Remark(said, "use NCCL_DEBUG=WARN in production", "warn"))
    elif level == "INFO" and parts & _EVERY_CALL:
        listed = told("NCCL_DEBUG_SUBSYS", environ["NCCL_DEBUG_SUBSYS"])
        said = f"NCCL_DEBUG=INFO with {listed} logs every operation of every rank"
        found.append(Remark(said, "use NCCL_DEBUG=WARN, or unset NCCL_DEBUG_SUBSYS", "warn"))
    for name in filter(environ.__contains__, variables()):
        value, one = environ[name].strip(), variables()[name]
        key = "1" if one.type == "boolean" and value.lower() in ("true", "yes", "y", "t") else value
        cost = one.loud.get(key.upper()) if value else None
        if cost:
            said = f"{told(name, value)}: {cost}"
            found.append(Remark(said, f"unset {quote(name)} outside of debugging", "warn"))
    return found


def too_quiet(environ: Mapping[str, str]) -> list[Remark]:
    """What a hang or crash will leave to read: nothing, where this says so."""
    recorder = next((name for name in _RECORDER if name in environ), None)
    if recorder and number(environ[recorder], "stoi") == 0:
        said = f"{recorder}=0: no flight recorder, a hang will not tell who waits for whom"
        return [Remark(said, f"set {recorder}=2000", "warn")]
    logs = environ.get("NCCL_DEBUG", "").strip().upper() not in ("", "NONE", "VERSION")
    if recorder or logs or environ.get("TORCHELASTIC_ERROR_FILE"):
        return []
    said = (
        "debugging is off altogether: no flight recorder asked for (only new torch keeps one "
        "unasked), no error file, no NCCL_DEBUG; a hang will leave nothing to read"
    )
    return [Remark(said, _ADVICE, "warn")]
