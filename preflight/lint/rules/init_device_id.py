"""NCCL without device_id guesses a rank's GPU at the first barrier, and wrong ones hang."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.lint.job import backend, init_calls, own_gpu, spawns
from preflight.lint.model import Found, Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.lint.model import Script


def _find(script: Script) -> Iterator[Found]:
    if "nccl" not in backend(script):
        return
    for call in init_calls(script):
        if call.keyword("device_id") is None and not call.open_ended:
            yield Found(
                call.line,
                "init_process_group is not told which GPU this rank has (device_id, torch 2.3)",
                "barrier() guesses it from the rank, and connections are made at the first "
                "collective only: a wrong GPU shows late, as a hang",
                f"device_id=torch.device('cuda', {own_gpu(script)})" + _spawned(script),
            )


def _spawned(script: Script) -> str:
    return ", with the number that spawn() gives each process of a node" if spawns(script) else ""


RULE = Rule("init-device-id", Severity.HINT, _find)
