"""A step that one rank skips for what it sees in its own batch: the others wait in backward."""

from __future__ import annotations

import ast
import sys
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from preflight.lint.job import timeout_words, wraps_model
from preflight.lint.model import Found, Rule, Severity, once
from preflight.lint.operations import reached

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.lint.model import Call, Script

    _Loop = tuple[str, tuple[int, ...]]
    """Its function, and the lines of the loops around it."""

_OWN: Final = frozenset((
    "torch.isnan", "torch.isinf", "torch.isfinite", "math.isnan", "math.isfinite", "math.isinf",
    "numpy.isnan", "numpy.isfinite", "numpy.isinf",
))  # fmt: skip


def _find(script: Script) -> Iterator[Found]:
    if not wraps_model(script):
        return
    for call in script.called(_OWN):
        after = _behind(script, call)
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


def _behind(script: Script, call: Call) -> Call | None:
    """The next backward pass in the same turn of the same loop."""
    there = _backward(script).get((call.place.function, call.place.loops), [])
    at = bisect_right(there, call.line, key=lambda one: one.line)
    return there[at] if call.place.loops and at < len(there) else None


@once
def _backward(script: Script) -> dict[_Loop, list[Call]]:
    found: dict[_Loop, list[Call]] = {}
    for call in script.calls:
        if call.last == "backward":
            found.setdefault((call.place.function, call.place.loops), []).append(call)
    return found


@once
def _conditions(script: Script) -> dict[int, ast.stmt]:
    """The last statement of each `if`, by the id of every node in its condition."""
    tests = (node for node in ast.walk(script.tree) if isinstance(node, ast.If))
    return {id(one): node.body[-1] for node in tests for one in ast.walk(node.test)}


def _leaves(script: Script, call: Call) -> ast.stmt | None:
    """The `continue` or `break` at the end of the `if` whose condition the call is."""
    last = _conditions(script).get(id(call.node))
    return last if isinstance(last, ast.Continue | ast.Break) else None


@once
def _first_talk(script: Script) -> dict[_Loop, int]:
    """The first line in each loop that leads to an operation of all ranks."""
    found: dict[_Loop, int] = {}
    for one in script.calls:
        loop = one.place.function, one.place.loops
        if one.line < found.get(loop, sys.maxsize) and reached(script, one):
            found[loop] = one.line
    return found


def _agreed(script: Script, call: Call) -> bool:
    """Whether ranks talk in that loop before the question is asked: the value may be shared."""
    first = _first_talk(script).get((call.place.function, call.place.loops))
    return first is not None and first <= call.line


RULE = Rule("skipped-step", Severity.WARNING, _find)
