"""A step that one rank skips for what it sees in its own batch: the others wait in backward."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from preflight.lint.job import timeout_words, wraps_model
from preflight.lint.model import Found, Rule, Severity
from preflight.lint.operations import reached

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.lint.model import Call, Script

_OWN: Final = frozenset((
    "torch.isnan", "torch.isinf", "torch.isfinite", "math.isnan", "math.isfinite", "math.isinf",
    "numpy.isnan", "numpy.isfinite", "numpy.isinf",
))  # fmt: skip


def _find(script: Script) -> Iterator[Found]:
    if not wraps_model(script):
        return
    backward = [call for call in script.calls if call.last == "backward"]
    for call in script.called(_OWN):
        after = next((one for one in backward if _behind(call, one)), None)
        leaves = _leaves(script, call) if after is not None else None
        if after is None or leaves is None or _agreed(script, call):
            continue
        yield Found(
            leaves.lineno,
            f"a rank whose own loss is not finite (line {call.line}) skips "
            f"backward in line {after.line}, which averages gradients over all ranks",
            f"the other ranks wait for its gradients in line {after.line} for "
            f"{timeout_words(script)}, then the job dies",
            "agree first: all_reduce the flag (MAX), so that every rank skips the step or none",
        )


def _behind(call: Call, backward: Call) -> bool:
    """Whether the backward pass comes later in the same turn of the same loop."""
    same = backward.place.function == call.place.function
    loops = call.place.loops
    return same and bool(loops) and backward.place.loops == loops and backward.line > call.line


def _leaves(script: Script, call: Call) -> ast.stmt | None:
    """The `continue` or `break` at the end of the `if` whose condition the call is."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.If) and any(one is call.node for one in ast.walk(node.test)):
            last = node.body[-1]
            return last if isinstance(last, ast.Continue | ast.Break) else None
    return None


def _agreed(script: Script, call: Call) -> bool:
    """Whether ranks talk in that loop before the question is asked: the value may be shared."""
    return any(
        one.line <= call.line and one.place.loops == call.place.loops and reached(script, one)
        for one in script.calls
        if one.place.function == call.place.function
    )


RULE = Rule("skipped-step", Severity.WARNING, _find)
