"""What a name in a script stands for, by the script's own imports."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """`torch.distributed.barrier` for `dist.barrier`; "" for what has no name.

    The name of a call in the middle stands for its result: `Accelerator().gather`.
    """
    parts: list[str] = []
    while True:
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
