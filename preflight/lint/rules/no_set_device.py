"""A rank that never chooses its GPU works on GPU 0, with all others of its node."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from preflight.lint.job import backend, entry, init_calls, own_gpu
from preflight.lint.model import Found, Rule, Severity
from preflight.lint.names import constant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.lint.model import Call, Script

_CHOOSES: Final = frozenset((
    "torch.cuda.set_device", "torch.cuda.device", "torch.accelerator.set_device_index",
    "torch.set_default_device", "torch.npu.set_device", "torch.xpu.set_device",
    "torch.get_device_module",
))  # fmt: skip


def _find(script: Script) -> Iterator[Found]:
    inits = init_calls(script)
    if not inits or "nccl" not in backend(script) or not entry(script):
        return
    if any(call.keyword("device_id") is not None or call.open_ended for call in inits):
        return
    if any(call.last == "set_device" or call.name in _CHOOSES for call in script.calls):
        return
    if any(one.target == "os.environ[CUDA_VISIBLE_DEVICES]" for one in script.assigns):
        return
    bare = next((call for call in script.calls if _to_current(call)), None)
    if bare is None or _names_one(script):
        return
    yield Found(
        bare.line,
        "this goes to the current GPU, and the script never says which one that is",
        "unless the launcher shows each rank one GPU only, all of a node work on GPU 0: out of "
        "memory, or NCCL's `Duplicate GPU detected`",
        f"torch.cuda.set_device({own_gpu(script)}) before init_process_group",
    )


def _to_current(call: Call) -> bool:
    """`.cuda()` and `.to("cuda")`: the current device, whichever that is."""
    arguments = (*call.node.args, *(one.value for one in call.node.keywords))
    if call.last == "cuda" and call.receiver:
        return not call.node.args and call.keyword("device") is None and not call.open_ended
    return call.last == "to" and any(constant(one) == "cuda" for one in arguments)


def _names_one(script: Script) -> bool:
    """Whether devices are computed anywhere: `f"cuda:{local_rank}"`, `.cuda(gpu)`."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.JoinedStr) and any(
            isinstance(one, ast.Constant) and "cuda:" in str(one.value) for one in node.values
        ):
            return True
    return any(call.last == "cuda" and call.node.args for call in script.calls) or any(
        call.name == "torch.device" and (len(call.node.args) > 1 or call.keyword("index"))
        for call in script.calls
    )


RULE = Rule("no-set-device", Severity.WARNING, _find)
