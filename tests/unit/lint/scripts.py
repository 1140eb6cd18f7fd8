"""Small training scripts and the findings in them."""

from __future__ import annotations

from textwrap import dedent

from preflight.lint import lint
from preflight.lint.script import Severity

HEAD = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
"""


def found(text: str, *, head: str = HEAD) -> dict[str, list[int]]:
    """Rule → lines of its errors and warnings, counted from the first line of `text`."""
    offset = head.count("\n")
    lines: dict[str, list[int]] = {}
    for one in lint((head + dedent(text).lstrip()).encode(), "train.py").findings:
        if one.severity is not Severity.HINT:
            lines.setdefault(one.rule, []).append(one.line - offset)
    return lines


def hints(text: str, *, head: str = HEAD) -> set[str]:
    """The rules of all hints."""
    result = lint((head + dedent(text).lstrip()).encode(), "train.py")
    return {one.rule for one in result.findings if one.severity is Severity.HINT}
