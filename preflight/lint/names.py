"""What a name in a script stands for, and what the script says of its job."""

from __future__ import annotations

import ast
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from preflight.lint.script import Who, once

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preflight.lint.script import Call, Script


_SAME: Final = (
    ("torch.distributed.distributed_c10d.", "torch.distributed."),
    ("torch.distributed.nn.functional.", "torch.distributed."),
    ("torch.distributed.nn.", "torch.distributed."),
    ("deepspeed.comm.", "torch.distributed."),
    ("torch.nn.parallel.distributed.", "torch.nn.parallel."),
    ("torch.distributed.fsdp.fully_sharded_data_parallel.", "torch.distributed.fsdp."),
    ("torch.distributed.checkpoint.state_dict_saver.", "torch.distributed.checkpoint."),
    ("torch.distributed.checkpoint.state_dict_loader.", "torch.distributed.checkpoint."),
    ("lightning.pytorch.", "lightning."),
    ("pytorch_lightning.", "lightning."),
    ("lightning_fabric.", "lightning.fabric."),
)
"""Other addresses of the same functions."""


LONGEST_NAME: Final = 256
"""Characters: a call's name is kept with each call, a class's with each method."""
_MOST_PARTS: Final = 32


def imports_of(tree: ast.Module) -> dict[str, str]:
    """Every name that an import anywhere in the file binds, and what it stands for."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                name = one.name if one.asname else one.name.partition(".")[0]
                found[one.asname or name] = name
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for one in node.names:
                found[one.asname or one.name] = f"{module}.{one.name}"
    return found


def dotted(node: ast.expr, imports: Mapping[str, str]) -> str:
    """`torch.distributed.barrier` for `dist.barrier`; "" for what has no name, or an endless one.

    The name of a call in the middle stands for its result: `Accelerator().gather`.
    """
    parts: list[str] = []
    while len(parts) <= _MOST_PARTS:
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        else:
            break
    if not isinstance(node, ast.Name):
        return ""
    parts.append(imports.get(node.id, node.id))
    return canonical(".".join(reversed(parts)))


def canonical(name: str) -> str:
    """One address for what a package offers under several."""
    for other, usual in _SAME:
        if name.startswith(other):
            name = usual + name[len(other) :]
    return name


def names_in(node: ast.AST) -> frozenset[str]:
    """The bare names and attributes that an expression mentions: `x` for x, `.flag` for y.flag."""
    attributes = (f".{one.attr}" for one in ast.walk(node) if isinstance(one, ast.Attribute))
    owners = {id(one.value) for one in ast.walk(node) if isinstance(one, ast.Attribute)}
    bare = (one.id for one in ast.walk(node) if isinstance(one, ast.Name) and id(one) not in owners)
    return frozenset((*attributes, *bare))


def constant(node: ast.expr | None) -> object:
    """The value of a literal, also of -1; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = constant(node.operand)
        return -value if isinstance(value, int | float) else None
    return node.value if isinstance(node, ast.Constant) else None


INIT: Final = "torch.distributed.init_process_group"
DDP: Final = "torch.nn.parallel.DistributedDataParallel"
_WRAPS: Final = (DDP, "torch.distributed.fsdp.FullyShardedDataParallel",
                 "torch.distributed.fsdp.fully_shard")  # fmt: skip
_FRAMEWORKS: Final = ("accelerate", "lightning", "pytorch_lightning", "deepspeed", "horovod",
                      "composer", "ray")  # fmt: skip
_MINUTE_S: Final = 60


@once
def init_calls(script: Script) -> tuple[Call, ...]:
    """Where the script itself makes the process group; a world of one is none."""
    return tuple(
        call for call in script.called([INIT]) if constant(call.keyword("world_size")) != 1
    )


def is_distributed(script: Script) -> bool:
    """Whether anything in it is for several ranks."""
    if script.imported(*_FRAMEWORKS):
        return True
    if any(name.startswith("torch.distributed") for name in script.imports.values()):
        return True
    if any(call.name.startswith("torch.distributed.") for call in script.calls):
        return True
    return any(True for _ in script.called([*_WRAPS, "transformers.Trainer"]))


def makes_group(script: Script) -> bool:
    """Whether this file starts the job's ranks up, or wraps the model for them by itself."""
    return bool(init_calls(script)) or wraps_model(script)


def wraps_model(script: Script) -> bool:
    """Whether it wraps a model by itself, so that its backward passes need every rank."""
    return any(True for _ in script.called(_WRAPS))


@once
def spawns(script: Script) -> bool:
    """Whether it starts its ranks by itself: torchrun has no part in it."""
    return any(call.last in ("spawn", "start_processes") for call in script.calls)


def own_gpu(script: Script) -> str:
    """The expression for a rank's GPU: torchrun gives LOCAL_RANK, `spawn` an argument."""
    return "local_rank" if spawns(script) else "int(os.environ['LOCAL_RANK'])"


@once
def backend(script: Script) -> str:
    """The backend that every `init_process_group` names: "" where they differ or are variables."""
    told = set()
    for call in init_calls(script):
        given = call.node.args[0] if call.node.args else call.keyword("backend")
        value = constant(given)
        told.add(value if isinstance(value, str) else "")
    return told.pop().lower() if len(told) == 1 else ""


@once
def timeout_words(script: Script) -> str:
    """How long a rank waits for one that never comes, as the script sets it or by default."""
    for call in init_calls(script):
        given = call.keyword("timeout")
        if given is not None:
            seconds = _seconds(script, given)
            return _worded(seconds) if seconds else f"as long as line {call.line} says"
    if "nccl" in (told := backend(script)):
        return "10 min (NCCL's default)"
    return "30 min (gloo's default)" if told == "gloo" else "10 min (NCCL's default; gloo: 30)"


def _worded(seconds: float) -> str:
    return f"{seconds / _MINUTE_S:g} min" if seconds >= _MINUTE_S else f"{seconds:g} s"


def _seconds(script: Script, node: ast.expr) -> float | None:
    """`timedelta(minutes=30)`, in seconds; None where it is computed."""
    if not isinstance(node, ast.Call) or script.dotted(node.func).split(".")[-1] != "timedelta":
        return None
    positional = [_number(one) for one in node.args]
    named = {one.arg or "": _number(one.value) for one in node.keywords}
    if None in positional or None in named.values():
        return None
    try:
        return timedelta(*positional, **named).total_seconds()  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        return None


def _number(node: ast.expr) -> float | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = _number(node.left), _number(node.right)
        return None if left is None or right is None else left * right
    value = constant(node)
    return float(value) if isinstance(value, int | float) else None


def alone_words(who: Who) -> tuple[str, str]:
    """(subject, "waits"/"wait") for a sentence about those ranks."""
    return str(who), "waits" if who is Who.FIRST else "wait"


def entry(script: Script) -> bool:
    """Whether the file is started itself: `if __name__ == "__main__"`, or work at its top level."""
    for node in script.tree.body:
        if isinstance(node, ast.If) and any(
            isinstance(one, ast.Name) and one.id == "__name__" for one in ast.walk(node.test)
        ):
            return True
    return any(not call.place.function for call in init_calls(script))
