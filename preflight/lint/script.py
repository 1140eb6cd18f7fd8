"""A training script as the rules see it: calls with resolved names, and which ranks get to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from msgspec import Struct

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Iterable, Iterator, Mapping

T = TypeVar("T")


class Severity(StrEnum):
    """How sure and how bad: an error hangs or dies, a warning often does, a hint costs evidence."""

    ERROR = "error"
    WARNING = "warning"
    HINT = "hint"


class Who(StrEnum):
    """Which ranks get past a condition; ALL also where it cannot be told from the text."""

    ALL = "every rank"
    FIRST = "rank 0"
    OTHERS = "all ranks but 0"
    SOME = "some ranks"

    @property
    def rest(self) -> Who:
        """Who does not get past."""
        return {Who.FIRST: Who.OTHERS, Who.OTHERS: Who.FIRST}.get(self, self)


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition on the rank around a line, or before it: `left` when the others went away."""

    who: Who
    line: int
    text: str
    left: bool = False
    other: tuple[str, ...] = ()
    """What those call that do not get past it, on their side of the condition."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a line stands: its function, the conditions and the loops around it."""

    function: str = ""
    """`Trainer.fit`, `main.<locals>.step`; "" for the module itself."""
    guards: tuple[Guard, ...] = ()
    """The innermost, before it one for some ranks if there is any: more do not count."""
    tests: frozenset[str] = frozenset()
    """Of conditions not about the rank: the function's parameters in them; "" for other names."""
    loops: tuple[int, ...] = ()
    """Lines of the loops around it, the outermost first."""

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
    def last(self) -> str:
        """The name behind the last dot."""
        return self.name.rpartition(".")[2]

    @property
    def receiver(self) -> str:
        """The name before the last dot."""
        return self.name.rpartition(".")[0]

    def keyword(self, name: str) -> ast.expr | None:
        """The value given by that keyword."""
        return next((one.value for one in self.node.keywords if one.arg == name), None)

    @property
    def open_ended(self) -> bool:
        """Whether it passes on `**kwargs`, which may hold anything."""
        return any(one.arg is None for one in self.node.keywords)


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


@dataclass(frozen=True)
class Script:
    """All that is known of one file."""

    tree: ast.Module
    imports: Mapping[str, str]
    """Name in the script → what it stands for: `dist` → `torch.distributed`."""
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
    """Line → rules that a comment switches off there; "" for all."""
    memo: dict[object, object] = field(default_factory=dict, compare=False, repr=False)

    def called(self, names: Iterable[str]) -> Iterator[Call]:
        """The calls of functions by these resolved names, in the order of the script."""
        found = sorted(at for name in set(names) for at in self._places.get(name, ()))
        return (self.calls[at] for at in found)

    @cached_property
    def _places(self) -> Mapping[str, list[int]]:
        """Where in `calls` each name stands: rules ask for a few names, once for every finding."""
        places: dict[str, list[int]] = {}
        for at, call in enumerate(self.calls):
            places.setdefault(call.name, []).append(at)
        return places

    def imported(self, *packages: str) -> bool:
        """Whether anything of one of these packages is imported."""
        heads = {name.partition(".")[0] for name in self.imports.values()}
        return any(package in heads for package in packages)


def once(ask: Callable[[Script], T]) -> Callable[[Script], T]:
    """Answer a question about a script once: rules ask it again for every finding."""

    @wraps(ask)
    def answer(script: Script) -> T:
        key = (ask.__module__, ask.__qualname__)
        if key not in script.memo:
            script.memo[key] = ask(script)
        return cast("T", script.memo[key])

    return answer


class Finding(Struct, frozen=True):
    """One line of a script that will do harm: what is there, what will happen, what to do."""

    rule: str
    severity: Severity
    line: int
    sentence: str
    will: str
    remedy: str


class Found(NamedTuple):
    """What a rule says of one line; the rule adds its name and severity."""

    line: int
    sentence: str
    will: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One mistake that can be told from the text; `find` is pure and stays silent when unsure."""

    id: str
    severity: Severity
    find: Callable[[Script], Iterable[Found]]


def rule(id_: str, severity: Severity) -> Callable[[Callable[[Script], Iterable[Found]]], Rule]:
    """Make a rule of the function that finds the mistake."""
    return partial(Rule, id_, severity)
