"""GPU 0 by its number in a script for many ranks: all ranks of a node go there."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from preflight.lint.job import DDP, makes_group, own_gpu
from preflight.lint.model import Found, Rule, Severity
from preflight.lint.names import constant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.lint.model import Call, Script


def _find(script: Script) -> Iterator[Found]:
    by_calls = any("distributed.rpc" in name for name in script.imports.values())
    if not makes_group(script) or by_calls:
        return  # under RPC ranks have different parts, and GPUs by them
    for call in script.calls:
        if call.place.guards or call.place.tests:
            continue  # for one rank only, or for the run that is not distributed
        where = _fixed(call)
        if where:
            yield Found(
                call.line,
                f"{where} is the same GPU on every rank",
                "all ranks of a node use that one: out of memory, or NCCL's "
                "`Duplicate GPU detected`",
                f"use the rank's own: torch.device('cuda', {own_gpu(script)})",
            )


def _fixed(call: Call) -> str:
    """The fixed device as the script names it, of a call that puts the rank's work there."""
    first = call.node.args[0] if call.node.args else None
    value = constant(first)
    if call.last == "set_device" and call.name.startswith("torch."):
        return f"set_device({value!r})" if value in (0, "cuda:0") and value is not False else ""
    if call.name == DDP:
        return _of_ddp(call)
    if call.last in ("to", "cuda") and call.receiver:
        given = value if call.node.args else constant(call.keyword("device"))
        number = call.last == "cuda" and type(given) is int
        return f"{call.last}({given!r})" if given == "cuda:0" or number else ""
    if call.name == "torch.load":
        where = constant(call.keyword("map_location"))
        return f"map_location={where!r}" if where == "cuda:0" else ""
    return ""


def _of_ddp(call: Call) -> str:
    ids = call.keyword("device_ids")
    if not isinstance(ids, ast.List | ast.Tuple) or len(ids.elts) != 1:
        return ""
    number = constant(ids.elts[0])
    return f"device_ids=[{number}]" if type(number) is int else ""


RULE = Rule("fixed-device", Severity.WARNING, _find)
