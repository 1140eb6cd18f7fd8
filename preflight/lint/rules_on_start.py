"""The global rank as the number of a GPU: from the second node on there is no such GPU."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from preflight.lint.model import Found, Rule, Severity, once
from preflight.lint.ranks import variable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.lint.model import Call, Script


def _find(script: Script) -> Iterator[Found]:
    for call in script.called(["torch.cuda.set_device", "torch.device"]):
        for given in _numbers(call):
            if _is_global(script, given) or _holds_one(script, call, given):
                yield Found(
                    call.line,
                    f"the GPU is chosen by the global rank (`{ast.unparse(given)[:40]}`)",
                    "on the second node the numbers go on where the first one's end: "
                    "`invalid device ordinal`",
                    "use int(os.environ['LOCAL_RANK']), which counts from 0 on every node",
                )


def _holds_one(script: Script, call: Call, given: ast.expr) -> bool:
    """Whether the name was given the global rank and nothing else, where this call sees it."""
    name, around = script.dotted(given), call.place.function
    function = script.functions.get(around)
    if not isinstance(given, ast.Name | ast.Attribute) or not name:
        return False
    if function is not None and name in function.parameters:
        return False
    known = _holders(script)
    return known.get((name, around), known.get((name, ""), False))


@once
def _holders(script: Script) -> dict[tuple[str, str], bool]:
    """By name and function: whether every assignment there gives it the global rank."""
    found: dict[tuple[str, str], bool] = {}
    for one in script.assigns:
        key = one.target, one.place.function
        found[key] = found.get(key, True) and _is_global(script, one.value)
    return found


def _numbers(call: Call) -> Iterator[ast.expr]:
    for one in call.node.args:
        if isinstance(one, ast.JoinedStr):
            yield from (each.value for each in one.values if isinstance(each, ast.FormattedValue))
        else:
            yield one


def _is_global(script: Script, node: ast.expr) -> bool:
    """Plain get_rank() or RANK itself; a number that was computed from it is not."""
    if isinstance(node, ast.Call) and script.dotted(node.func) == "int" and node.args:
        return _is_global(script, node.args[0])
    if isinstance(node, ast.Call) and script.dotted(node.func) == "torch.distributed.get_rank":
        return not (node.args or node.keywords)
    return variable(node, script.imports) == "RANK"


RULE = Rule("global-rank-as-device", Severity.WARNING, _find)
