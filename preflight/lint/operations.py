"""Which calls need every rank: if one rank never makes the call, all others hang in it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from preflight.core.statistics import grouped
from preflight.lint.script import canonical, constant, known_names, once

if TYPE_CHECKING:
    from preflight.lint.script import Call, Function, Script

_MOST: Final = 100
"""Operations counted per function: where functions call each other twice, each call doubles the
number."""
_MOST_BASES: Final = 64
"""Classes to search for a method."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A call that needs every rank, reached directly or through functions of the same file."""

    label: str
    """Its short name: all_reduce."""
    line: int
    """The line of the call that needs every rank."""
    call: Call
    """The call in the function at hand: the operation itself, or a helper that leads to it."""
    saves: bool = False

    @property
    def words(self) -> str:
        """`all_reduce` here, `all_reduce (line 41)` where a helper leads to it."""
        if self.line == self.call.line:
            return self.label
        return f"{self.label} in line {self.line}"


def operation(script: Script, call: Call) -> Operation | None:
    """The operation for which a call needs every rank; None if it needs only some ranks."""
    name = canonical(call.name)
    module, _, last = name.rpartition(".")
    if module == "torch.distributed" and last in known_names()["collectives"]:
        return None if _own_group(script, call, last) else Operation(last, call.line, call)
    if last in known_names()["all_ranks"].get(module, ()):
        return Operation(last, call.line, call)
    if label := known_names()["saves"].get(name):
        group = call.keyword("process_group")
        return None if group is not None else Operation(label, call.line, call, saves=True)
    sync = last == "log" and constant(call.keyword("sync_dist")) is True
    if sync and script.imported("lightning"):
        return Operation("self.log(sync_dist=True)", call.line, call)
    return _of_object(script, call)


def _own_group(script: Script, call: Call, label: str) -> bool:
    """Whether only the ranks of a group in the script take part."""
    at = known_names()["collectives"][label]
    group = call.keyword("group") or call.keyword("process_group")
    if group is None and len(call.node.args) > at:
        group = call.node.args[at]
    if call.open_ended or any(isinstance(argument, ast.Starred) for argument in call.node.args):
        return True
    if group is None or (isinstance(group, ast.Constant) and group.value is None):
        return False
    return not script.dotted(group).endswith("group.WORLD")


def _of_object(script: Script, call: Call) -> Operation | None:
    last, kind = call.last, kind_of(script, call.receiver)
    saves = last in known_names()["object_saves"].get(kind, ())
    if saves or last in known_names()["objects"].get(kind, ()):
        return Operation(f"{call.receiver}.{last}", call.line, call, saves=saves)
    return None


def kind_of(script: Script, receiver: str) -> str:
    """The class of the object with that name in this script; "" if unclear."""
    if not receiver:
        return ""
    usual: str = known_names()["usual"].get(receiver.rpartition(".")[2], "")
    if usual and script.imported(usual.partition(".")[0]):
        return usual
    return _kinds(script).get(receiver, "")


@once
def _kinds(script: Script) -> dict[str, str]:
    kinds: dict[str, str] = {}
    for assign in script.assigns:
        if isinstance(assign.value, ast.Call):
            kind = canonical(script.dotted(assign.value.func))
            kind = known_names()["same_class"].get(kind, kind)
            if kind in known_names()["object_saves"] or kind in known_names()["objects"]:
                kinds.setdefault(assign.target, kind)
    return kinds


def reached(script: Script, call: Call) -> tuple[Operation, ...]:
    """Every operation that a call leads to, itself or through functions of this file."""
    direct = operation(script, call)
    if direct is not None:
        return (direct,)
    function = callee(script, call)
    if function is None:
        return ()
    return tuple(
        Operation(inner.label, inner.line, call, inner.saves) for inner in inside(script, function)
    )


def callee(script: Script, call: Call) -> Function | None:
    """The function of this file that is called, if its name shows it."""
    head, _, last = call.name.rpartition(".")
    if not head:
        around = call.place.function
        local = script.functions.get(f"{around}.<locals>.{last}")
        return local or script.functions.get(last)
    if head not in ("self", "cls"):
        return script.functions.get(call.name)
    owner = _owner(script, call.place.function)
    todo = [owner] if owner else []
    for name in todo:  # grows by bases; classes that name each other are visited once
        if (function := script.functions.get(f"{name}.{last}")) is not None:
            return function
        bases = script.classes.get(name, ())[:8] if len(todo) < _MOST_BASES else ()
        todo += [base for base in dict.fromkeys(bases) if base not in todo]
    return None


def _owner(script: Script, function: str) -> str:
    """The class around a function."""
    parts = function.split(".")
    names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((name for name in names if name in script.classes), "")


def inside(script: Script, function: Function) -> tuple[Operation, ...]:
    """The operations that a function reaches in every distributed run, whatever its caller."""
    if function.name in script.inside:
        return script.inside[function.name]
    script.inside[function.name] = ()  # a function that calls itself adds nothing
    operations: list[Operation] = []
    for call in _calls_by_function(script).get(function.name, ()):
        if call.place.tests & function.parameters:
            continue  # the caller may switch this call off by an argument
        operations += reached(script, call)
        if len(operations) >= _MOST:
            break
    script.inside[function.name] = result = tuple(operations[:_MOST])
    return result


@once
def _calls_by_function(script: Script) -> dict[str, list[Call]]:
    return grouped((call.place.function, call) for call in script.calls)
