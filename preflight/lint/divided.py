"""Where ranks part: one side of a condition goes into a collective, the other never comes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from preflight.lint.model import Who, once
from preflight.lint.operations import callee, reached

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.lint.model import Call, Guard, Script
    from preflight.lint.operations import Operation

_HARMLESS: Final = frozenset((
    "print", "len", "open", "range", "enumerate", "zip", "list", "dict", "set", "tuple", "str",
    "int", "float", "bool", "min", "max", "sum", "isinstance", "getattr", "setattr", "type",
    "ValueError", "RuntimeError", "format", "sorted", "any", "all", "tqdm",
))  # fmt: skip
_HARMLESS_MODULES: Final = frozenset((
    "logging", "logger", "log", "LOG", "_logger", "os", "sys", "time", "json", "math", "random",
    "numpy", "wandb", "pathlib", "shutil", "torch", "writer", "args", "tqdm", "warnings", "re",
    "datetime", "contextlib", "collections", "copy", "glob", "yaml", "pickle", "functools",
))  # fmt: skip
_HARMLESS_METHODS: Final = frozenset((
    "info", "warning", "warn", "debug", "error", "exception", "append", "extend", "format", "item",
    "write", "join", "get", "items", "keys", "values", "update", "exists", "to", "cuda", "cpu",
    "eval", "train", "add_scalar", "log", "set_description", "set_postfix", "mkdir", "close",
    "flush", "strip", "split", "startswith", "endswith", "setLevel", "addHandler", "numel", "size",
    "zero_grad", "set_epoch", "detach", "float", "mean", "copy", "pop", "replace", "parse_args",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Divided:
    """An operation that only some ranks get to, and the condition that keeps the others away."""

    operation: Operation
    guard: Guard
    more: int = 0
    """Further operations behind the same condition."""


@once
def divided(script: Script) -> tuple[Divided, ...]:
    """Every place where some ranks alone get to an operation of all; one per condition."""
    found: dict[tuple[str, int, Who], list[Divided]] = defaultdict(list)
    guarded = list(_guarded(script))
    sides: dict[tuple[str, str], set[Who]] = defaultdict(set)
    for one, guard in guarded:
        sides[one.call.place.function, one.label].add(guard.who)
    # Two functions may be the two sides of one meeting: each has one of them only.
    comes: dict[tuple[int, str], bool] = {}
    lone = {(label, *who) for (_, label), who in sides.items() if len(who) == 1}
    for one, guard in guarded:
        here = sides[one.call.place.function, one.label]
        meets = guard.who.rest in here or (one.label, guard.who.rest) in lone
        where = id(guard), one.call.place.function
        if where not in comes:
            comes[where] = _may_come(script, guard, one)
        if meets or comes[where]:
            continue
        found[one.call.place.function, guard.line, guard.who].append(Divided(one, guard))
    return tuple(
        Divided(several[0].operation, several[0].guard, len(several) - 1)
        for several in found.values()
    )


def _guarded(script: Script) -> Iterator[tuple[Operation, Guard]]:
    for call in script.calls:
        guard = call.place.guard
        if guard is None or any(each.who is Who.SOME for each in call.place.guards):
            continue
        for one in reached(script, call):
            yield one, guard


def _may_come(script: Script, guard: Guard, one: Operation) -> bool:
    """Whether the other side calls something that this file does not show: it may wait there."""
    for name in guard.other:
        head, _, last = name.rpartition(".")
        if not name or last in _HARMLESS_METHODS or name in _HARMLESS:
            continue
        if head.partition(".")[0] in _HARMLESS_MODULES and "distributed" not in head:
            continue
        if script.functions.get(name) is None and not _method(script, name, one):
            return True
    return False


def _method(script: Script, name: str, one: Operation) -> bool:
    """Whether the name is that of a method of the same class in this file."""
    call = _named(script).get((name, one.call.place.function))
    return call is not None and callee(script, call) is not None


@once
def _named(script: Script) -> dict[tuple[str, str], Call]:
    """By name and function around it, which tell what is called: one call of each."""
    return {(call.name, call.place.function): call for call in script.calls}
