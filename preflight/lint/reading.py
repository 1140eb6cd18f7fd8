"""From the bytes of a file to a script, or one sentence why it is none that can be read here."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from preflight.lint.model import Script
from preflight.lint.names import dotted, imports_of
from preflight.lint.ranks import Ranks
from preflight.lint.walk import Walker

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGEST: Final = 4 << 20
"""Bytes of one script; a file of millions of lines is data."""

_IGNORE: Final = re.compile(r"#\s*preflight:\s*ignore(?:\[([a-z0-9, _-]*)\])?", re.IGNORECASE)
_PYTHON_2: Final = re.compile(
    r"^[ \t\f]*(?:print\s+[\"'\w]|except\s+[\w.]+\s*,\s*\w+\s*:|exec\s+[\"'])", re.MULTILINE
)


class Unread(Struct, frozen=True):
    """Why a file was not judged, and what to do about it."""

    reason: str
    remedy: str


def read_script(content: bytes, path: str) -> Script | Unread:
    """Read one file; never raises, whatever is in it."""
    if b"\0" in content:
        return Unread("it is no text: there are NUL bytes in it", "give the Python source")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        said = f"it is not the text that it says it is ({_short(error)})"
        return Unread(said, "save it as UTF-8, or name its encoding in its first line")
    if path.endswith(".ipynb") or re.match(r'\s*\{\s*"cells"', text):
        return Unread("it is a notebook", "export it: jupyter nbconvert --to script FILE")
    return _parsed(text, path)


def _parsed(text: str, path: str) -> Script | Unread:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its odd escapes are no business of ours
            tree = ast.parse(text)
        return _script(tree, text, path)
    except (RecursionError, MemoryError):
        return Unread("it is nested too deeply to be read", "give the script, not its data")
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f" (line {line})" if line else ""
        if _PYTHON_2.search(text):
            return Unread(f"it is Python 2{where}", "torch needs Python 3: translate it first")
        said = f"it is no Python that 3.{_minor()} reads{where}: {_short(error)}"
        return Unread(said, "correct it, or run preflight with the job's own Python")


def _minor() -> int:
    import sys

    return sys.version_info.minor


def _short(error: Exception) -> str:
    return str(getattr(error, "msg", None) or error)[:120]


def _script(tree: ast.Module, text: str, path: str) -> Script:
    imports = imports_of(tree)
    ranks = Ranks(imports)
    ranks.learn(tree)
    walker = Walker(imports, ranks)
    walker.module(tree)
    return Script(
        path=path,
        tree=tree,
        imports=imports,
        functions=walker.functions,
        classes=walker.classes,
        calls=tuple(walker.calls),
        assigns=tuple(walker.assigns),
        is_rank=ranks.is_rank,
        dotted=lambda node: dotted(node, imports),
        ignored=_ignored(tree, text),
    )


def _ignored(tree: ast.Module, text: str) -> Mapping[int, frozenset[str]]:
    """Line → rules that are switched off there, also for the rest of a statement over lines."""
    told: dict[int, frozenset[str]] = {}
    if "preflight" not in text:
        return told
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and (found := _IGNORE.search(token.string)):
                rules = frozenset(one.strip() for one in (found[1] or "").split(","))
                alone = not token.line[: token.start[1]].strip()
                told[token.start[0] + alone] = rules
    except (tokenize.TokenError, SyntaxError):
        return told
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if said := [told[line] for line in lines if line in told]:
                told |= dict.fromkeys(lines, said[0])
    return told
