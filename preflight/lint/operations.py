"""Which ranks pass a condition, which calls need every rank, and which of these only some reach.

If one rank never makes a call that needs every rank, all others hang in it.

Conditions that the text does not decide are ignored: the rank inside a group of tensor or pipeline
parallelism is a different number, `local_rank == -1` asks whether the job is distributed at all,
and only the run shows which rank `rank == source` means.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from preflight.core.statistics import grouped
from preflight.lint.script import RankSet, canonical, constant, dotted, known_names, names_in, once

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from preflight.lint.script import Call, Function, Guard, Script


Sides = tuple[RankSet, RankSet]
"""The ranks that enter the body of an `if`, and those that enter its `else`."""

ALL_RANKS: Final = RankSet("every rank", "every rank")
"""Also if the text does not decide it."""
FIRST_RANK: Final = RankSet("rank 0", "all ranks but 0")
UNKNOWN_RANKS: Final = RankSet("some ranks", "some ranks")
"""Some ranks, and only the run shows which."""

UNDECIDED: Final[Sides] = (ALL_RANKS, ALL_RANKS)
_UNKNOWN: Final[Sides] = (UNKNOWN_RANKS, UNKNOWN_RANKS)
_FIRST: Final[Sides] = (FIRST_RANK, FIRST_RANK.others)
_HIGHEST_RANK: Final = 10**6
_MOST_NUMBERS: Final = 16
"""Ranks in a list that a sentence names; which ranks pass a longer one remains unknown."""

_FIRST_RANK_NAME: Final = re.compile(
    r"_*(?:is|am|on|i_am)_(?:the_)?(?:local_|global_|world_)?(?:"
    r"(?:main|master|chief|primary|head|root|first)(?:_?(?:process|proc|rank|node|worker))?|"
    r"rank_?(?:zero|0)|(?:zero|0)_rank|zero|process_zero|logging_process)"
    r"|is_(?:local_|world_)?process_zero|is_global_zero|master_process|main_process_flag"
)
_ABOUT_THE_JOB: Final = re.compile(
    r"dist|world|initialized|n_?gpus?\b|num_?proc|ddp|parallel", re.IGNORECASE
)
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_ADAPTER_RANK: Final = re.compile(r"lora|peft|adapter")


class Ranks:
    """Knows which names of one script hold a rank, and which mean "this is rank 0"."""

    def __init__(self, imports: Mapping[str, str]) -> None:
        self._imports = imports
        self._names: dict[str, Sides] = {}
        self._ranks: set[str] = set()

    def learn(self, tree: ast.Module) -> None:
        """Follow `main = rank == 0`, `r = dist.get_rank()` and `def first(): return rank == 0`."""
        for _ in range(2):  # a name may depend on one that is assigned further down
            for node in ast.walk(tree):
                if isinstance(node, ast.Assign) and len(node.targets) == 1:
                    self._learn_assignment(dotted(node.targets[0], self._imports), node.value)
                elif isinstance(node, ast.FunctionDef):
                    self._learn_function(node)

    def _learn_assignment(self, name: str, value: ast.expr) -> None:
        if not name:
            return
        if not isinstance(value, ast.Name | ast.Attribute) and self.is_rank(value):
            self._ranks.add(name)
        elif _is_decided(sides := self.sides(value)):
            self._names[name] = sides

    def _learn_function(self, node: ast.FunctionDef) -> None:
        returns = [part for part in ast.walk(node) if isinstance(part, ast.Return)]
        values = [part.value for part in returns if part.value]
        if len(values) == 1 and _is_decided(sides := self.sides(values[0])):
            self._names[node.name] = sides
            self._names[f"self.{node.name}"] = sides

    def is_rank(self, node: ast.expr) -> bool:
        """Whether an expression is the rank of this process, global or on its node."""
        if isinstance(node, ast.Call) and dotted(node.func, self._imports) in ("int", "str"):
            return len(node.args) == 1 and self.is_rank(node.args[0])
        if variable(node, self._imports) in known_names()["rank"]["variables"]:
            return True
        if isinstance(node, ast.Call) and (node.args or node.keywords):
            return False  # the rank in some group
        if not isinstance(node, ast.Call | ast.Name | ast.Attribute):
            return False
        name = dotted(node, self._imports)
        last = name.rpartition(".")[2]
        if isinstance(node, ast.Call) and not ("get_" in last[:-4] and last.endswith("rank")):
            return name in ("horovod.torch.rank", "horovod.torch.local_rank")
        is_usual = last.lstrip("_").lower() in known_names()["rank"]["names"]
        return (name in self._ranks or is_usual) and not _ADAPTER_RANK.search(name.lower())

    def sides(self, test: ast.expr) -> Sides:
        """The ranks that pass a condition, and those that do not."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self.sides(test.operand)[::-1]
        if isinstance(test, ast.BoolOp):
            return self._sides_of_bool_op(test)
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            return self._sides_of_compare(test.left, test.ops[0], test.comparators[0])
        if isinstance(test, ast.Call | ast.Name | ast.Attribute):
            return self._sides_by_name(test)
        divisor = self._divisor(test)
        return _sides_by_remainder(divisor, 0)[::-1] if divisor else UNDECIDED

    def _divisor(self, node: ast.expr) -> int:
        """The 4 of `rank % 4`; 0 for any other expression."""
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mod):
            return 0
        divisor = constant(node.right) if self.is_rank(node.left) else 0
        return divisor if isinstance(divisor, int) and 1 < divisor <= _HIGHEST_RANK else 0

    def _sides_by_name(self, test: ast.expr) -> Sides:
        if self.is_rank(test):
            return _FIRST[::-1]
        name = dotted(test, self._imports)
        if name in self._names:
            return self._names[name]
        if isinstance(test, ast.Call) and (test.args or test.keywords):
            return UNDECIDED
        return _FIRST if _FIRST_RANK_NAME.fullmatch(name.rpartition(".")[2].lower()) else UNDECIDED

    def _sides_of_bool_op(self, test: ast.BoolOp) -> Sides:
        """`and`: a rank that passes, passes each part; `or`: a rank that fails, passes none."""
        parts = [(part, self.sides(part)) for part in test.values]
        definite = [sides for _, sides in parts if sides != UNDECIDED]
        if not definite:
            return UNDECIDED
        undecided = [part for part, sides in parts if sides == UNDECIDED]
        about_job = all(_is_about_the_job(part) for part in undecided)
        if isinstance(test.op, ast.And):
            return definite[0] if about_job else (definite[0][0], ALL_RANKS)
        return definite[0] if about_job else (ALL_RANKS, definite[0][1])

    def _sides_of_compare(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Sides:
        if divisor := self._divisor(left):
            sides = _sides_by_remainder(divisor, constant(right))
            return {ast.Eq: sides, ast.NotEq: sides[::-1]}.get(type(op), UNDECIDED)
        if not self.is_rank(left):
            if not self.is_rank(right) or not isinstance(op, ast.Eq | ast.NotEq):
                return UNDECIDED
            left, right = right, left
        if isinstance(op, ast.In | ast.NotIn):
            return _sides_of_membership(op, right)
        value = constant(right)
        number = int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
        if not isinstance(number, int) or number > _HIGHEST_RANK:
            return UNDECIDED if number is not None else _UNKNOWN
        return _sides_by_number(op, number)


def _is_decided(sides: Sides) -> bool:
    """Whether the text shows which ranks pass a condition, or which do not."""
    return bool({*sides} - {ALL_RANKS, UNKNOWN_RANKS})


def _sides(words: str, others: str) -> Sides:
    ranks = RankSet(words, others)
    return ranks, ranks.others


def _sides_by_number(op: ast.cmpop, number: int) -> Sides:
    """`rank == 2`, `rank > 0`, `rank < 1`; -1 asks whether the job is distributed."""
    if number < 0 or (number == 0 and isinstance(op, ast.GtE | ast.Lt)):
        return UNDECIDED
    first = number + isinstance(op, ast.Gt | ast.LtE)
    sides = _sides(f"ranks from {first} on", f"ranks below {first}")
    if isinstance(op, ast.Eq | ast.NotEq | ast.Is | ast.IsNot):
        sides = _sides_of_numbers(number)
    elif first == 1:
        sides = _FIRST[::-1]
    return sides[::-1] if isinstance(op, ast.NotEq | ast.IsNot | ast.Lt | ast.LtE) else sides


def _sides_by_remainder(divisor: int, remainder: object) -> Sides:
    """`rank % 4 == 3`."""
    if not isinstance(remainder, int) or not 0 <= remainder < divisor:
        return UNDECIDED
    if divisor == 2:  # noqa: PLR2004  these have names
        return _sides("odd ranks", "even ranks") if remainder else _sides("even ranks", "odd ranks")
    left = f"ranks with rank % {divisor}"
    return _sides(f"{left} == {remainder}", f"{left} != {remainder}")


def _sides_of_membership(op: ast.cmpop, right: ast.expr) -> Sides:
    """`rank in (1, 2)`; `local_rank in (-1, 0)`: the first rank of a job, or the only one."""
    if not isinstance(right, ast.Tuple | ast.List | ast.Set):
        return _UNKNOWN
    values = {constant(node) for node in right.elts} - {-1}
    numbers = [value for value in values if isinstance(value, int) and 0 <= value <= _HIGHEST_RANK]
    if not 0 < len(values) == len(numbers) <= _MOST_NUMBERS:
        return _UNKNOWN
    sides = _sides_of_numbers(*numbers)
    return sides if isinstance(op, ast.In) else sides[::-1]


def _sides_of_numbers(*numbers: int) -> Sides:
    words = ", ".join(map(str, sorted(numbers)))
    return _sides(f"rank{'s' * (len(numbers) > 1)} {words}", f"all ranks but {words}")


def _is_about_the_job(test: ast.expr) -> bool:
    """Whether a condition only asks if the job has other ranks; distributed runs always pass it."""
    return any(_ABOUT_THE_JOB.search(name) for name in names_in(test))


def variable(node: ast.expr, imports: Mapping[str, str]) -> str:
    """`RANK` of os.environ["RANK"], os.environ.get("RANK", 0) and os.getenv("RANK")."""
    if isinstance(node, ast.Subscript) and dotted(node.value, imports) == "os.environ":
        return str(constant(node.slice) or "")
    if isinstance(node, ast.Call) and node.args:
        name = dotted(node.func, imports)
        if name in ("os.environ.get", "os.getenv", "os.environ.pop", "os.environ.setdefault"):
            return str(constant(node.args[0]) or "")
    return ""


_MOST_OPERATIONS: Final = 100
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
    def text(self) -> str:
        """`all_reduce` here, `all_reduce (line 41)` where a helper leads to it."""
        if self.line == self.call.line:
            return self.label
        return f"{self.label} in line {self.line}"


def operation(script: Script, call: Call) -> Operation | None:
    """The operation for which a call needs every rank; None if it needs only some ranks."""
    name = canonical(call.name)
    module, _, last = name.rpartition(".")
    if module == "torch.distributed" and last in known_names()["collectives"]:
        return None if _has_own_group(script, call, last) else Operation(last, call.line, call)
    if last in known_names()["all_ranks"].get(module, ()):
        return Operation(last, call.line, call)
    if label := known_names()["saves"].get(name):
        group = call.keyword("process_group")
        return None if group is not None else Operation(label, call.line, call, saves=True)
    sync = last == "log" and constant(call.keyword("sync_dist")) is True
    if sync and script.imported("lightning"):
        return Operation("self.log(sync_dist=True)", call.line, call)
    return _object_operation(script, call)


def _has_own_group(script: Script, call: Call, label: str) -> bool:
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


def _object_operation(script: Script, call: Call) -> Operation | None:
    last, class_name = call.tail, class_of(script, call.receiver)
    saves = last in known_names()["object_saves"].get(class_name, ())
    if saves or last in known_names()["objects"].get(class_name, ()):
        return Operation(f"{call.receiver}.{last}", call.line, call, saves=saves)
    return None


def class_of(script: Script, receiver: str) -> str:
    """The class of the object with that name in this script; "" if unclear."""
    if not receiver:
        return ""
    usual: str = known_names()["usual"].get(receiver.rpartition(".")[2], "")
    if usual and script.imported(usual.partition(".")[0]):
        return usual
    return _object_classes(script).get(receiver, "")


@once
def _object_classes(script: Script) -> dict[str, str]:
    classes: dict[str, str] = {}
    for assign in script.assigns:
        if isinstance(assign.value, ast.Call):
            name = canonical(script.dotted(assign.value.func))
            name = known_names()["same_class"].get(name, name)
            if name in known_names()["object_saves"] or name in known_names()["objects"]:
                classes.setdefault(assign.target, name)
    return classes


def operations_of(script: Script, call: Call) -> tuple[Operation, ...]:
    """Every operation that a call leads to, itself or through functions of this file."""
    direct = operation(script, call)
    if direct is not None:
        return (direct,)
    function = callee(script, call)
    if function is None:
        return ()
    return tuple(
        Operation(inner.label, inner.line, call, inner.saves)
        for inner in operations_in(script, function)
    )


def callee(script: Script, call: Call) -> Function | None:
    """The function of this file that is called, if its name shows it."""
    head, _, last = call.name.rpartition(".")
    if not head:
        local = script.functions.get(f"{call.place.function}.<locals>.{last}")
        return local or script.functions.get(last)
    if head not in ("self", "cls"):
        return script.functions.get(call.name)
    enclosing = _enclosing_class(script, call.place.function)
    names = [enclosing] if enclosing else []
    for name in names:  # grows by bases; classes that name each other are visited once
        if (function := script.functions.get(f"{name}.{last}")) is not None:
            return function
        bases = script.classes.get(name, ())[:8] if len(names) < _MOST_BASES else ()
        names += [base for base in dict.fromkeys(bases) if base not in names]
    return None


def _enclosing_class(script: Script, function: str) -> str:
    """The class around a function."""
    parts = function.split(".")
    names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((name for name in names if name in script.classes), "")


def operations_in(script: Script, function: Function) -> tuple[Operation, ...]:
    """The operations that a function reaches in every distributed run, whatever its caller."""
    if function.name in script.operations:
        return script.operations[function.name]
    script.operations[function.name] = ()  # a function that calls itself adds nothing
    operations: list[Operation] = []
    for call in _calls_by_function(script).get(function.name, ()):
        if call.place.flags & function.parameters:
            continue  # the caller may switch this call off by an argument
        operations += operations_of(script, call)
        if len(operations) >= _MOST_OPERATIONS:
            break
    script.operations[function.name] = result = tuple(operations[:_MOST_OPERATIONS])
    return result


@once
def _calls_by_function(script: Script) -> dict[str, list[Call]]:
    return grouped((call.place.function, call) for call in script.calls)


@dataclass(frozen=True, slots=True)
class PartialOperation:
    """An operation that only some ranks reach, and the condition that excludes the others."""

    operation: Operation
    guard: Guard
    more: int = 0
    """The number of further operations under the same condition."""


@once
def partial_operations(script: Script) -> tuple[PartialOperation, ...]:
    """Every operation of all ranks that only some ranks reach; one per condition."""
    guarded = list(_guarded_operations(script))
    ranks_by_label = grouped(
        ((operation.call.place.function, operation.label), guard.ranks)
        for operation, guard in guarded
    )
    sides = {place: set(ranks) for place, ranks in ranks_by_label.items()}
    # Two functions may be the two sides of one collective, each for some of the ranks.
    one_sided = {(label, *ranks) for (_, label), ranks in sides.items() if len(ranks) == 1}
    may_call_outside = cache(partial(_may_call_outside, script))
    by_condition: dict[tuple[str, int, RankSet], list[tuple[Operation, Guard]]] = defaultdict(list)
    for operation, guard in guarded:
        function, label = operation.call.place.function, operation.label
        # Only the run shows whether the ranks of two conditions are all ranks of the job.
        meets = len(sides[function, label]) > 1 or (label, guard.ranks.others) in one_sided
        if not meets and not may_call_outside(guard, function):
            by_condition[function, guard.line, guard.ranks].append((operation, guard))
    return tuple(PartialOperation(*rows[0], len(rows) - 1) for rows in by_condition.values())


def _guarded_operations(script: Script) -> Iterator[tuple[Operation, Guard]]:
    for call in script.calls:
        guard = call.place.guard
        if guard is None or any(outer.ranks == UNKNOWN_RANKS for outer in call.place.guards):
            continue
        for operation in operations_of(script, call):
            yield operation, guard


def _may_call_outside(script: Script, guard: Guard, function: str) -> bool:
    """Whether the other side calls code outside this file, which may make the same call."""
    harmless = known_names()["harmless"]
    for name in guard.other_calls:
        head, _, last = name.rpartition(".")
        if not name or last in harmless["methods"] or name in harmless["functions"]:
            continue
        if head.partition(".")[0] in harmless["modules"] and "distributed" not in head:
            continue
        call = _calls_by_name(script).get((name, function))
        is_method = call is not None and callee(script, call) is not None
        if script.functions.get(name) is None and not is_method:
            return True
    return False


@once
def _calls_by_name(script: Script) -> dict[tuple[str, str], Call]:
    """One call for each pair of called name and enclosing function: the pair decides the callee."""
    return {(call.name, call.place.function): call for call in script.calls}
