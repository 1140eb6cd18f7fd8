"""How many nodes and ranks a launch line starts, and where they meet, to hold against a fleet."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from preflight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ENVIRONMENT: Final = "PET_"
"""torchrun takes each option from PET_<OPTION> where the line does not have it."""

_NODES: Final = ("-N", "--nodes")
_TASKS: Final = ("--ntasks-per-node", "--tasks-per-node")


class Shape(Struct, frozen=True, kw_only=True):
    """A launch as its launcher will understand it. None: not told as a number."""

    launcher: str
    """torchrun, accelerate, deepspeed."""
    nnodes: tuple[int, int] | None = (1, 1)
    """Fewest and most nodes."""
    nproc: int | None = None
    """Ranks per node; torchrun's default is 1."""
    standalone: bool = False
    static: bool = True
    """The static rendezvous, which needs --node-rank; else c10d or another."""
    endpoint: str = ""
    """As --rdzv-endpoint says, else --master-addr where that counts."""
    ignored: tuple[str, ...] = ()
    """Options that have no effect beside the others."""
    node_rank: bool = False
    srun_nodes: int | None = None
    srun_tasks: int | None = None
    """How many nodes srun starts it on, and how often on each."""


def shape_of(
    launcher: str,
    options: Mapping[str, str],
    before: Sequence[str],
    environ: Mapping[str, str],
    nproc: int | None,
) -> Shape | None:
    """Read a launch; None for a launcher whose ranks we cannot count. UsageError for nonsense.

    `before`: the words in front of the launcher, such as srun's own.
    """
    if not launcher:
        return None
    nodes, tasks = _srun(before, _NODES), _srun(before, _TASKS)
    if launcher != "torchrun":
        nnodes = _nnodes(options["nnodes"]) if "nnodes" in options else None
        return Shape(launcher=launcher, nnodes=nnodes, srun_nodes=nodes, srun_tasks=tasks)
    told = {
        key.removeprefix(_ENVIRONMENT).lower().replace("_", "-"): value
        for key, value in environ.items()
        if key.startswith(_ENVIRONMENT)
    }
    options = {**told, **options}
    static = options.get("rdzv-backend", "static") == "static"
    endpoint = options.get("rdzv-endpoint", "")
    masters = tuple(f"--{name}" for name in ("master-addr", "master-port") if name in options)
    by_master = static and not endpoint
    said = options.get("nproc-per-node", "1")
    return Shape(
        launcher=launcher,
        nnodes=_nnodes(options.get("nnodes", "1")),
        nproc=nproc
        if nproc is not None
        else int(said)
        if re.fullmatch("[1-9]\\d{0,3}", said)
        else None,
        standalone="standalone" in options,
        static=static,
        endpoint=options.get("master-addr", "") if by_master else endpoint,
        ignored=() if by_master else masters,
        node_rank="node-rank" in options,
        srun_nodes=nodes,
        srun_tasks=tasks,
    )


def _nnodes(text: str) -> tuple[int, int] | None:
    if "$" in text:
        return None
    match = re.fullmatch(r"([1-9]\d{0,5})(?::([1-9]\d{0,5}))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise UsageError(f"--preflight-launch: --nnodes is {text!a}: give a number, or MIN:MAX")
    return int(match[1]), int(match[2] or match[1])


def _srun(words: Sequence[str], names: Sequence[str]) -> int | None:
    """The number that srun's option has; None where it is not there, or no plain number."""
    if not any(word.rpartition("/")[2] == "srun" for word in words):
        return None
    for at, word in enumerate(words):
        for name in names:
            value = word.removeprefix(name).removeprefix("=") if word.startswith(name) else ""
            value = next(iter(words[at + 1 : at + 2]), "") if word == name else value
            if re.fullmatch(r"[1-9]\d{0,5}", value):
                return int(value)
    return None
