"""A training script as the rules see it: its calls, the ranks that reach them, the group."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, cached_property, lru_cache, partial
from typing import Any, Final, NamedTuple

from msgspec import Struct

from preflight.core.files import shipped_table
from preflight.core.statistics import grouped


class Severity(StrEnum):
    """An error hangs or kills the job, a warning often does, a hint only costs evidence."""

    ERROR = "error"
    WARNING = "warning"
    HINT = "hint"


class RankSet(NamedTuple):
    """Which ranks pass a condition, and which do not, in words; equal words mean equal ranks."""

    words: str
    words_of_others: str

    @property
    def others(self) -> RankSet:
        """The ranks that do not pass."""
        return RankSet(self.words_of_others, self.words)


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition on the rank around a line, or before it if the other ranks exited early."""

    ranks: RankSet
    line: int
    text: str
    early_exit: bool = False
    other_calls: tuple[str, ...] = ()
    """What the other ranks call on their side of the condition."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a line stands: its function, the conditions and the loops around it."""

    function: str = ""
    """`Trainer.fit`, `main.<locals>.step`; "" for the module itself."""
    guards: tuple[Guard, ...] = ()
    """The innermost, preceded by one for some ranks if there is any; others do not matter."""
    flags: frozenset[str] = frozenset()
    """The function's parameters in conditions not about the rank; "" for other names."""
    loops: tuple[int, ...] = ()
    """Lines of the loops around it, the outermost first."""

    @property
    def loop(self) -> tuple[str, tuple[int, ...]]:
        """The innermost loop, or the function itself: equal for lines of the same iteration."""
        return self.function, self.loops

    @property
    def guard(self) -> Guard | None:
        """The innermost condition that keeps some ranks away."""
        return self.guards[-1] if self.guards else None


@dataclass(frozen=True, slots=True)
class Call:
    """One call; `name` as imports resolve it: `torch.distributed.barrier`, `self.evaluate`."""

    name: str
    line: int
    node: ast.Call
    place: Place

    @property
    def tail(self) -> str:
        """The name after the last dot."""
        return self.name.rpartition(".")[2]

    @property
    def receiver(self) -> str:
        """The name before the last dot."""
        return self.name.rpartition(".")[0]

    def keyword(self, name: str) -> ast.expr | None:
        """The value given by that keyword."""
        return next((keyword.value for keyword in self.node.keywords if keyword.arg == name), None)

    @property
    def open_ended(self) -> bool:
        """Whether it passes `**kwargs`, which may hold any argument."""
        return any(keyword.arg is None for keyword in self.node.keywords)


@dataclass(frozen=True, slots=True)
class Assign:
    """One assignment; `target` like a name of a call, or `os.environ[RANK]`."""

    target: str
    line: int
    value: ast.expr
    place: Place


@dataclass(frozen=True, slots=True)
class Function:
    """One function or method of the script."""

    name: str
    parameters: frozenset[str]
    decorators: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Script:
    """All that is known of one file."""

    tree: ast.Module
    imports: Mapping[str, str]
    """Name in the script → full name: `dist` → `torch.distributed`."""
    functions: Mapping[str, Function]
    classes: Mapping[str, tuple[str, ...]]
    """Class → the names of its bases."""
    calls: tuple[Call, ...]
    assigns: tuple[Assign, ...]
    is_rank: Callable[[ast.expr], bool]
    """Whether an expression is this process's rank, global or local."""
    dotted: Callable[[ast.expr], str]
    """The name of an expression as imports resolve it; "" where it has none."""
    ignored: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """Line → rules that a comment ignores there; "" for all."""
    operations: dict[str, tuple[Any, ...]] = field(default_factory=dict, repr=False)
    """Function → its operations, once `operations_in` has found them."""

    def called(self, names: Iterable[str]) -> Iterator[Call]:
        """The calls of functions by these resolved names, in the order of the script."""
        indices = sorted(at for name in set(names) for at in self._call_indices.get(name, ()))
        return (self.calls[at] for at in indices)

    def calls_any(self, names: Iterable[str]) -> bool:
        """Whether one of these functions is called."""
        return any(name in self._call_indices for name in names)

    @cached_property
    def _call_indices(self) -> Mapping[str, list[int]]:
        """Name → its indices in `calls`: rules look up a few names for every finding."""
        return grouped((call.name, at) for at, call in enumerate(self.calls))

    def imported(self, *packages: str) -> bool:
        """Whether anything of one of these packages is imported."""
        heads = {name.partition(".")[0] for name in self.imports.values()}
        return any(package in heads for package in packages)


once = lru_cache(maxsize=1)
"""Caches a function of a script: rules call it again for every finding."""


class Finding(Struct, frozen=True):
    """One line of a script that will do harm: what it does, what will happen, what to do."""

    rule: str
    severity: Severity
    line: int
    sentence: str
    will: str
    remedy: str


class Mistake(NamedTuple):
    """One mistake in one line; the rule adds its id and severity to make a `Finding`."""

    line: int
    sentence: str
    will: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One mistake that the text shows; `find` is pure and reports nothing when unsure."""

    id: str
    severity: Severity
    find: Callable[[Script], Iterable[Mistake]]


def rule(id_: str, severity: Severity) -> Callable[[Callable[[Script], Iterable[Mistake]]], Rule]:
    """Make a rule of the function that finds the mistake."""
    return partial(Rule, id_, severity)


@cache
def known_names() -> dict[str, Any]:
    """The names of functions, classes and modules that the rules know, from names.toml."""
    return shipped_table(__file__, "names.toml")


LONGEST_NAME: Final = 256
"""Characters: a call's name is kept with each call, a class's with each method."""
_MOST_PARTS: Final = 32


def imports_of(tree: ast.Module) -> dict[str, str]:
    """Every name that an import anywhere in the file binds, and its full name."""
    imports: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                imports[alias.asname or name] = name
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                imports[alias.asname or alias.name] = f"{module}.{alias.name}"
    return imports


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
    """The usual import path of a name that a package exports under several."""
    for alias, usual in known_names()["same_path"].items():
        if name.startswith(alias):
            name = usual + name[len(alias) :]
    return name


def names_in(node: ast.AST) -> frozenset[str]:
    """The bare names and attributes that an expression mentions: `x` for x, `.flag` for y.flag."""
    attributes = [part for part in ast.walk(node) if isinstance(part, ast.Attribute)]
    names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
    owners = {id(part.value) for part in attributes}
    bare = [name.id for name in names if id(name) not in owners]
    return frozenset((*(f".{part.attr}" for part in attributes), *bare))


def constant(node: ast.expr | None) -> object:
    """The value of a literal, also of -1; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = constant(node.operand)
        return -value if isinstance(value, int | float) else None
    return node.value if isinstance(node, ast.Constant) else None


INIT: Final = "torch.distributed.init_process_group"
DDP: Final = "torch.nn.parallel.DistributedDataParallel"


@once
def init_calls(script: Script) -> tuple[Call, ...]:
    """The calls that create the process group; a world of one rank does not count."""
    calls = script.called([INIT])
    return tuple(call for call in calls if constant(call.keyword("world_size")) != 1)


def is_distributed(script: Script) -> bool:
    """Whether anything in it is for several ranks."""
    if script.imported(*known_names()["frameworks"]["names"]):
        return True
    if any(name.startswith("torch.distributed") for name in script.imports.values()):
        return True
    if any(call.name.startswith("torch.distributed.") for call in script.calls):
        return True
    return wraps_model(script) or script.calls_any(["transformers.Trainer"])


def makes_group(script: Script) -> bool:
    """Whether this file creates the process group or wraps the model itself."""
    return bool(init_calls(script)) or wraps_model(script)


def wraps_model(script: Script) -> bool:
    """Whether it wraps a model itself, so that its backward passes need every rank."""
    return script.calls_any(known_names()["does"]["wrap_model"])


@once
def spawns(script: Script) -> bool:
    """Whether it starts its ranks itself, without torchrun."""
    return any(call.tail in ("spawn", "start_processes") for call in script.calls)


def own_gpu(script: Script) -> str:
    """The expression for a rank's GPU: torchrun gives LOCAL_RANK, `spawn` an argument."""
    return "local_rank" if spawns(script) else "int(os.environ['LOCAL_RANK'])"


@once
def backend(script: Script) -> str:
    """The backend that every `init_process_group` names: "" where they differ or are variables."""
    names = set()
    for call in init_calls(script):
        argument = call.node.args[0] if call.node.args else call.keyword("backend")
        value = constant(argument)
        names.add(value if isinstance(value, str) else "")
    return names.pop().lower() if len(names) == 1 else ""


@once
def timeout_words(script: Script) -> str:
    """How long a rank waits for a missing one: where the script says it, or the default."""
    for call in init_calls(script):
        if call.keyword("timeout") is not None:
            return f"the timeout in line {call.line}"
    if "nccl" in (name := backend(script)):
        return "10 min (NCCL's default)"
    return "30 min (gloo's default)" if name == "gloo" else "10 min (NCCL's default; gloo: 30)"


@once
def entry_inits(script: Script) -> tuple[Call, ...]:
    """`init_calls` of a file that is run itself: `__name__ == "__main__"`, or top-level work."""
    inits = init_calls(script)
    tests = [node.test for node in script.tree.body if isinstance(node, ast.If)]
    names = (part.id for test in tests for part in ast.walk(test) if isinstance(part, ast.Name))
    has_main = "__name__" in names
    return inits if has_main or any(not call.place.function for call in inits) else ()
