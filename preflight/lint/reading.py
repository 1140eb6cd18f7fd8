"""Reads the bytes of a file into a `Script`: its calls, and which ranks reach them.

Ranks that `return` under a condition on the rank miss the rest of the function; with `continue` or
`break` they miss the rest of the loop.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from msgspec import Struct

from preflight.lint.operations import ALL_RANKS, FIRST_RANK, UNKNOWN_RANKS, Ranks
from preflight.lint.script import (
    LONGEST_NAME,
    Assign,
    Call,
    Function,
    Guard,
    Place,
    RankSet,
    Script,
    constant,
    dotted,
    imports_of,
    known_names,
    names_in,
)

_LONGEST_TEXT: Final = 60
_MOST_NAMES: Final = 64
"""Names kept of the conditions before a line."""
_MOST_CALLED: Final = 256
"""Names of calls kept per side of a condition: each `elif` has the rest of its chain there."""
_MORE_CALLS: Final = "..."
"""Stands for the calls beyond that limit: the name of no function."""


@dataclass(frozen=True, slots=True)
class _Remaining:
    """The ranks that go on after a statement, when others have left the function or the loop."""

    function: tuple[Guard, ...] = ()
    loop: tuple[Guard, ...] = ()
    flags: frozenset[str] = frozenset()

    def __add__(self, other: _Remaining) -> _Remaining:
        return _Remaining(
            _innermost(self.function + other.function),
            _innermost(self.loop + other.loop),
            _bounded_union(self.flags, other.flags),
        )


class Walker:
    """Collects calls, assignments, functions and classes of one script."""

    def __init__(self, imports: Mapping[str, str], ranks: Ranks) -> None:
        self._imports = imports
        self._ranks = ranks
        self._calls_by_statement: dict[ast.AST, list[str]] = {}
        self.calls: list[Call] = []
        self.assigns: list[Assign] = []
        self.functions: dict[str, Function] = {}
        self.classes: dict[str, tuple[str, ...]] = {}

    def module(self, tree: ast.Module) -> None:
        """Collect from the whole file."""
        self._block(tree.body, Place())

    def _block(self, body: Sequence[ast.stmt], place: Place) -> _Remaining:
        remaining = _Remaining()
        for statement in body:
            inner = replace(
                place,
                guards=_innermost(place.guards + remaining.function + remaining.loop),
                flags=_bounded_union(place.flags, remaining.flags),
            )
            remaining += self._statement(statement, inner)
        return remaining

    def _statement(self, node: ast.stmt, place: Place) -> _Remaining:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node, place)
            case ast.ClassDef():
                self._class(node, place)
            case ast.If():
                return self._if(node, place)
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._loop(node, place)
            case ast.Try() | ast.TryStar():
                return self._try(node, place)
            case ast.With() | ast.AsyncWith():
                self._expressions((manager.context_expr for manager in node.items), place)
                return self._block(node.body, place)
            case _:
                self._simple(node, place)
        return _Remaining()

    def _simple(self, node: ast.stmt, place: Place) -> None:
        self._assignment(node, place)
        children = (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
        self._expressions(children, place)
        for case in node.cases if isinstance(node, ast.Match) else ():
            self._block(case.body, place)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, place: Place) -> None:
        outer = place.function
        prefix = f"{outer}." if outer in self.classes else f"{outer}.<locals>." if outer else ""
        name = f"{prefix}{node.name}"[-LONGEST_NAME:]
        arguments = node.args
        parameters = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        decorators = tuple(dotted(decorator, self._imports) for decorator in node.decorator_list)
        self._expressions((*node.decorator_list, *filter(None, arguments.defaults)), place)
        self.functions[name] = Function(name, frozenset(arg.arg for arg in parameters), decorators)
        last_names = [name.rpartition(".")[2] for name in decorators]
        first_only = [n for n in last_names if n in known_names()["does"]["first_rank_only"]]
        guards = tuple(Guard(FIRST_RANK, node.lineno, f"@{name}") for name in first_only[:1])
        self._block(node.body, Place(function=name, guards=guards))

    def _class(self, node: ast.ClassDef, place: Place) -> None:
        name = f"{place.function}.{node.name}".lstrip(".")[-LONGEST_NAME:]
        self.classes[name] = tuple(dotted(base, self._imports) for base in node.bases)
        self._expressions(node.decorator_list, place)
        self._block(node.body, Place(function=name))

    def _if(self, node: ast.If, place: Place) -> _Remaining:
        self._expressions([node.test], place)
        sides = self._ranks.sides(node.test)
        condition = node.lineno, ast.unparse(node.test)[:_LONGEST_TEXT]
        branches = (node.body, node.orelse)
        remaining = _Remaining()
        for side, body, other_body in zip(sides, branches, branches[::-1], strict=True):
            inside = place
            if side != ALL_RANKS:
                guard = Guard(side, *condition, other_calls=self._calls_in(other_body))
                inside = replace(place, guards=_innermost((*place.guards, guard)))
            elif sides == (ALL_RANKS, ALL_RANKS):
                flags = _bounded_union(place.flags, self._flags_in(node.test, place))
                inside = replace(place, flags=flags)
            self._block(body, inside)
            exit_kind = _exit_kind(body, self._imports)
            if not exit_kind:
                continue
            others = sides[1] if body is node.body else sides[0]
            if others != ALL_RANKS:
                guard = Guard(others, *condition, early_exit=True, other_calls=self._calls_in(body))
                remaining += (
                    _Remaining((guard,)) if exit_kind == "function" else _Remaining(loop=(guard,))
                )
            elif sides == (ALL_RANKS, ALL_RANKS):
                remaining += _Remaining(flags=self._flags_in(node.test, place))
        return remaining

    def _flags_in(self, test: ast.expr, place: Place) -> frozenset[str]:
        """The function's parameters in a condition, and "" if it contains other names."""
        names = names_in(test)
        function = self.functions.get(place.function)
        params = names & function.parameters if function else frozenset[str]()
        return frozenset([*sorted(params)[:_MOST_NAMES], *[""] * (len(params) < len(names))])

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, place: Place) -> _Remaining:
        header = [node.test] if isinstance(node, ast.While) else [node.iter]
        self._expressions(header, place)
        inside = replace(place, loops=(*place.loops, node.lineno))
        remaining = self._block(node.body, inside)
        self._block(node.orelse, place)
        return _Remaining(remaining.function, flags=remaining.flags)

    def _try(self, node: ast.Try | ast.TryStar, place: Place) -> _Remaining:
        remaining = self._block(node.body, place)
        for handler in node.handlers:
            self._block(handler.body, place)
        return remaining + self._block(node.orelse, place) + self._block(node.finalbody, place)

    def _assignment(self, node: ast.stmt, place: Place) -> None:
        value = getattr(node, "value", None)
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(value, ast.expr):
            return
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
            for part in parts:
                if name := self._target(part):
                    self.assigns.append(Assign(name, node.lineno, value, place))

    def _target(self, node: ast.expr) -> str:
        if isinstance(node, ast.Subscript):
            key = constant(node.slice)
            name = dotted(node.value, self._imports)
            return f"{name}[{key}]" if name and isinstance(key, str) else ""
        return dotted(node, self._imports)

    def _expressions(self, nodes: Iterable[ast.expr], place: Place) -> None:
        for node in nodes:
            self._expression(node, place)

    def _expression(self, node: ast.AST, place: Place) -> None:
        if isinstance(node, ast.IfExp):
            self._expression(node.test, place)
            sides = self._ranks.sides(node.test)
            for part, side in zip((node.body, node.orelse), sides, strict=True):
                self._expression(part, self._under_condition(place, side, node.test))
            return
        if isinstance(node, ast.BoolOp):
            for part in node.values:
                self._expression(part, place)
                side = self._ranks.sides(part)[0 if isinstance(node.op, ast.And) else 1]
                place = self._under_condition(place, side, part)
            return
        if isinstance(node, ast.Lambda):
            place = Place(function=f"{place.function}.<lambda>")
        elif isinstance(node, ast.Call) and (name := dotted(node.func, self._imports)):
            self.calls.append(Call(name, node.lineno, node, place))
        for child in ast.iter_child_nodes(node):
            self._expression(child, place)

    def _under_condition(self, place: Place, ranks: RankSet, test: ast.expr) -> Place:
        if ranks == ALL_RANKS:
            return place
        guard = Guard(ranks, test.lineno, ast.unparse(test)[:_LONGEST_TEXT])
        return replace(place, guards=_innermost((*place.guards, guard)))

    def _calls_in(self, body: Sequence[ast.stmt]) -> tuple[str, ...]:
        names = self._names_called(body)
        return (*islice(names, _MOST_CALLED), *(_MORE_CALLS for _ in names[_MOST_CALLED:][:1]))

    def _names_called(self, parts: Iterable[ast.AST]) -> list[str]:
        """The names of all calls, the first _MOST_CALLED and one more; visits each part once."""
        names: dict[str, None] = {}
        for part in parts:
            calls = self._calls_by_statement.get(part)
            if calls is None:
                calls = self._names_called(ast.iter_child_nodes(part))
                if isinstance(part, ast.Call):
                    calls = [dotted(part.func, self._imports), *calls]
                if isinstance(part, ast.stmt):
                    self._calls_by_statement[part] = calls
            names |= dict.fromkeys(calls)
        return [*islice(names, _MOST_CALLED + 1)]


def _bounded_union(a: frozenset[str], b: frozenset[str]) -> frozenset[str]:
    """The union, without a copy if one holds the other; only whether it is empty must be exact."""
    if a <= b or b <= a:
        return max(a, b, key=len)
    return frozenset(sorted(a | b)[:_MOST_NAMES])


def _innermost(guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
    partial = [guard for guard in guards[:-1] if guard.ranks == UNKNOWN_RANKS]
    return (*partial[-1:], *guards[-1:])


def _exit_kind(body: Sequence[ast.stmt], imports: Mapping[str, str]) -> str:
    """What the ranks in a block leave at its end: "function", "loop", or "" for neither."""
    last = body[-1] if body else None
    if isinstance(last, ast.Return):
        return "function"
    if isinstance(last, ast.Continue | ast.Break):
        return "loop"
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        exits = dotted(last.value.func, imports) in known_names()["does"]["exit"]
        return "function" if exits else ""
    return ""


_IGNORE: Final = re.compile(r"#\s*preflight:\s*ignore(?:\[([a-z0-9, _-]*)\])?", re.IGNORECASE)
_PYTHON_2: Final = re.compile(
    r"^[ \t\f]*(?:print\s+[\"'\w]|except\s+[\w.]+\s*,\s*\w+\s*:|exec\s+[\"'])", re.MULTILINE
)


_STRING: Final = re.compile(
    r"""#[^\n]*|(?i:(f|rf|fr))?("{3}|'{3}|"|')(?:\\.|(?!\2).)*+(?:\2)?""", re.DOTALL
)
_LONGEST_FSTRING: Final = 16 << 10
"""Characters; Python 3.11 takes time with the square of them, and of a module's dotted name."""
_ENDLESS: Final = re.compile(r"(?:\.(?:[ \t\f]|\\\r?\n)*+[^\W\d](?:[\w \t\f]|\\\r?\n)*+){33}")


class Unreadable(Struct, frozen=True):
    """Why a file was not checked, and how to correct it."""

    reason: str
    remedy: str


_NO_DATA: Final = "give the script, not its data"
_LONG_NAME: Final = Unreadable("it has a name of over 256 characters or 32 dots", _NO_DATA)


def read_script(content: bytes, path: str) -> Script | Unreadable:
    """Read one file; never raises, whatever is in it."""
    if b"\0" in content:
        return Unreadable("it is not text: it contains NUL bytes", "give the Python source")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except (SyntaxError, UnicodeError, LookupError) as error:
        reason = f"its text does not match its encoding ({_error_text(error)})"
        return Unreadable(reason, "save it as UTF-8, or declare its encoding in the first line")
    if path.endswith(".ipynb") or re.match(r'\s*\{\s*"cells"', text):
        return Unreadable("it is a notebook", "export it: jupyter nbconvert --to script FILE")
    if any(match[1] and len(match[0]) > _LONGEST_FSTRING for match in _STRING.finditer(text)):
        return Unreadable("it has an f-string of over 16 KiB", _NO_DATA)
    if _ENDLESS.search(text):
        return _LONG_NAME
    return _parse(text)


def _parse(text: str) -> Script | Unreadable:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the script are not our subject
            tree = ast.parse(text)
        nodes = (node for node in ast.walk(tree) if not isinstance(node, ast.Constant))
        names = (value for node in nodes for value in vars(node).values() if isinstance(value, str))
        if any(len(name) > LONGEST_NAME for name in names):
            return _LONG_NAME
        return _build_script(tree, text)
    except (RecursionError, MemoryError):
        return Unreadable("it is nested too deeply to parse", _NO_DATA)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        place = f" (line {line})" if line else ""
        if _PYTHON_2.search(text):
            return Unreadable(f"it is Python 2{place}", "torch needs Python 3: translate it first")
        reason = f"Python 3.{sys.version_info.minor} cannot parse it{place}: {_error_text(error)}"
        return Unreadable(reason, "correct it, or run preflight with the job's own Python")


def _error_text(error: Exception) -> str:
    return str(getattr(error, "msg", None) or error)[:120]


def _build_script(tree: ast.Module, text: str) -> Script:
    imports = imports_of(tree)
    ranks = Ranks(imports)
    ranks.learn(tree)
    walker = Walker(imports, ranks)
    walker.module(tree)
    return Script(
        tree=tree,
        imports=imports,
        functions=walker.functions,
        classes=walker.classes,
        calls=tuple(walker.calls),
        assigns=tuple(walker.assigns),
        is_rank=ranks.is_rank,
        dotted=lambda node: dotted(node, imports),
        ignored=_find_ignores(tree, text),
    )


def _find_ignores(tree: ast.Module, text: str) -> Mapping[int, frozenset[str]]:
    """Line → ignored rules; a comment holds for every line of its statement."""
    ignored: dict[int, frozenset[str]] = {}
    if "preflight" not in text:
        return ignored
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and (match := _IGNORE.search(token.string)):
                rules = frozenset(rule.strip() for rule in (match[1] or "").split(","))
                alone = not token.line[: token.start[1]].strip()
                ignored[token.start[0] + alone] = rules
    except (tokenize.TokenError, SyntaxError):
        return ignored
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if first_rules := [ignored[line] for line in lines if line in ignored]:
                ignored |= dict.fromkeys(lines, first_rules[0])
    return ignored
