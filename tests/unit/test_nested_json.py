"""JSON from elsewhere may be nested without end: the decoder then raises RecursionError."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_whoever_expects_invalid_json_expects_json_that_is_nested_too_deep() -> None:
    """Each `try` and each `suppress` that names msgspec.DecodeError names RecursionError too."""
    files = [*ROOT.glob("preflight/**/*.py"), *ROOT.glob("checks/**/*.py")]
    expecting = [
        (file.name, node.lineno, ast.unparse(node))
        for file in files
        if "DecodeError" in (code := file.read_text())  # parsing all files takes seconds
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Try | ast.With) and "msgspec.DecodeError" in _exceptions(node)
    ]
    assert len(expecting) > 10
    assert [(name, line) for name, line, text in expecting if "RecursionError" not in text] == []


def _exceptions(node: ast.Try | ast.With) -> str:
    """What it catches, as written."""
    if isinstance(node, ast.With):
        return " ".join(ast.unparse(item) for item in node.items)
    return " ".join(ast.unparse(each.type) for each in node.handlers if each.type)
