"""Every regular expression of the product, and the methods by which the product applies it.

They are found in three ways, so that none escapes: as compiled expressions that a module holds, as
arguments in calls of `re` and in `Meta(pattern=...)`, and as strings in data (symptoms, places).
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preflight.checks.host import test_host_log
from preflight.checks.net import test_nic_log
from preflight.hang.diagnose.places import knowledge
from preflight.hang.explain.symptom import shipped
from preflight.report.hide import Hider

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    Regex = re.Pattern[Any]
    Uses = dict[Regex, set[tuple[str, str]]]
    """Each expression with the places (`preflight/lint/reading.py:_IGNORE`) and methods of it."""

_ROOT = Path(__file__).parents[2]
_PAYLOAD = _ROOT / "preflight" / "payload"
_FLAGS_AT = {
    **dict.fromkeys(("search", "match", "fullmatch", "findall", "finditer"), 2),
    "compile": 1,
    "split": 3,
    "sub": 4,
    "subn": 4,
}
"""The methods of `re`, and where their flags stand."""
_DEEP = 4


@cache
def collect() -> tuple[Uses, set[str]]:
    """All expressions, and the calls of `re` whose expression is known only when they run."""
    uses: Uses = defaultdict(set)
    unread: set[str] = set()
    for place, module, tree in _sources():
        methods = _methods_by_name(tree)
        for name, value in vars(module).items():
            for regex in _held(value):
                uses[regex] |= {(f"{place}:{name}", method) for method in methods.get(name, ())}
        for line, code, method, argument, flags in _calls(tree):
            try:
                regex = re.compile(_value(argument, module), _value(flags, module) if flags else 0)
            except NameError:  # made of a local variable; in a comprehension a module may hold it
                unread.add(f"{place}: {code}")
                continue
            known = uses[regex]  # what is compiled is held under a name, or else searched for
            known |= {(f"{place}:{line}", method)} if method != "compile" else set()
    for regex, where in _data():
        uses[regex].add(where)
    return {regex: known or {("a local name", "search")} for regex, known in uses.items()}, unread


def _sources() -> Iterator[tuple[str, ModuleType, ast.Module]]:
    """Every module of the product with its path and its syntax tree."""
    if str(_PAYLOAD) not in sys.path:
        sys.path.append(str(_PAYLOAD))  # its modules are imported as they are on a node
    for folder in ("preflight", "checks"):
        for path in sorted((_ROOT / folder).rglob("*.py")):
            base = _PAYLOAD if path.is_relative_to(_PAYLOAD) else _ROOT
            parts = path.relative_to(base).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            text = path.read_text("utf-8")
            if name and not name.endswith("__main__") and re.search(r"\bre\b|[pP]attern", text):
                yield (
                    path.relative_to(_ROOT).as_posix(),
                    importlib.import_module(name),
                    ast.parse(text),
                )


def _methods_by_name(tree: ast.Module) -> dict[str, set[str]]:
    """Name of a module -> methods called on it, in `_LINE.match(...)`, or on what it holds."""
    found: dict[str, set[str]] = defaultdict(set)
    loose = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _FLAGS_AT:
            if isinstance(node.value, ast.Name):
                found[node.value.id].add(node.attr)
            loose.add(node.attr)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in found:
            found[node.id] = set(loose)  # in a table, or handed on: any method of this module
    return found


def _held(value: object, depth: int = 0) -> Iterator[Regex]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(getattr(value, "__self__", None), re.Pattern):
        yield value.__self__  # type: ignore[attr-defined]
    elif isinstance(value, dict) and depth < _DEEP:
        for one in value.values():
            yield from _held(one, depth + 1)
    elif isinstance(value, (list, tuple, set, frozenset)) and depth < _DEEP:
        for one in value:
            yield from _held(one, depth + 1)
    elif (
        hasattr(value, "__dict__")
        and type(value).__module__.startswith("preflight")
        and depth < _DEEP
    ):
        yield from _held(vars(value), depth + 1)


def _calls(tree: ast.Module) -> Iterator[tuple[int, str, str, ast.expr, ast.expr | None]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        for keyword in node.keywords:
            if keyword.arg == "pattern":
                yield node.lineno, ast.unparse(keyword.value), "search", keyword.value, None
        at = node.func
        of_re = isinstance(at, ast.Attribute) and ast.unparse(at.value) == "re"
        if of_re and isinstance(at, ast.Attribute) and at.attr in _FLAGS_AT:
            given = [word.value for word in node.keywords if word.arg == "flags"]
            flags = next(iter(given + node.args[_FLAGS_AT[at.attr] :]), None)
            yield node.lineno, ast.unparse(node.args[0]), at.attr, node.args[0], flags


def _value(node: ast.expr, module: ModuleType) -> Any:
    code = compile(ast.Expression(node), module.__name__, "eval")
    return eval(code, vars(module))  # noqa: S307


def _data() -> Iterator[tuple[Regex, tuple[str, str]]]:
    for symptom in shipped():
        for pattern in (*symptom.patterns, *symptom.further, *symptom.unless):
            yield (
                re.compile(pattern),
                (f"preflight/hang/explain/symptoms/{symptom.id}.toml", "search"),
            )
    for module, method in ((test_host_log, "search"), (test_nic_log, "match")):
        place = module.__name__.removeprefix("preflight.").replace(".", "/")
        for _, pattern in module._KINDS:
            yield re.compile(pattern), (f"{place}.py:_KINDS", method)
    hider = Hider({"n1": "node", "gpu7": "node", "alice": "user", "on hold": "reason"})
    yield hider._pattern, ("preflight/report/hide.py:Hider", "sub")
    told = knowledge()
    place = "preflight/hang/diagnose/places.toml"
    for row in told.place:
        yield re.compile("|".join(row.files)), (place, "search")
        yield re.compile("|".join(f"(?:{one})" for one in row.functions)), (place, "fullmatch")
    names = [one for native in told.native for one in native.functions]
    for pattern in (*names, *(channel.names for channel in told.channel)):
        yield re.compile(pattern), (place, "search")
    yield re.compile("|".join(told.library)), (place, "search")
