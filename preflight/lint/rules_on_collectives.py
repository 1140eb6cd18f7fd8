"""Ranks that get different numbers of batches: the one with more waits at the end of the epoch."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from preflight.lint.job import timeout_words, wraps_model
from preflight.lint.model import Found, Rule, Severity, once
from preflight.lint.operations import reached

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.lint.model import Assign, Call, Script

_LOADER: Final = "torch.utils.data.DataLoader"
_STREAM: Final = "torch.utils.data.IterableDataset"
_EVEN: Final = ("drop_last", "join", "Join", "even_batches", "islice", "cycle")


def _find(script: Script) -> Iterator[Found]:
    if not wraps_model(script) or _cares(script):
        return
    for call in script.called([_LOADER]):
        part = _part(script, call)
        if part is None or call.open_ended or call.keyword("sampler") is not None:
            continue
        step = _step(script)
        if step is not None:
            yield Found(
                call.line,
                f"each rank loads its own part (`{ast.unparse(part)[:60]}`), and nothing makes "
                "the parts equally long",
                f"where the data does not divide by the ranks, those with a batch more wait in "
                f"line {step.line} for {timeout_words(script)}, then the job dies",
                "use DistributedSampler, cut all parts to one length, or train inside of "
                "`with model.join():`",
            )


def _cares(script: Script) -> bool:
    """Whether the script has a word for it anywhere: then it is likely to have thought of it."""
    if any(call.last in _EVEN for call in script.calls):
        return True
    return any(call.keyword(word) is not None for call in script.calls for word in _EVEN)


def _part(script: Script, loader: Call) -> ast.expr | None:
    """What the loader loads, where it is every n-th item from this rank's number on."""
    given = loader.node.args[0] if loader.node.args else loader.keyword("dataset")
    if given is None:
        return None
    for node in _made_of(script, given, loader):
        for one in ast.walk(node):
            if isinstance(one, ast.Slice) and one.step is not None and one.lower is not None:
                if script.is_rank(one.lower):
                    return node
            elif isinstance(one, ast.Call) and script.dotted(one.func) == "range":
                first = one.args[0]
                if len(one.args) == 3 and script.is_rank(first):  # noqa: PLR2004  a step
                    return node
    return None


def _made_of(script: Script, given: ast.expr, loader: Call) -> Iterator[ast.expr]:
    """The expression, and what was assigned to the names in it in the same function."""
    yield given
    todo, seen = _names(script, given), set[str]()
    while todo:
        name = todo.pop()
        seen.add(name)
        one = _assigned(script, name, loader)
        if one is not None:
            yield one.value
            todo |= _names(script, one.value) - seen


def _names(script: Script, node: ast.expr) -> set[str]:
    named = (one for one in ast.walk(node) if isinstance(one, ast.Name | ast.Attribute))
    return {name for one in named if (name := script.dotted(one))}


def _assigned(script: Script, name: str, loader: Call) -> Assign | None:
    one = _first(script).get((name, loader.place.function))
    return one if one is not None and one.line <= loader.line else None


@once
def _first(script: Script) -> dict[tuple[str, str], Assign]:
    """By name and function: what is assigned first."""
    return {(one.target, one.place.function): one for one in reversed(script.assigns)}


@once
def _step(script: Script) -> Call | None:
    """Where ranks wait for each other in a loop of the script: backward, or a collective."""
    for call in script.calls:
        if call.place.loops and (call.last == "backward" or reached(script, call)):
            return call
    return None


RULE = Rule("uneven-batches", Severity.WARNING, _find)
