"""Ranks that disagree about a setting hang at the first collective, each waiting in its own way.

What must be the same, what should be, what must differ, and what each node may choose is in the
TOML files (`alike`). Options of a launch line stand beside the variables as `--nnodes`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from preflight.facts.environ.remark import Remark, told
from preflight.facts.environ.variables import variables
from preflight.facts.words import count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.facts.environ.variables import Alike

_NUMBERS_OF_NODES: Final = ("node-rank", "machine-rank", "rank", "node-id")
_OWN: Final = ("host", "local-addr", "log-dir", "hostname", "output-dir", "cuda-visible-devices")
_SAME: Final = frozenset((
    "context-parallel-size", "data-parallel-size", "dist-backend", "dist-init-addr", "dist-url",
    "dp", "dp-size", "ep", "expert-parallel-size", "main-process-ip", "main-process-port",
    "master-addr", "master-port", "nnodes", "nodes", "nproc-per-node", "num-machines",
    "num-processes", "pipeline-model-parallel-size", "pipeline-parallel-size", "pp", "pp-size",
    "rdzv-backend", "rdzv-endpoint", "rdzv-id", "tensor-model-parallel-size",
    "tensor-parallel-size", "tp", "tp-size", "world-size",
))  # fmt: skip
"""Options that describe the job as a whole: of torchrun, accelerate, SGLang, vLLM, Megatron, and of
torch's own examples."""

_SHOWN: Final = 3
_MANY: Final = 2


def differing(name: str, environs: Mapping[str, Mapping[str, str]]) -> list[Remark]:
    """How a node's settings differ from those of the others, where they must or should not.

    `environs`: the job's environment by node; "" are the nodes that have none of their own.
    """
    named = {node: environ for node, environ in environs.items() if node}
    if name not in named or len(named) < _MANY:
        return []
    found = []
    for setting in sorted({key for environ in named.values() for key in environ}):
        alike = _alike(setting)
        if alike == "free":
            continue
        values = {node: environ.get(setting) for node, environ in named.items()}
        remark = _same(setting, name, values) if alike == "unique" else _odd(setting, name, values)
        if remark is not None:
            found.append(remark)
    return found


def uneven(values_by_name: Mapping[str, Sequence[str | None]]) -> list[Remark]:
    """How the ranks of one node differ among themselves: values in the order of the local ranks."""
    found = []
    for setting, values in sorted(values_by_name.items()):
        alike = _alike(setting)
        if alike in ("free", "unique") or len(set(values)) < _MANY:
            continue
        usual = Counter(values).most_common(1)[0][0]
        at = next(at for at, value in enumerate(values) if value != usual)
        said = f"local rank {at} has {_value(setting, values[at])}, others {_value(setting, usual)}"
        found.append(Remark(said, _advice(setting), "fail" if alike == "must" else "warn"))
    return found


def _odd(setting: str, name: str, values: Mapping[str, str | None]) -> Remark | None:
    mine = values[name]
    others = Counter(value for node, value in values.items() if node != name)
    usual, votes = others.most_common(1)[0]
    if mine == usual or others[mine] >= votes:
        # As many have this value as have that one: both sides say so, unless it is the usual one.
        rival = next((value for value in others if value != mine), mine)
        if rival == mine or 2 * (others[mine] + 1) > len(values):
            return None
        usual, votes = rival, others[rival]
    weight = "fail" if _alike(setting) == "must" else "warn"
    whom = f"{votes} of {count(len(values), 'node')}"
    if len(values) == _MANY:
        whom = next(node for node in values if node != name)
    said = f"{_value(setting, mine)} here, {_value(setting, usual)} on {whom}"
    return Remark(said, _advice(setting), "fail" if weight == "fail" else "warn")


def _same(setting: str, name: str, values: Mapping[str, str | None]) -> Remark | None:
    """A number that only one node may have, on two."""
    mine = values[name]
    twins = [node for node, value in values.items() if value == mine and node != name]
    if mine is None or not twins:
        return None
    listed = ", ".join(twins[:_SHOWN]) + (", ..." if len(twins) > _SHOWN else "")
    said = f"{_value(setting, mine)} here and on {listed}: two nodes cannot have one number"
    return Remark(said, f"number the nodes: {setting} 0 to {len(values) - 1}")


def _alike(setting: str) -> Alike:
    if setting.startswith("-"):
        option = setting.lstrip("-").replace("_", "-")
        if option in _NUMBERS_OF_NODES:
            return "unique"
        if option in _OWN:
            return "free"
        return "must" if option in _SAME else "free"
    known = variables().get(setting)
    if known is not None:
        return known.alike
    return "should" if setting.startswith("NCCL_") else "free"


def _value(setting: str, value: str | None) -> str:
    if value is None:
        return f"{setting} not set"
    known = variables().get(setting)
    if known is not None and known.type == "secret":
        return f"another {setting}"
    return f"{setting} {value[:40]}" if setting.startswith("-") else told(setting, value)


def _advice(setting: str) -> str:
    if _alike(setting) == "must":
        return f"give every rank the same {setting}: they would wait for one another for ever"
    return f"give every node the same {setting}, or make sure that it is meant"
