"""CUDA_VISIBLE_DEVICES set inside: what the scheduler gave is overruled, or it comes too late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from preflight.lint.job import makes_group, spawns
from preflight.lint.model import Found, Rule, Severity
from preflight.lint.names import constant

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator

    from preflight.lint.model import Place, Script

_NAME: Final = "CUDA_VISIBLE_DEVICES"
_STARTED: Final = ("accelerate.Accelerator", "deepspeed.initialize")


def _find(script: Script) -> Iterator[Found]:
    started = makes_group(script) or any(True for _ in script.called(_STARTED))
    if not started or spawns(script):
        return  # one process, or one that chooses the GPUs of the ranks that it starts
    for line, value, place in _set(script):
        listed = constant(value)
        if not isinstance(listed, str) or listed.strip() in ("", "-1"):
            continue  # computed, or a process that is to have no GPU
        if place.tests or place.guards:
            continue
        yield Found(
            line,
            f"every rank sees the GPUs {listed[:40]!r}, whatever its launcher or Slurm gave it",
            "LOCAL_RANK counts along this list: `invalid device ordinal` for more ranks than it "
            "has entries, and another job's GPUs where they were not allotted",
            "leave it to the launcher: CUDA_VISIBLE_DEVICES=... torchrun ...",
        )


def _set(script: Script) -> Iterator[tuple[int, ast.expr, Place]]:
    for one in script.assigns:
        if one.target == f"os.environ[{_NAME}]":
            yield one.line, one.value, one.place
    for call in script.called(["os.putenv"]):
        if len(call.node.args) > 1 and constant(call.node.args[0]) == _NAME:
            yield call.line, call.node.args[1], call.place


RULE = Rule("cuda-visible-devices", Severity.WARNING, _find)
